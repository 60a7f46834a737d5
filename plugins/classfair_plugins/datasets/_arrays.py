"""Splits that lie in memory, and the fingerprint of what is in them."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from classfair_registry.specs import Splits


@dataclasses.dataclass(eq=False)
class ArraySplit:
    """A split held as two arrays; implements :class:`classfair_registry.specs.Split`.

    Attributes:
        pixels: [n, height, width, channels] uint8.
        labels: [n] int64.
        names: None: images in an array have no file names.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]
    names: Sequence[str] | None = None

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return images [len(indices), height, width, channels]."""
        return self.pixels[indices]


def array_splits(classes: Sequence[str], splits: Mapping[str, ArraySplit]) -> Splits:
    """Return splits with the sha256 of their class names, labels and pixels as fingerprint.

    It covers content alone: not paths, nor how files were compressed.
    """
    total = hashlib.sha256("\0".join(classes).encode())
    for name in sorted(splits):
        split = splits[name]
        total.update(f"\0{name} {split.pixels.shape}\0".encode())
        total.update(np.ascontiguousarray(split.labels, "<i8").tobytes())
        total.update(np.ascontiguousarray(split.pixels).data)
    return Splits(splits, total.hexdigest())
