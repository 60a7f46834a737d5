"""Food-101: 101,000 photographs of 101 dishes, 750 of each to train on and 250 for the test.

Below the data folder, in ``food-101``: ``images/CLASS/ID.jpg`` and ``meta/train.json`` and
``test.json``. The training images were not cleaned: some are noise or have a wrong label, by
intent.

``zhou`` reads ``split_zhou_Food101.json`` from the same folder: 50, 20 and 30 % of each class.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from classfair_plugins.datasets._files import DECODE, Files, file_splits, labelled, paths
from classfair_plugins.datasets._layout import Layout, names, read_json
from classfair_plugins.datasets._zhou import SOURCE, Settings, zhou_splits
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad
from classfair_registry.specs import Archive, DatasetSpec, Manifest, Splits

_URL = "http://data.vision.ee.ethz.ch/cvl/food-101.tar.gz"
MANIFEST = Manifest(
    classes=names("""
    apple pie, baby back ribs, baklava, beef carpaccio, beef tartare, beet salad, beignets,
    bibimbap, bread pudding, breakfast burrito, bruschetta, caesar salad, cannoli, caprese
    salad, carrot cake, ceviche, cheese plate, cheesecake, chicken curry, chicken quesadilla,
    chicken wings, chocolate cake, chocolate mousse, churros, clam chowder, club sandwich, crab
    cakes, creme brulee, croque madame, cup cakes, deviled eggs, donuts, dumplings, edamame,
    eggs benedict, escargots, falafel, filet mignon, fish and chips, foie gras, french fries,
    french onion soup, french toast, fried calamari, fried rice, frozen yogurt, garlic bread,
    gnocchi, greek salad, grilled cheese sandwich, grilled salmon, guacamole, gyoza, hamburger,
    hot and sour soup, hot dog, huevos rancheros, hummus, ice cream, lasagna, lobster bisque,
    lobster roll sandwich, macaroni and cheese, macarons, miso soup, mussels, nachos, omelette,
    onion rings, oysters, pad thai, paella, pancakes, panna cotta, peking duck, pho, pizza, pork
    chop, poutine, prime rib, pulled pork sandwich, ramen, ravioli, red velvet cake, risotto,
    samosa, sashimi, scallops, seaweed salad, shrimp and grits, spaghetti bolognese, spaghetti
    carbonara, spring rolls, steak, strawberry shortcake, sushi, tacos, takoyaki, tiramisu, tuna
    tartare, waffles
    """),
    counts={"train": 75_750, "test": 25_250},
    splits={"zhou": {"train": 50_500, "val": 20_200, "test": 30_300}},
    per_class={
        "train": (750, 750),
        "test": (250, 250),
        "zhou/train": (500, 500),
        "zhou/val": (200, 200),
        "zhou/test": (300, 300),
    },
    shape=(3, 0, 0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    licence="not owned by its authors; scientific fair use only",
    citation=(
        "L. Bossard, M. Guillaumin and L. Van Gool. Food-101 - Mining Discriminative Components "
        "with Random Forests. ECCV, 2014"
    ),
    sources=(_URL, SOURCE),
    decode=DECODE,
    prompts=("a photo of {}, a type of food.",),
    archives=(Archive(_URL, "md5:85eeb15f3717b99a5da872d97d918f87", 4_996_278_331),),
)
LAYOUT = Layout(
    "food101",
    ("food-101",),
    ("images/", "meta/train.json", "meta/test.json"),
    MANIFEST.sources,
    downloads=True,
)
ZHOU = "split_zhou_Food101.json"


def open_food(manifest: Manifest, root: Path | None, settings: Settings) -> Splits:
    """Read the lists.

    Raises:
        DataMissing: with the files wanted.
        DataBad: if a list is not what it should be.
    """
    return file_splits(manifest.classes, _splits(manifest, root, settings))


def files(manifest: Manifest, root: Path | None, settings: Settings) -> Sequence[str | Path]:
    """Return the lists and every image that they name."""
    folder = _folder(root, settings)
    lists = [folder / "meta" / f"{part}.json" for part in ("train", "test")]
    zhou = [folder / ZHOU] if settings.split == "zhou" else []
    return paths([*lists, *zhou], _splits(manifest, root, settings))


def _folder(root: Path | None, settings: Settings) -> Path:
    return LAYOUT.find(root, *([ZHOU] if settings.split == "zhou" else []))


def _splits(manifest: Manifest, root: Path | None, settings: Settings) -> dict[str, Files]:
    folder = _folder(root, settings)
    lists = {
        part: _entries(folder / "meta" / f"{part}.json", manifest.classes)
        for part in ("train", "test")
    }
    if settings.split == "zhou":
        official = {name: label for entries in lists.values() for name, label in entries}
        return zhou_splits(folder / ZHOU, folder / "images", official)
    return {part: labelled(folder / "images", entries) for part, entries in lists.items()}


def _entries(path: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Return (file, label) of a list; labels follow the manifest, not the order of the file."""
    written = read_json(path)
    if not isinstance(written, dict):
        raise DataBad(f"{path}: not a list of images for each class")
    folders = [name.replace(" ", "_") for name in classes]
    unknown, absent = sorted(set(written) - set(folders)), sorted(set(folders) - set(written))
    if unknown or absent:
        raise DataBad(
            f"{path}: classes {', '.join(unknown[:5]) or '(none)'} are not known and "
            f"{', '.join(absent[:5]) or '(none)'} are missing"
        )
    found = [
        (f"{image}.jpg", label) for label, name in enumerate(folders) for image in written[name]
    ]
    for image, label in found:
        if image.partition("/")[0] != folders[label]:
            raise DataBad(f"{path}: {image} is listed under {folders[label]}")
    return found


def spec(manifest: Manifest = MANIFEST) -> DatasetSpec:
    """Return the data set; a test gives a manifest with fewer images or classes."""
    return DatasetSpec(
        name=LAYOUT.name,
        title="Food",
        open=functools.partial(open_food, manifest),
        files=functools.partial(files, manifest),
        manifest=manifest,
        summary="101,000 photographs of 101 dishes",
        settings=Settings,
    )


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide Food-101."""
    return [spec()]
