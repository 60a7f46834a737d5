"""Halves of the test images, so that classes are chosen on one and measured on the other.

A class that is chosen because it scored badly did so partly by bad luck with its images; measured
on the same images it looks worse than it is. Measured on other images it does not.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

SPLITS = 10
"""Splits over which a cross-fitted value is averaged. Part of the protocol."""


def halves(label: npt.NDArray[np.int64], seed: str, splits: int = SPLITS) -> npt.NDArray[np.bool_]:
    """Return [splits, N] booleans: whether an image is in the first half.

    Each class is cut into halves; an odd image goes to the first. The same ``label`` [N] and
    ``seed`` give the same splits everywhere.
    """
    words = np.frombuffer(hashlib.sha256(seed.encode()).digest(), "<u4")
    draws = np.random.Generator(np.random.PCG64(words)).random((splits, len(label)))
    order = np.lexsort((draws, np.broadcast_to(label, draws.shape)), axis=-1)
    ordered = np.sort(label)
    place = np.arange(len(label)) - np.searchsorted(ordered, ordered)
    first = np.empty(draws.shape, bool)
    np.put_along_axis(first, order, place[None] % 2 == 0, axis=-1)
    return first


def half_accuracy(
    right: npt.NDArray[np.float64] | npt.NDArray[np.bool_],
    label: npt.NDArray[np.int64],
    first: npt.NDArray[np.bool_],
    num_classes: int,
) -> npt.NDArray[np.float64]:
    """Return [splits, 2, K] accuracies in [0, 1] of each class on each half; NaN where it is empty.

    Args:
        right: [N] whether (or in what share of several runs) the answer is right.
        label: [N] true classes.
        first: [splits, N], see :func:`halves`.
        num_classes: K.
    """
    splits = len(first)
    cell = (np.arange(splits)[:, None] * 2 + ~first) * num_classes + label
    size = splits * 2 * num_classes
    count = np.bincount(cell.ravel(), minlength=size)
    share = np.broadcast_to(np.asarray(right, float), first.shape).ravel()
    total = np.bincount(cell.ravel(), share, minlength=size)
    accuracy = np.divide(total, count, out=np.full(size, np.nan), where=count > 0)
    return np.asarray(accuracy.reshape(splits, 2, num_classes))
