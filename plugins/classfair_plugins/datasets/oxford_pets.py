"""Oxford-IIIT Pet: cats and dogs of 37 breeds, about 200 photographs of each.

Below the data folder, in ``oxford-iiit-pet`` (where torchvision puts it) or ``oxford_pets``:
``images/*.jpg`` and ``annotations/trainval.txt`` and ``test.txt``.

``official`` trains on trainval. ``zhou`` reads ``split_zhou_OxfordPets.json`` from the same folder.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from pathlib import Path

from classfair_plugins.datasets._files import DECODE, Files, file_splits, labelled, paths
from classfair_plugins.datasets._layout import Layout, lines, names
from classfair_plugins.datasets._zhou import SOURCE, Settings, zhou_splits
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad
from classfair_registry.specs import Archive, DatasetSpec, Manifest, Splits

_URL = "https://www.robots.ox.ac.uk/~vgg/data/pets"
MANIFEST = Manifest(
    classes=names("""
    Abyssinian, Bengal, Birman, Bombay, British Shorthair, Egyptian Mau, Maine Coon, Persian,
    Ragdoll, Russian Blue, Siamese, Sphynx, american bulldog, american pit bull terrier, basset
    hound, beagle, boxer, chihuahua, english cocker spaniel, english setter, german shorthaired,
    great pyrenees, havanese, japanese chin, keeshond, leonberger, miniature pinscher,
    newfoundland, pomeranian, pug, saint bernard, samoyed, scottish terrier, shiba inu,
    staffordshire bull terrier, wheaten terrier, yorkshire terrier
    """),
    counts={"train": 3680, "test": 3669},
    splits={"zhou": {"train": 2944, "val": 736, "test": 3669}},
    shape=(3, 0, 0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    licence="CC BY-SA 4.0",
    citation="O. M. Parkhi, A. Vedaldi, A. Zisserman and C. V. Jawahar. Cats and Dogs. CVPR, 2012",
    sources=(f"{_URL}/ (images.tar.gz and annotations.tar.gz)", SOURCE),
    headline="mean_class",
    decode=DECODE,
    prompts=("a photo of a {}, a type of pet.",),
    archives=(
        Archive(
            f"{_URL}/data/images.tar.gz",
            "md5:5c4f3ee8e5d25df40f4fd59a7f44e54c",
            791_918_971,
            "oxford-iiit-pet",
        ),
        Archive(
            f"{_URL}/data/annotations.tar.gz",
            "md5:95a8c909bbe2e81eed6a22bccdf3f68f",
            19_173_078,
            "oxford-iiit-pet",
        ),
    ),
)
LAYOUT = Layout(
    "oxford_pets",
    ("oxford-iiit-pet", "oxford_pets"),
    ("images/", "annotations/trainval.txt", "annotations/test.txt"),
    MANIFEST.sources,
    downloads=True,
)
ZHOU = "split_zhou_OxfordPets.json"


def open_pets(manifest: Manifest, root: Path | None, settings: Settings) -> Splits:
    """Read the annotations.

    Raises:
        DataMissing: with the files wanted.
        DataBad: if a list is not what it should be.
    """
    return file_splits(manifest.classes, _splits(manifest, root, settings))


def files(manifest: Manifest, root: Path | None, settings: Settings) -> Sequence[str | Path]:
    """Return the lists and every image that they name."""
    folder = _folder(root, settings)
    lists = [folder / "annotations" / f"{part}.txt" for part in ("trainval", "test")]
    zhou = [folder / ZHOU] if settings.split == "zhou" else []
    return paths([*lists, *zhou], _splits(manifest, root, settings))


def _folder(root: Path | None, settings: Settings) -> Path:
    return LAYOUT.find(root, *([ZHOU] if settings.split == "zhou" else []))


def _splits(manifest: Manifest, root: Path | None, settings: Settings) -> dict[str, Files]:
    folder = _folder(root, settings)
    lists = {
        part: _entries(folder / "annotations" / f"{listed}.txt", manifest.classes)
        for part, listed in (("train", "trainval"), ("test", "test"))
    }
    if settings.split == "zhou":
        official = {name: label for entries in lists.values() for name, label in entries}
        return zhou_splits(folder / ZHOU, folder / "images", official)
    return {part: labelled(folder / "images", entries) for part, entries in lists.items()}


def _entries(path: Path, classes: Sequence[str]) -> list[tuple[str, int]]:
    """Return (file, label) of a list whose lines are: name, class from 1, species, breed."""
    found = []
    for line in lines(path):
        stem, _, rest = line.partition(" ")
        number = rest.partition(" ")[0]
        if stem.startswith("#"):
            continue
        if not number.isdecimal():
            raise DataBad(f"{path}: {line!r} is not: name, class, species, breed")
        label = int(number) - 1
        _check_breed(path, stem, label, classes)
        found.append((f"{stem}.jpg", label))
    return found


def _check_breed(path: Path, stem: str, label: int, classes: Sequence[str]) -> None:
    """Raise DataBad if the breed in a file's name is not that of its label.

    Labels in text order, where capital letters count otherwise, would be another class order.
    """
    breed = stem.rpartition("_")[0].replace("_", " ").lower()
    if 0 <= label < len(classes) and classes[label].lower() != breed:
        raise DataBad(
            f"{path}: {stem} has class {label + 1}, which is {classes[label]!r}: the classes are "
            "in another order, or counted from another number, than in the data set as published"
        )


def spec(manifest: Manifest = MANIFEST) -> DatasetSpec:
    """Return the data set; a test gives a manifest with fewer images or classes."""
    return DatasetSpec(
        name=LAYOUT.name,
        title="OxfordPets",
        open=functools.partial(open_pets, manifest),
        files=functools.partial(files, manifest),
        manifest=manifest,
        summary="7,349 photographs of cats and dogs of 37 breeds",
        settings=Settings,
    )


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide Oxford-IIIT Pet."""
    return [spec()]
