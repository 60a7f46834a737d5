"""Which part of an image is taken, and the size that it gets; on the sizes of torchvision."""

from __future__ import annotations

import math
from collections.abc import Sequence

from classfair.recipe import Augmentation, Evaluation
from classfair.resample import Pixels, Span, resize

TRIES = 10
"""Random parts that are tried before the middle is taken, as torchvision does."""
COLUMNS = 2 * TRIES + 3
"""Numbers that a resized crop takes: areas, ratios, top, left, mirrored."""


def resized(height: int, width: int, short: int) -> tuple[int, int]:
    """Return (height, width) when the short side is brought to ``short``."""
    if width <= height:
        return int(short * height / width), short
    return short, int(short * width / height)


def with_short_side(image: Pixels, short: int | None) -> Pixels:
    """Return an image [H, W, C] whose short side is no longer than ``short``; None leaves it."""
    height, width = image.shape[:2]
    if short is None or min(height, width) <= short:
        return image
    size = resized(height, width, short)
    rows, columns = Span(0, height, size[0]), Span(0, width, size[1])
    return resize(image, rows, columns, size, "bicubic")


def evaluated(evaluation: Evaluation, height: int, width: int) -> tuple[Span, Span]:
    """Return the rows and columns of an image that evaluation looks at."""
    if evaluation.name == "stored":
        return Span(0, height, height), Span(0, width, width)
    tall, wide = resized(height, width, evaluation.resize)
    top, left = (round((side - evaluation.size) / 2.0) for side in (tall, wide))
    return Span(0, height, tall, top), Span(0, width, wide, left)


def random_part(
    augmentation: Augmentation, row: Sequence[float], height: int, width: int, size: tuple[int, int]
) -> tuple[Span, Span]:
    """Return the rows and columns of a resized crop (Szegedy et al. 2015).

    Args:
        augmentation: with the ranges of area and aspect ratio.
        row: :data:`COLUMNS` numbers in [0, 1): so many areas, as many ratios, top, left.
        height: of the image.
        width: of the image.
        size: (height, width) that the part gets.
    """
    low, high = augmentation.scale
    least, most = map(math.log, augmentation.ratio)
    for area, ratio in zip(row[:TRIES], row[TRIES : 2 * TRIES], strict=True):
        target = height * width * (low + (high - low) * area)
        aspect = math.exp(least + (most - least) * ratio)
        wide, tall = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(row[2 * TRIES] * (height - tall + 1))
            left = int(row[2 * TRIES + 1] * (width - wide + 1))
            return Span(top, tall, size[0]), Span(left, wide, size[1])
    return _middle(augmentation, height, width, size)


def _middle(
    augmentation: Augmentation, height: int, width: int, size: tuple[int, int]
) -> tuple[Span, Span]:
    """Return the largest part in the middle whose ratio is allowed."""
    least, most = augmentation.ratio
    tall, wide = height, width
    if width / height < least:
        tall = round(width / least)
    elif width / height > most:
        wide = round(height * most)
    rows = Span((height - tall) // 2, tall, size[0])
    return rows, Span((width - wide) // 2, wide, size[1])
