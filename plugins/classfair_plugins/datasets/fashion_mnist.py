"""Fashion-MNIST: 70,000 grey pictures of clothes of 28 x 28 pixels, ten balanced classes.

The four idx files are read plain or gzipped, from the first of these folders that has them all:

- ``ROOT/fashion-mnist``, ``ROOT/FashionMNIST/raw`` (where torchvision puts them), ``ROOT`` itself;
- where Debian's package dataset-fashion-mnist installs them.

The split is the official one. The fingerprint is that of the content, so it does not matter how
the files were compressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from classfair_plugins.datasets._arrays import ArraySplit, array_splits
from classfair_plugins.datasets._idx import read_idx
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad, DataMissing
from classfair_registry.settings import NoSettings
from classfair_registry.specs import Archive, DatasetSpec, Manifest, Splits

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
TORCHVISION = Path("FashionMNIST", "raw")
_URL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
_CHECKSUMS = (
    "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "25c81989df183df01b3e8a0aad5dffbe",
    "bef4ecab320f06d8554ea6380940ec79",
    "bb300cfdad3c16e7a12a480ee83cd310",
)
SOURCES = (
    "Debian package dataset-fashion-mnist",
    'torchvision.datasets.FashionMNIST("ROOT", download=True)',
    "https://github.com/zalandoresearch/fashion-mnist",
)
MANIFEST = Manifest(
    classes=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    counts={"train": 60_000, "test": 10_000},
    per_class={"train": (6000, 6000), "test": (1000, 1000)},
    shape=(1, 28, 28),
    mean=(0.2860,),
    std=(0.3530,),
    licence="MIT",
    citation=(
        "H. Xiao, K. Rasul and R. Vollgraf. Fashion-MNIST: a Novel Image Dataset for Benchmarking "
        "Machine Learning Algorithms. arXiv:1708.07747, 2017"
    ),
    sources=SOURCES,
    prompts=("a photo of a {}, a type of clothing.",),
    archives=tuple(
        Archive(f"{_URL}/{name}.gz", f"md5:{md5}", folder=str(TORCHVISION), unpack=False)
        for name, md5 in zip(FILES, _CHECKSUMS, strict=True)
    ),
)


def files(root: Path | None, _settings: NoSettings) -> Sequence[Path]:
    """Return the four files in the order of :data:`FILES`.

    Raises:
        DataMissing: with the files wanted, the folders looked into, and where people get them.
    """
    looked = []
    for folder in _folders(root):
        found = [_plain_or_gzipped(folder, name) for name in FILES]
        whole = [path for path in found if path is not None]
        if len(whole) == len(FILES):
            return whole
        lacking = [name for name, path in zip(FILES, found, strict=True) if path is None]
        looked.append(f"{folder} (lacks {', '.join(lacking) if whole else 'all'})")
    tell = "" if root else "; give the folder with --data"
    raise DataMissing(
        f"fashion_mnist needs {', '.join(FILES)}, each plain or with .gz, in one folder; "
        f"looked in {', '.join(looked)}{tell}; people get them from {' or '.join(SOURCES)}"
    )


def open_fashion_mnist(root: Path | None, settings: NoSettings) -> Splits:
    """Read the four files.

    Raises:
        DataMissing: with the files wanted.
        DataBad: naming the file that is not what it should be.
    """
    train_images, train_labels, test_images, test_labels = files(root, settings)
    splits = {
        "train": _read(train_images, train_labels),
        "test": _read(test_images, test_labels),
    }
    return array_splits(MANIFEST.classes, splits)


def _folders(root: Path | None) -> Iterator[Path]:
    if root is not None:
        yield from (root / "fashion-mnist", root / TORCHVISION, root)
    yield DEBIAN


def _plain_or_gzipped(folder: Path, name: str) -> Path | None:
    candidates = (folder / name, folder / f"{name}.gz")
    return next((path for path in candidates if path.is_file()), None)


def _read(images: Path, labels: Path) -> ArraySplit:
    most = max(MANIFEST.counts.values())
    pixels, values = read_idx(images, MANIFEST.shape[1:], most), read_idx(labels, (), most)
    if len(pixels) != len(values):
        raise DataBad(
            f"{images} holds {len(pixels):,} images but {labels} {len(values):,} labels; "
            "they do not belong together"
        )
    return ArraySplit(pixels[..., np.newaxis], values.astype(np.int64))


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide Fashion-MNIST."""
    return [
        DatasetSpec(
            name="fashion_mnist",
            title="Fashion-MNIST",
            open=open_fashion_mnist,
            files=files,
            manifest=MANIFEST,
            summary="70,000 grey pictures of clothes of 28 x 28 pixels, ten balanced classes",
        )
    ]
