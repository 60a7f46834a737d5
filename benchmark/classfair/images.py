"""The images of a split as a run reads them: cut out, augmented and normalised, in batches.

There are three kinds, and which of them is used changes no number:

- :class:`DeviceImages`: small images of one size, on the device, cut by one gather;
- :class:`ResidentImages`: images of any sizes, on the device, resized many at once;
- :class:`StreamedImages`: images that are read when they are wanted (decoded, or from a memory map)
  and resized one by one in threads, some batches ahead of their use.

Images stay uint8 in [B, H, W, C] until they are normalised, so the [B, C, H, W] view that a network
sees is in torch's channels_last format without a copy.
"""

from __future__ import annotations

import abc
import collections
import concurrent.futures
import dataclasses
import functools
from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classfair import augment, geometry, policies
from classfair.recipe import Augmentation, Evaluation
from classfair.resample import Pixels, Span, Store, resize, resize_many
from classfair_registry.files import workers

Request = tuple[Tensor, Tensor]
"""Positions [B] and rows [B, P] of a parameter table, P = 0 for evaluation; both on the CPU."""

Shape = tuple[int, int, int]


@dataclasses.dataclass(frozen=True)
class Look:
    """What a network sees of an image.

    Attributes:
        mean, std: per channel, of images scaled to [0, 1].
        evaluation: how an image is brought to its size.
        augmentation: what the rows of a parameter table mean.
    """

    mean: Sequence[float]
    std: Sequence[float]
    evaluation: Evaluation = dataclasses.field(default_factory=Evaluation)
    augmentation: Augmentation = dataclasses.field(
        default_factory=lambda: Augmentation(name="crop_flip")
    )

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) that images get, given that of the stored ones."""
        if self.evaluation.name == "stored":
            return height, width
        return self.evaluation.size, self.evaluation.size

    def spans(
        self, stored: tuple[int, int], row: Sequence[float], size: tuple[int, int]
    ) -> tuple[Span, Span]:
        """Return the rows and columns taken of an image; an empty ``row`` is evaluation.

        Args:
            stored: its height and width.
            row: of a parameter table.
            size: (height, width) that images get.
        """
        height, width = stored
        if row and self.augmentation.name == "random_resized_crop":
            return geometry.random_part(self.augmentation, row, height, width, size)
        return geometry.evaluated(self.evaluation, height, width)


class Images(abc.ABC):
    """Images and labels of a split.

    Attributes:
        labels: [n] int64, on the device.
        shape: (C, H, W) of an image as the network sees it.

    Args:
        labels: [n] integers.
        shape: see above.
        look: what the network sees.
        device: of the run.
    """

    ahead = 0
    """Batches that :meth:`read` begins before they are wanted."""

    def __init__(
        self,
        labels: npt.NDArray[np.int64],
        shape: Shape,
        look: Look,
        device: torch.device | str = "cpu",
    ) -> None:
        self.labels = torch.tensor(labels, dtype=torch.int64, device=device)
        self.shape, self._look = shape, look
        # (x / 255 - mean) / std as x * scale + shift, one value a channel, repeated over the
        # pixels: broadcasting over a last dimension of three would run ten times slower.
        scale = 1 / (255 * np.asarray(look.std, np.float64))
        shift = -np.asarray(look.mean, np.float64) / np.asarray(look.std, np.float64)
        _, height, width = shape
        self._scale, self._shift = (
            torch.tensor(np.tile(value, height * width), dtype=torch.float32, device=device)
            for value in (scale, shift)
        )

    def __len__(self) -> int:
        return len(self.labels)

    def plain(self, index: Tensor) -> Tensor:
        """Return the images at ``index`` [B] as [B, C, H, W] float32, normalised, channels_last."""
        return self.augmented(index, torch.empty((len(index), 0), device="cpu"))

    def augmented(self, index: Tensor, rows: Tensor) -> Tensor:
        """Return augmented images in the same form.

        Args:
            index: [B] int64 positions.
            rows: [B, P] of :func:`augment.parameter_table`, for these positions in the pass.
        """
        return self._complete(self._begin(index, rows), rows)

    def read(self, requests: Iterable[Request]) -> Generator[Tensor, None, None]:
        """Yield :meth:`augmented` of each request, in order, preparing some ahead of their use."""
        begun: collections.deque[tuple[Any, Tensor]] = collections.deque()
        try:
            for index, rows in requests:
                begun.append((self._begin(index, rows), rows))
                if len(begun) > self.ahead:
                    yield self._complete(*begun.popleft())
            while begun:
                yield self._complete(*begun.popleft())
        finally:
            for pending, _ in begun:
                self._cancel(pending)

    def _complete(self, begun: Any, rows: Tensor) -> Tensor:
        if not rows.shape[1]:
            return self._normalised(self._taken(begun, rows))
        augmentation = self._look.augmentation
        columns = augment.geometry_columns(augmentation)
        pixels = self._cut(begun, rows[:, :columns])
        if augmentation.policy != "none":
            pixels = policies.apply(augmentation, pixels, rows[:, columns:])
        return self._normalised(pixels)

    def _cut(self, begun: Any, rows: Tensor) -> Tensor:
        """Return the augmented part of each image, [B, H, W, C] uint8."""
        taken = self._taken(begun, rows)
        name = self._look.augmentation.name
        if name == "random_resized_crop":
            return augment.mirrored(taken, rows[:, -1])
        return augment.cropped_batch(taken, rows) if name == "crop_flip" else taken

    def _normalised(self, pixels: Tensor) -> Tensor:
        values = pixels.to(torch.float32)
        values.view(len(values), -1).mul_(self._scale).add_(self._shift)
        return values.permute(0, 3, 1, 2)

    def _begin(self, index: Tensor, rows: Tensor) -> Any:  # noqa: ARG002 - for those that override
        """Begin whatever takes long, and return what :meth:`_taken` needs to finish it."""
        return index.to(self.labels.device)

    def _cancel(self, begun: Any) -> None:
        """Give up what was begun and is not wanted any more; here nothing runs."""
        del begun

    @abc.abstractmethod
    def _taken(self, begun: Any, rows: Tensor) -> Tensor:
        """Return what :meth:`Look.spans` takes of each image, [B, H, W, C] uint8 on the device."""


class DeviceImages(Images):
    """Images of one size, kept on a device.

    Args:
        images: [n, H, W, C] uint8.
        labels: [n] integers.
        mean, std: per channel, of images scaled to [0, 1].
        device: where to keep them.
        augmentation: what the rows of a parameter table mean; no resized crop.
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str = "cpu",
        augmentation: Augmentation | None = None,
    ) -> None:
        n, height, width, channels = images.shape
        look = Look(mean, std, augmentation=augmentation or Augmentation(name="crop_flip"))
        super().__init__(labels, (channels, height, width), look, device)
        # The last pixel is black: what a crop sees beyond the border of an image.
        self._pixels = torch.zeros(n * height * width + 1, channels, dtype=torch.uint8).to(device)
        self._images = self._pixels[:-1].view(images.shape)
        self._images.copy_(torch.tensor(images, device="cpu"))

    def _cut(self, begun: Tensor, rows: Tensor) -> Tensor:
        if self._look.augmentation.name != "crop_flip":
            return self._taken(begun, rows)
        return augment.crop_flip(self._pixels, self.shape, begun, rows.to(begun.device))

    def _taken(self, begun: Tensor, rows: Tensor) -> Tensor:  # noqa: ARG002 - the whole image
        return self._images.index_select(0, begun)


class ResidentImages(Images):
    """Images of any sizes, kept on a device and resized there.

    Args:
        store: the images, one after the other.
        labels: [n] integers.
        size: (height, width) of the stored images if they have one, for ``stored`` evaluation.
        look: what the network sees.
        device: where to keep them.
    """

    def __init__(
        self,
        store: Store,
        labels: npt.NDArray[np.int64],
        size: tuple[int, int],
        look: Look,
        device: torch.device | str = "cpu",
    ) -> None:
        channels = store.pixels.shape[1]
        super().__init__(labels, (channels, *look.size(*size)), look, device)
        self._store = store.to(device)
        self._sizes = list(zip(store.height.tolist(), store.width.tolist(), strict=True))

    def _begin(self, index: Tensor, rows: Tensor) -> Any:
        """Return the index on the device, and what is taken of each image."""
        size = self.shape[1:]
        wanted = zip(index.tolist(), rows.tolist(), strict=True)
        spans = [self._look.spans(self._sizes[i], row, size) for i, row in wanted]
        return index.to(self.labels.device), *zip(*spans, strict=True)

    def _taken(self, begun: Any, rows: Tensor) -> Tensor:
        index, down, across = begun
        how = interpolation(self._look, rows)
        return resize_many(self._store, index, down, across, self.shape[1:], how)


class StreamedImages(Images):
    """Images that are read and resized by threads when they are wanted.

    Args:
        source: returns the image [H, W, C] at a position; called from several threads at once.
        labels: [n] integers.
        channels: of the images.
        size: (height, width) of the images if they have one, for ``stored`` evaluation.
        look: what the network sees.
        device: of the run.
    """

    ahead = 3

    def __init__(
        self,
        source: Callable[[int], Pixels],
        labels: npt.NDArray[np.int64],
        channels: int,
        size: tuple[int, int],
        look: Look,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(labels, (channels, *look.size(*size)), look, device)
        self._source = source
        self._pinned = self.labels.device.type == "cuda"

    def _begin(self, index: Tensor, rows: Tensor) -> Any:
        """Let the threads fill a batch; return it and their promises."""
        channels, height, width = self.shape
        size = (len(index), height, width, channels)
        batch = torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=self._pinned)
        pixels, wanted = batch.numpy(), list(zip(index.tolist(), rows.tolist(), strict=True))
        how = interpolation(self._look, rows)
        each = max(1, len(wanted) // (2 * workers()))
        promises = [
            _pool().submit(self._fill, pixels[n : n + each], wanted[n : n + each], how)
            for n in range(0, len(wanted), each)
        ]
        return batch, promises

    def _fill(self, out: Pixels, wanted: Sequence[tuple[int, list[float]]], how: Any) -> None:
        size = self.shape[1:]
        for place, (position, row) in zip(out, wanted, strict=True):
            image = self._source(position)
            rows, columns = self._look.spans((image.shape[0], image.shape[1]), row, size)
            place[...] = resize(image, rows, columns, size, how)

    def _taken(self, begun: Any, rows: Tensor) -> Tensor:  # noqa: ARG002 - known when it was begun
        batch, promises = begun
        for promise in promises:
            promise.result()
        pixels: Tensor = batch.to(self.labels.device, non_blocking=True)
        return pixels

    def _cancel(self, begun: Any) -> None:
        for promise in begun[1]:
            promise.cancel()


def interpolation(look: Look, rows: Tensor) -> Any:
    """Return how images are resized: as the resized crop says, or as evaluation does."""
    crops = rows.shape[1] > 0 and look.augmentation.name == "random_resized_crop"
    return (look.augmentation if crops else look.evaluation).interpolation


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    return concurrent.futures.ThreadPoolExecutor(workers(), thread_name_prefix="images")
