"""CIFAR-10 and CIFAR-100: 60,000 colour pictures of 32 x 32 pixels each.

Read from ``cifar-10-batches-py`` and ``cifar-100-python`` below the data folder, where torchvision
puts them: pickles of Python. A pickle can run any code, so each file is opened only after its md5
is right, and then by a reader that makes arrays and plain values and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from classfair_plugins.datasets._arrays import ArraySplit, array_splits
from classfair_plugins.datasets._layout import Layout, check_digest, names
from classfair_plugins.datasets._pickles import read_pickle
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad
from classfair_registry.settings import NoSettings
from classfair_registry.specs import Archive, DatasetSpec, Manifest, Splits

_URL = "https://www.cs.toronto.edu/~kriz"
_CITATION = "A. Krizhevsky. Learning Multiple Layers of Features from Tiny Images. 2009"
CHECKSUMS: Mapping[str, str] = MappingProxyType(
    {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
        "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
        "train": "16019d7e3df5f24257cddd939b257f8d",
        "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
        "meta": "7973b15100ade9c7d40fb424638fde48",
    }
)
"""The md5 of each file, those of CIFAR-10 first."""

CIFAR10 = Manifest(
    classes=names("""
    airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck
    """),
    counts={"train": 50_000, "test": 10_000},
    per_class={"train": (5000, 5000), "test": (1000, 1000)},
    duplicates=None,
    shape=(3, 32, 32),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    licence="not stated",
    citation=_CITATION,
    sources=(f"{_URL}/cifar.html (the Python version)", "torchvision.datasets.CIFAR10"),
    archives=(
        Archive(
            f"{_URL}/cifar-10-python.tar.gz", "md5:c58f30108f718f92721af3b95e74349a", 170_498_071
        ),
    ),
)
CIFAR100 = Manifest(
    classes=names("""
    apple, aquarium fish, baby, bear, beaver, bed, bee, beetle, bicycle, bottle, bowl, boy,
    bridge, bus, butterfly, camel, can, castle, caterpillar, cattle, chair, chimpanzee, clock,
    cloud, cockroach, couch, crab, crocodile, cup, dinosaur, dolphin, elephant, flatfish,
    forest, fox, girl, hamster, house, kangaroo, keyboard, lamp, lawn mower, leopard, lion,
    lizard, lobster, man, maple tree, motorcycle, mountain, mouse, mushroom, oak tree, orange,
    orchid, otter, palm tree, pear, pickup truck, pine tree, plain, plate, poppy, porcupine,
    possum, rabbit, raccoon, ray, road, rocket, rose, sea, seal, shark, shrew, skunk,
    skyscraper, snail, snake, spider, squirrel, streetcar, sunflower, sweet pepper, table, tank,
    telephone, television, tiger, tractor, train, trout, tulip, turtle, wardrobe, whale, willow
    tree, wolf, woman, worm
    """),
    counts={"train": 50_000, "test": 10_000},
    per_class={"train": (500, 500), "test": (100, 100)},
    duplicates=None,
    shape=(3, 32, 32),
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    licence="not stated",
    citation=_CITATION,
    sources=(f"{_URL}/cifar.html (the Python version)", "torchvision.datasets.CIFAR100"),
    archives=(
        Archive(
            f"{_URL}/cifar-100-python.tar.gz", "md5:eb9058c3a382ffc7106e4002c42a8d85", 169_001_437
        ),
    ),
)
_SIDE = 32


class Cifar:
    """One of the two.

    Args:
        layout: its files.
        meta: the file with the class names, and their key in it.
        parts: files of each split.
        key: of the labels.
        manifest: what they should hold.
        checksums: md5 by file name; a file without one is not opened.
    """

    def __init__(
        self,
        layout: Layout,
        meta: tuple[str, str],
        parts: Mapping[str, Sequence[str]],
        key: str,
        manifest: Manifest,
        checksums: Mapping[str, str],
    ) -> None:
        self._layout, self._meta, self._parts, self._key = layout, meta, parts, key
        self._manifest, self._checksums = manifest, checksums

    def files(self, root: Path | None, _settings: NoSettings) -> Sequence[Path]:
        """Return the pickles."""
        folder = self._layout.find(root)
        return [folder / entry for entry in self._layout.entries]

    def open(self, root: Path | None, _settings: NoSettings) -> Splits:
        """Check the pickles' digests, then read them.

        Raises:
            DataMissing: with the files wanted.
            DataBad: if a file is not the published one.
        """
        folder = self._layout.find(root)
        file, key = self._meta
        written = [str(name).replace("_", " ") for name in self._read(folder / file, key)[0]]
        if written != list(self._manifest.classes):
            raise DataBad(f"{folder / file}: its classes are not those known here in this order")
        splits = {
            part: self._split([folder / batch for batch in batches])
            for part, batches in self._parts.items()
        }
        return array_splits(self._manifest.classes, splits)

    def _split(self, batches: Sequence[Path]) -> ArraySplit:
        read = [self._batch(path) for path in batches]
        pixels, labels, stems = zip(*read, strict=True)
        return ArraySplit(
            np.concatenate(pixels),
            np.concatenate(labels),
            [str(name) for part in stems for name in part],
        )

    def _batch(self, path: Path) -> tuple[Any, Any, Any]:
        """Return pixels [n, 32, 32, 3], labels [n] and n file names of a pickle."""
        data, labels, stems = self._read(path, "data", self._key, "filenames")
        values = np.asarray(data)
        if values.dtype != np.uint8 or values.shape != (len(labels), 3 * _SIDE * _SIDE):
            raise DataBad(f"{path}: data are {values.dtype} {values.shape}, not 32 x 32 colour")
        pixels = values.reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
        return np.ascontiguousarray(pixels), np.array(labels, np.int64), stems

    def _read(self, path: Path, *keys: str) -> list[Any]:
        if path.name not in self._checksums:
            raise DataBad(f"{path}: no md5 is known for it, so it is not opened")
        check_digest(path, self._checksums)
        values = read_pickle(path)
        absent = [key for key in keys if key not in values]
        if absent:
            raise DataBad(f"{path}: has no {absent[0]!r}, but {', '.join(map(str, values))}")
        return [values[key] for key in keys]


def cifar10(manifest: Manifest = CIFAR10, checksums: Mapping[str, str] = CHECKSUMS) -> DatasetSpec:
    """Return CIFAR-10; a test gives a manifest with fewer images and the md5 of its own files."""
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    entries = (*batches, "test_batch", "batches.meta")
    layout = Layout("cifar10", ("cifar-10-batches-py",), entries, manifest.sources, downloads=True)
    parts = {"train": batches, "test": ["test_batch"]}
    data = Cifar(layout, ("batches.meta", "label_names"), parts, "labels", manifest, checksums)
    return DatasetSpec(
        name="cifar10",
        title="CIFAR-10",
        open=data.open,
        files=data.files,
        manifest=manifest,
        summary="60,000 colour pictures of 32 x 32 pixels of animals and vehicles, ten classes",
    )


def cifar100(
    manifest: Manifest = CIFAR100, checksums: Mapping[str, str] = CHECKSUMS
) -> DatasetSpec:
    """Return CIFAR-100; a test gives a manifest with fewer images and the md5 of its own files."""
    layout = Layout(
        "cifar100",
        ("cifar-100-python",),
        ("train", "test", "meta"),
        manifest.sources,
        downloads=True,
    )
    parts = {"train": ["train"], "test": ["test"]}
    meta = ("meta", "fine_label_names")
    data = Cifar(layout, meta, parts, "fine_labels", manifest, checksums)
    return DatasetSpec(
        name="cifar100",
        title="CIFAR-100",
        open=data.open,
        files=data.files,
        manifest=manifest,
        summary="60,000 colour pictures of 32 x 32 pixels, a hundred classes of 600",
    )


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide CIFAR-10 and CIFAR-100."""
    return [cifar10(), cifar100()]
