"""Accuracies that are weighted sums of right answers, as the weights of the test images.

A third's accuracy under a ranking by *other* runs is such a sum, cross-fitted or not; so the noise
of its images can be computed instead of simulated. Under a ranking by the model itself it is not.
"""

from __future__ import annotations

import numpy as np

from classfair_leaderboard.answers import Labels, Right
from classfair_registry.predictions import Floats, membership


def of_images(label: Labels) -> Floats:
    """Return [N] weights of the accuracy over all images (``overall``)."""
    return np.full(len(label), 1 / len(label))


def of_classes(label: Labels, per_class: Floats) -> Floats:
    """Return [..., N] weights of a mean over classes with weights ``per_class`` [..., K].

    A class without images has no say, whatever its weight.
    """
    count = np.bincount(label, minlength=per_class.shape[-1])
    present = np.where(count > 0, per_class, 0)
    share = present / present.sum(-1, keepdims=True) / np.maximum(count, 1)
    return np.asarray(share[..., label])


def of_crossfit(label: Labels, first: Right, scores: Floats) -> Floats:
    """Return [3, N] weights of the cross-fitted thirds of other runs' ranking.

    Args:
        label: [N] true classes.
        first: [splits, N], see :func:`classfair_registry.crossfit.halves`.
        scores: [splits, 2, K] of the ranking runs on the halves; those of a half rank the classes
            that are measured on the other.
    """
    splits, classes = len(first), scores.shape[-1]
    side = (~first).astype(np.int64)
    cell = (np.arange(splits)[:, None] * 2 + side) * classes + label
    count = np.bincount(cell.ravel(), minlength=splits * 2 * classes).reshape(splits, 2, classes)
    # scores[:, ::-1]: the other half's.
    shares = membership(np.where(count > 0, scores[:, ::-1], np.nan))
    with np.errstate(invalid="ignore"):
        per_class = shares / shares.sum(-1, keepdims=True) / np.maximum(count, 1)[:, :, None]
    per_image = per_class[np.arange(splits)[:, None], side, :, label[None]]  # [splits, N, 3]
    return np.asarray(per_image.mean(0).T / 2)
