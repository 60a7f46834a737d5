"""Digits: 1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn.

The smallest real data set there is: it needs no download, and shows that everything works.

**Pixels** are stored as 0 .. 16, the number of ink dots in a cell of 4 x 4. Value v becomes
``(255 v + 8) // 16``, which is 255 v / 16 rounded half up: 0 stays 0, 16 becomes 255, and all 17
values stay apart.

**Split**: the collection as scikit-learn has it is one piece; no official split exists. The suite's
own, under the name ``official`` for want of another, is fixed for ever: the images of each class,
sorted by the sha256 of their 64 stored pixel values as bytes, go to train for the first two thirds
(rounded half up) and to test for the rest. So where an image goes depends on nothing but its class.

The file is read by itself, since importing scikit-learn takes a hundred times longer.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classfair_plugins.datasets._arrays import ArraySplit, array_splits
from classfair_registry import hookimpl
from classfair_registry.errors import DataBad, DataMissing
from classfair_registry.settings import NoSettings
from classfair_registry.specs import DatasetSpec, Manifest, Splits

MANIFEST = Manifest(
    classes=("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    counts={"train": 1198, "test": 599},
    shape=(1, 8, 8),
    mean=(0.3062,),
    std=(0.3765,),
    licence="BSD-3-Clause, as part of scikit-learn",
    citation=(
        "E. Alpaydin and C. Kaynak. Optical Recognition of Handwritten Digits. "
        "UCI Machine Learning Repository, 1998"
    ),
    sources=("the PyPI package scikit-learn, which classfair installs",),
    decode="0 .. 16 scaled to 0 .. 255, rounded half up",
    prompts=("a handwritten digit {}.",),
)
_FILE = Path("datasets", "data", "digits.csv.gz")


def files(_root: Path | None, _settings: NoSettings) -> Sequence[Path]:
    """Return scikit-learn's file, found without importing it; no folder is needed."""
    found = importlib.util.find_spec("sklearn")
    if found is None or found.origin is None:
        raise DataMissing("digits: scikit-learn is not installed; pip install scikit-learn")
    path = Path(found.origin).parent / _FILE
    if not path.is_file():
        raise DataMissing(f"digits: {path} is missing; install scikit-learn again")
    return [path]


def open_digits(root: Path | None, settings: NoSettings) -> Splits:
    """Read the digits and split them.

    Raises:
        DataMissing: without scikit-learn's file.
        DataBad: if the file is not the one that is known.
    """
    (path,) = files(root, settings)
    values, labels = _read(path)
    train = _first_two_thirds(values, labels)
    pixels = ((255 * values.astype(np.int64) + 8) // 16).astype(np.uint8).reshape(-1, 8, 8, 1)
    splits = {
        name: ArraySplit(pixels[chosen], labels[chosen])
        for name, chosen in (("train", train), ("test", ~train))
    }
    return array_splits(MANIFEST.classes, splits)


def _read(path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return [n, 64] values in 0 .. 16 and [n] labels."""
    try:
        table = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
    except (OSError, EOFError, ValueError) as error:
        raise DataBad(f"{path}: {error}; install scikit-learn again") from error
    if table.shape[1:] != (65,) or not 0 <= table[:, :64].min() <= table[:, :64].max() <= 16:
        raise DataBad(f"{path}: not 64 values of 0 to 16 and a label a line")
    return table[:, :64].astype(np.uint8), table[:, 64]


def _first_two_thirds(
    values: npt.NDArray[np.uint8], labels: npt.NDArray[np.int64]
) -> npt.NDArray[np.bool_]:
    """Return [n] whether each image belongs to the training split."""
    train = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        ordered = sorted(members, key=lambda i: hashlib.sha256(values[i].tobytes()).digest())
        train[ordered[: (4 * len(members) + 3) // 6]] = True  # 2n/3, rounded half up
    return train


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide digits."""
    return [
        DatasetSpec(
            name="digits",
            title="Digits",
            open=open_digits,
            files=files,
            manifest=MANIFEST,
            summary="1,797 handwritten digits of 8 x 8 pixels, which come with scikit-learn",
        )
    ]
