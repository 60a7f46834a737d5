"""Oxford 102 Flower: 8,189 photographs of 102 kinds of flowers, 40 to 258 of each.

Below the data folder, in ``flowers-102`` (where torchvision puts it) or ``oxford_flowers``:
``jpg/image_00001.jpg`` to ``image_08189.jpg``, ``imagelabels.mat`` and ``setid.mat``.

``official`` is the split of ``setid.mat``: 10 images of each class to train on, 10 to validate, all
others for the test. (Some papers train on the test part and test on the train part: their numbers
are others.) ``zhou`` reads ``split_zhou_OxfordFlowers.json``: 50, 20 and 30 % of each class.

The class names stand in none of these files; they are those of the data set's web page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np

from classfair_plugins.datasets._files import DECODE, Files, file_splits, labelled, paths
from classfair_plugins.datasets._layout import Layout, check_digest, names, read_mat
from classfair_plugins.datasets._zhou import SOURCE, Settings, zhou_splits
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad
from classfair_registry.specs import Archive, DatasetSpec, Manifest, Splits

_URL = "https://www.robots.ox.ac.uk/~vgg/data/flowers/102"
CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {
        "imagelabels.mat": "e0620be6f572b9609742df49c70aed4d",
        "setid.mat": "a5357ecc9cb78c4bef273ce3793fc85c",
    }
)
MANIFEST = Manifest(
    classes=names("""
    pink primrose, hard-leaved pocket orchid, canterbury bells, sweet pea, english marigold,
    tiger lily, moon orchid, bird of paradise, monkshood, globe thistle, snapdragon, colt's
    foot, king protea, spear thistle, yellow iris, globe flower, purple coneflower, peruvian
    lily, balloon flower, giant white arum lily, fire lily, pincushion flower, fritillary, red
    ginger, grape hyacinth, corn poppy, prince of wales feathers, stemless gentian, artichoke,
    sweet william, carnation, garden phlox, love in the mist, mexican aster, alpine sea holly,
    ruby-lipped cattleya, cape flower, great masterwort, siam tulip, lenten rose, barbeton
    daisy, daffodil, sword lily, poinsettia, bolero deep blue, wallflower, marigold, buttercup,
    oxeye daisy, common dandelion, petunia, wild pansy, primula, sunflower, pelargonium, bishop
    of llandaff, gaura, geranium, orange dahlia, pink and yellow dahlia, cautleya spicata,
    japanese anemone, black-eyed susan, silverbush, californian poppy, osteospermum, spring
    crocus, bearded iris, windflower, tree poppy, gazania, azalea, water lily, rose, thorn
    apple, morning glory, passion flower, lotus, toad lily, anthurium, frangipani, clematis,
    hibiscus, columbine, desert-rose, tree mallow, magnolia, cyclamen, watercress, canna lily,
    hippeastrum, bee balm, air plant, foxglove, bougainvillea, camellia, mallow, mexican
    petunia, bromelia, blanket flower, trumpet creeper, blackberry lily
    """),
    counts={"train": 1020, "val": 1020, "test": 6149},
    splits={"zhou": {"train": 4093, "val": 1633, "test": 2463}},
    per_class={"train": (10, 10), "val": (10, 10), "test": (20, 238)},
    shape=(3, 0, 0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    licence="not stated; the images are from the web, for research",
    citation=(
        "M.-E. Nilsback and A. Zisserman. Automated Flower Classification over a Large Number of "
        "Classes. ICVGIP, 2008"
    ),
    sources=(f"{_URL}/ (102flowers.tgz, imagelabels.mat and setid.mat)", SOURCE),
    headline="mean_class",
    decode=DECODE,
    prompts=("a photo of a {}, a type of flower.",),
    archives=(
        Archive(
            f"{_URL}/102flowers.tgz",
            "md5:52808999861908f626f3c1f4e79d11fa",
            344_862_509,
            "flowers-102",
        ),
        *(
            Archive(f"{_URL}/{name}", f"md5:{md5}", folder="flowers-102", unpack=False)
            for name, md5 in CHECKSUMS.items()
        ),
    ),
)
LAYOUT = Layout(
    "flowers102",
    ("flowers-102", "oxford_flowers"),
    ("jpg/", "imagelabels.mat"),
    MANIFEST.sources,
    downloads=True,
)
SETS = "setid.mat"
ZHOU = "split_zhou_OxfordFlowers.json"
_VARIABLES = {"train": "trnid", "val": "valid", "test": "tstid"}


class Flowers:
    """The data set for a manifest and the checksums of its lists."""

    def __init__(self, manifest: Manifest, checksums: Mapping[str, str]) -> None:
        self._manifest, self._checksums = manifest, checksums

    def files(self, root: Path | None, settings: Settings) -> Sequence[str | Path]:
        """Return the lists and every image that they name."""
        folder = self._folder(root, settings)
        lists = [folder / "imagelabels.mat", folder / self._list(settings)]
        return paths(lists, self._splits(folder, settings))

    def open(self, root: Path | None, settings: Settings) -> Splits:
        """Read the lists.

        Raises:
            DataMissing: with the files wanted.
            DataBad: if a list is not the published one.
        """
        folder = self._folder(root, settings)
        for path in (folder / "imagelabels.mat", folder / self._list(settings)):
            check_digest(path, self._checksums)
        return file_splits(self._manifest.classes, self._splits(folder, settings))

    def _folder(self, root: Path | None, settings: Settings) -> Path:
        return LAYOUT.find(root, self._list(settings))

    def _list(self, settings: Settings) -> str:
        return ZHOU if settings.split == "zhou" else SETS

    def _splits(self, folder: Path, settings: Settings) -> dict[str, Files]:
        labels = np.atleast_1d(read_mat(folder / "imagelabels.mat", "labels")).astype(np.int64) - 1
        if settings.split == "zhou":
            official = {_name(i + 1): int(label) for i, label in enumerate(labels)}
            return zhou_splits(folder / ZHOU, folder / "jpg", official)
        splits = {}
        for part, variable in _VARIABLES.items():
            numbers = np.atleast_1d(read_mat(folder / SETS, variable)).astype(np.int64)
            if numbers.size and not 1 <= numbers.min() <= numbers.max() <= len(labels):
                raise DataBad(
                    f"{folder / SETS}: {variable} names images {numbers.min()} to {numbers.max()}, "
                    f"but imagelabels.mat has labels for 1 to {len(labels)}"
                )
            entries = [(_name(int(n)), int(labels[n - 1])) for n in numbers]
            splits[part] = labelled(folder / "jpg", entries)
        return splits


def _name(number: int) -> str:
    return f"image_{number:05}.jpg"


def spec(manifest: Manifest = MANIFEST, checksums: Mapping[str, str] = CHECKSUMS) -> DatasetSpec:
    """Return the data set; a test gives a manifest with fewer images, and other checksums."""
    flowers = Flowers(manifest, checksums)
    return DatasetSpec(
        name=LAYOUT.name,
        title="Flowers",
        open=flowers.open,
        files=flowers.files,
        manifest=manifest,
        summary="8,189 photographs of 102 kinds of flowers, 10 of each to train on",
        settings=Settings,
    )


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide Oxford 102 Flower."""
    return [spec()]
