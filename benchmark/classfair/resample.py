"""Resizing of images: one by one with Pillow, or many at once on a device, with equal bits.

Pillow resizes in fixed point, one axis after the other: weights in 1 / 2^22, sums rounded to bytes.
Whole numbers have no rounding that depends on the order of a sum, so the same can be done for a
batch of crops of different sizes, on any device, and every pixel is equal.

Each row is resized before each column. Left to itself, Pillow does so up to version 12 and chooses
the cheaper order from 13 on; here it is asked for one axis at a time, so that numbers do not depend
on its version.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classfair.recipe import Interpolation

Pixels = npt.NDArray[np.uint8]
_BITS = 22
_CHUNK = 1 << 24
"""Pixels of an intermediate result at a time, so that memory stays bounded."""


@dataclasses.dataclass(frozen=True)
class Span:
    """A stretch of an image along one axis, and what becomes of it.

    Attributes:
        start: first pixel.
        length: pixels that are resized: nothing beyond them is looked at.
        resized: pixels that they become.
        first: of those, the first that is kept.
    """

    start: int
    length: int
    resized: int
    first: int = 0


def resize(
    image: Pixels, rows: Span, columns: Span, size: tuple[int, int], how: Interpolation
) -> Pixels:
    """Return [height, width, C] of an image [H, W, C], by Pillow.

    Args:
        image: any image.
        rows: what is taken of it from top to bottom, and the height that it gets.
        columns: the same from left to right.
        size: (height, width) that is kept of it.
        how: the interpolation.
    """
    from PIL import Image

    part = image[
        rows.start : rows.start + rows.length, columns.start : columns.start + columns.length
    ]
    grey = part.shape[2] == 1
    picture = Image.fromarray(np.ascontiguousarray(part[..., 0] if grey else part))
    for wanted in ((columns.resized, picture.height), (columns.resized, rows.resized)):
        picture = picture.resize(wanted, _filter(how))  # of the same size: a copy
    found = np.asarray(picture)[rows.first : rows.first + size[0]]
    found = found[:, columns.first : columns.first + size[1]]
    return found[..., np.newaxis] if grey else found


def _filter(how: Interpolation) -> Any:
    from PIL import Image

    return {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}[how]


@dataclasses.dataclass(frozen=True)
class Store:
    """Images of different sizes one after the other.

    Attributes:
        pixels: [P, C] uint8, row by row.
        offset: [n] int64, where each image begins.
        height, width: [n] int64.
    """

    pixels: Tensor
    offset: Tensor
    height: Tensor
    width: Tensor

    def to(self, device: torch.device | str) -> Store:
        """Return the same on a device."""
        parts = (self.pixels, self.offset, self.height, self.width)
        return Store(*(part.to(device) for part in parts))


def resize_many(
    store: Store,
    index: Tensor,
    rows: Sequence[Span],
    columns: Sequence[Span],
    size: tuple[int, int],
    how: Interpolation,
) -> Tensor:
    """Return [B, height, width, C] uint8: :func:`resize` of many images of a store.

    Args:
        store: on any device.
        index: [B] int64, on the store's device.
        rows: B spans from top to bottom.
        columns: B spans from left to right.
        size: (height, width) that is kept of each.
        how: the interpolation.
    """
    each = max(1, _CHUNK // (max(span.length for span in rows) * size[1]))
    parts = (slice(n, n + each) for n in range(0, len(index), each))
    return torch.cat([_resize_part(store, index[p], rows[p], columns[p], size, how) for p in parts])


def _resize_part(
    store: Store,
    index: Tensor,
    rows: Sequence[Span],
    columns: Sequence[Span],
    size: tuple[int, int],
    how: Interpolation,
) -> Tensor:
    device = index.device
    down, across = (_Taps.of(s, n, how, device) for s, n in zip((rows, columns), size, strict=True))
    # The first pass takes as many lines of every image as the tallest has; what lies below a
    # shorter one is never looked at by the second.
    line = torch.arange(max(span.length for span in rows), device=device)
    line = torch.minimum(line, down.length - 1) + down.start
    begin = store.offset[index, None] + line * store.width[index, None] + across.start
    narrow = _combined(
        lambda place: store.pixels[begin.unsqueeze(2) + place.unsqueeze(1)],
        across,
        lambda weight: weight[:, None, :, None],
    )
    image = torch.arange(len(index), device=device).unsqueeze(1)
    return _combined(
        lambda place: narrow[image, place], down, lambda weight: weight[:, :, None, None]
    )


def _combined(
    pixels: Callable[[Tensor], Tensor], taps: _Taps, broadcast: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return one pass's bytes: weighted sums along one axis, rounded.

    Args:
        pixels: returns the values at [B, S] places of the span.
        taps: which places, and how they are weighted.
        broadcast: brings [B, S] weights to the form of the values.
    """
    total: Tensor | int = 1 << (_BITS - 1)
    for number in range(taps.weights.shape[2]):
        place = torch.minimum(taps.first + number, taps.length - 1)
        total = total + pixels(place).to(torch.int32) * broadcast(taps.weights[:, :, number])
    assert isinstance(total, Tensor)
    return (total >> _BITS).clamp_(0, 255).to(torch.uint8)


@dataclasses.dataclass(frozen=True)
class _Taps:
    """For B spans: which pixels each of S resized ones is made of.

    Attributes:
        start, length: [B, 1] int64 of the spans.
        first: [B, S] int64, the first such pixel, counted from the span's start.
        weights: [B, S, T] int32, of it and those after it, in 1 / 2^22; 0 beyond the last.
    """

    start: Tensor
    length: Tensor
    first: Tensor
    weights: Tensor

    @classmethod
    def of(
        cls, spans: Sequence[Span], kept: int, how: Interpolation, device: torch.device
    ) -> _Taps:
        made = [coefficients(s.length, s.resized, s.first, kept, how) for s in spans]
        most = max(weights.shape[1] for _, weights in made)
        weights = np.zeros((len(spans), kept, most), np.int32)
        for row, (_, own) in zip(weights, made, strict=True):
            row[:, : own.shape[1]] = own
        ends = torch.tensor([(s.start, s.length) for s in spans], device=device)
        return cls(
            start=ends[:, :1],
            length=ends[:, 1:],
            first=torch.from_numpy(np.stack([first for first, _ in made])).to(device),
            weights=torch.from_numpy(weights).to(device),
        )


@functools.lru_cache(maxsize=8192)
def coefficients(
    length: int, resized: int, start: int, kept: int, how: Interpolation
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """Return Pillow's weights for bringing ``length`` pixels to ``resized``.

    The filter is widened where the image shrinks, so that every pixel counts; its values are made
    to sum to one, and then rounded to 1 / 2^22.

    Args:
        length: pixels before.
        resized: pixels after.
        start: the first of those after that is wanted.
        kept: how many of those after are wanted.
        how: the interpolation.

    Returns:
        [kept] the first pixel that counts for each, and [kept, T] the weights from it on.
    """
    scale = length / resized
    widened = max(scale, 1.0)
    support = _SUPPORT[how] * widened
    middle = (np.arange(start, start + kept) + 0.5) * scale
    first = np.maximum((middle - support + 0.5).astype(np.int64), 0)
    count = np.minimum((middle + support + 0.5).astype(np.int64), length) - first
    taps = np.arange(int(count.max()))
    values = _FILTERS[how]((taps + first[:, None] - middle[:, None] + 0.5) * (1.0 / widened))
    values *= taps < count[:, None]
    # Summed in order, as Pillow does: another order may round otherwise.
    total = np.add.accumulate(values, axis=1)[:, -1:]
    weights = values / total * (1 << _BITS)
    return first, np.trunc(weights + np.where(weights < 0, -0.5, 0.5)).astype(np.int32)


def _triangle(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    x = np.abs(x)
    return np.where(x < 1.0, 1.0 - x, 0.0)


def _cubic(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return R. Keys' cubic convolution with a = -1/2."""
    a, x = -0.5, np.abs(x)
    near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x < 1.0, near, np.where(x < 2.0, far, 0.0))


_SUPPORT = {"bilinear": 1.0, "bicubic": 2.0}
_FILTERS = {"bilinear": _triangle, "bicubic": _cubic}
