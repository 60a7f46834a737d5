"""Data sets on the device of a run: checked, cut, and read as batches of normalised images.

Images stay uint8 in [n, H, W, C], so a batch is one gather, and its [B, C, H, W] view is in torch's
channels_last format without a copy.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classfair import augment
from classfair.recipe import Augmentation, Data
from classfair.split import check_labels, check_splits, cut
from classfair.stamps import dataset_settings
from classfair_registry.contracts import Batch
from classfair_registry.errors import DataBad, UsageError
from classfair_registry.specs import DatasetSpec, Split

__all__ = ["DeviceImages", "Opened", "Part", "Reader", "check_labels", "cut", "open_data"]

Transform = Literal["eval", "train"]


class DeviceImages:
    """Images and labels of a split, kept on a device.

    Attributes:
        labels: [n] int64.
        shape: (C, H, W) of an image as the network sees it.

    Args:
        images: [n, H, W, C] uint8.
        labels: [n] integers.
        mean, std: per channel, of images scaled to [0, 1].
        device: where to keep them.
    """

    def __init__(
        self,
        images: npt.NDArray[np.uint8],
        labels: npt.NDArray[np.int64],
        mean: Sequence[float],
        std: Sequence[float],
        device: torch.device | str = "cpu",
    ) -> None:
        n, height, width, channels = images.shape
        self.shape = (channels, height, width)
        self.labels = torch.tensor(labels, dtype=torch.int64, device=device)
        # The last pixel is black: what a crop sees beyond the border of an image.
        self._pixels = torch.zeros(n * height * width + 1, channels, dtype=torch.uint8).to(device)
        self._images = self._pixels[:-1].view(images.shape)
        self._images.copy_(torch.tensor(images, device="cpu"))
        # (x / 255 - mean) / std as x * scale + shift, one value a channel, repeated over the
        # pixels: broadcasting over a last dimension of three would run ten times slower.
        scale = 1 / (255 * np.asarray(std, np.float64))
        shift = -np.asarray(mean, np.float64) / np.asarray(std, np.float64)
        self._scale, self._shift = (
            torch.tensor(np.tile(value, height * width), dtype=torch.float32, device=device)
            for value in (scale, shift)
        )

    def __len__(self) -> int:
        return len(self.labels)

    def plain(self, index: Tensor) -> Tensor:
        """Return the images at ``index`` [B] as [B, C, H, W] float32, normalised, channels_last."""
        return self._normalised(self._images.index_select(0, index.to(self.labels.device)))

    def augmented(self, index: Tensor, rows: Tensor) -> Tensor:
        """Return augmented images in the same form.

        Args:
            index: [B] int64 positions.
            rows: [B, P] of :func:`augment.parameter_table`, for these positions in the pass.
        """
        if not rows.shape[1]:
            return self.plain(index)
        index, rows = (values.to(self.labels.device) for values in (index, rows))
        return self._normalised(augment.crop_flip(self._pixels, self.shape, index, rows))

    def _normalised(self, pixels: Tensor) -> Tensor:
        values = pixels.to(torch.float32)
        values.view(len(values), -1).mul_(self._scale).add_(self._shift)
        return values.permute(0, 3, 1, 2)


class Reader:
    """A split read in order; implements :class:`classfair_registry.contracts.Reader`.

    Images carry no gradient; whoever runs a network on them turns it off.

    Attributes:
        labels: [n] int64, of all processes' shares.

    Args:
        images: of the split.
        batch_size: images a batch of this process.
        subset: [n] int64 positions in the split, or None for all of it, in order.
        transform: ``eval``, or ``train`` to augment.
        augmentation: what ``train`` does.
        generator: on the CPU; ``train`` draws a table from it for each pass over the split and
            each call of :meth:`images`.
        rank, size: of this process in its world.
    """

    def __init__(
        self,
        images: DeviceImages,
        batch_size: int,
        *,
        subset: Tensor | None = None,
        transform: Transform = "eval",
        augmentation: Augmentation | None = None,
        generator: torch.Generator | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        if transform == "train" and generator is None:
            raise ValueError("the train transform needs a generator")
        device = images.labels.device
        everything = torch.arange(len(images), device=device)
        self._images, self._batch_size, self._rank, self._size = images, batch_size, rank, size
        self._index = everything if subset is None else subset.to(device)
        self._augmentation = augmentation or Augmentation()
        self._generator = generator if transform == "train" else None
        self.labels = images.labels[self._index]

    def batches(self) -> Iterator[Batch]:
        """Iterate once over this process's share, in order.

        Shares are contiguous, in rank order, and differ by one image at most. All processes get
        the same number of batches, so each may reduce something after every one.
        """
        table = self._table(len(self._index))
        progress = torch.zeros((), device=self.labels.device)
        for start, stop in self._bounds():
            index = self._index[start:stop]
            images = self._images.augmented(index, table[start:stop])
            yield Batch(index, (images,), self.labels[start:stop], progress)

    def images(self, index: Tensor) -> Tensor:
        """Return [len(index), C, H, W] float32 images at positions in the split."""
        return self._images.augmented(index, self._table(len(index)))

    def _table(self, n: int) -> Tensor:
        """Return [n, P] rows for the transform; under the evaluation transform P is 0."""
        if self._generator is None:
            return torch.empty((n, 0), dtype=torch.int16, device=self.labels.device)
        table = augment.parameter_table(self._augmentation, n, self._generator)
        return table.to(self.labels.device)

    def _bounds(self) -> list[tuple[int, int]]:
        """Return the first and last position (exclusive) of each of this process's batches."""
        n = len(self._index)
        small, larger = divmod(n, self._size)
        first = self._rank * small + min(self._rank, larger)
        last = first + small + (self._rank < larger)
        # Cut where the largest share is cut, and never leave it a last batch of one: so a share
        # that is one shorter has as many batches.
        largest = small + (larger > 0)
        starts = list(range(0, largest, self._batch_size))
        if len(starts) > 1 and largest - starts[-1] == 1:
            starts.pop()
        edges = [*(first + start for start in starts), last]
        return [(start, stop) for start, stop in itertools.pairwise(edges) if start < stop]


@dataclasses.dataclass(frozen=True)
class Part:
    """A split as a cell uses it.

    Attributes:
        images: on the device; position i is a batch's index i.
        positions: [n] where these images are in the data set's own split.
        names: n file names, or None.
        counts: K numbers of images.
    """

    images: DeviceImages
    positions: npt.NDArray[np.int64]
    names: tuple[str, ...] | None
    counts: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.images)


@dataclasses.dataclass(frozen=True)
class Opened:
    """A data set, checked, cut as the recipe says, and on the device.

    Attributes:
        train: what a method trains on.
        val: what is set aside for selection and tuning, else the data set's own validation split,
            else None.
        test: what it is judged on.
        class_names: K names in the order of the labels.
        fingerprint: of the data set's content, before any cut.
    """

    train: Part
    val: Part | None
    test: Part
    class_names: tuple[str, ...]
    fingerprint: str

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        return self.train.images.shape

    @property
    def counts(self) -> tuple[int, ...]:
        """K numbers of training images."""
        return self.train.counts

    def part(self, name: str) -> Part:
        """Return ``train``, ``val`` or ``test``.

        Raises:
            UsageError: if there is no validation split, or for another name.
        """
        parts = {"train": self.train, "val": self.val, "test": self.test}
        found = parts.get(name)
        if found is None:
            hint = "; set data.validation above 0" if name == "val" else ""
            raise UsageError(f"the recipe's data has no split {name!r}{hint}")
        return found


def open_data(
    spec: DatasetSpec, data: Data, root: Path | None, device: torch.device | str = "cpu"
) -> Opened:
    """Read a data set, check it against its manifest, cut it, and put it on a device.

    Args:
        spec: the data set.
        data: the recipe's part about it.
        root: the user's data folder, or None.
        device: where to keep the images.

    Raises:
        DataMissing: with the files wanted.
        DataBad: if the files hold another split, other labels or other images than they should.
        UsageError: if the settings are wrong or the cut leaves a class without training images.
    """
    splits = spec.open(root, dataset_settings(spec, data))
    check_splits(spec, splits)
    kept, aside = cut(
        splits["train"].labels,
        len(spec.manifest.classes),
        fraction=data.fraction,
        validation=data.validation,
        seed=data.seed,
    )

    def load(name: str, positions: npt.NDArray[np.int64] | None = None) -> Part:
        chosen = np.arange(len(splits[name].labels)) if positions is None else positions
        return _part(spec, name, splits[name], chosen, device)

    val = load("train", aside) if aside.size else None
    if val is None and "val" in splits.by_name:
        val = load("val")
    return Opened(
        train=load("train", kept),
        val=val,
        test=load("test"),
        class_names=spec.manifest.classes,
        fingerprint=splits.fingerprint,
    )


def _part(
    spec: DatasetSpec,
    name: str,
    split: Split,
    positions: npt.NDArray[np.int64],
    device: torch.device | str,
) -> Part:
    """Read some images of a split and check that they are what the manifest says."""
    manifest, labels, images = spec.manifest, split.labels[positions], split.images(positions)
    channels, height, width = manifest.shape
    wanted = (len(positions), height or images.shape[1], width or images.shape[2], channels)
    if images.dtype != np.uint8 or images.shape != wanted:
        raise DataBad(
            f"{spec.name}, {name}: images are {images.dtype} {images.shape}, not uint8 {wanted}"
        )
    return Part(
        images=DeviceImages(images, labels, manifest.mean, manifest.std, device),
        positions=positions,
        names=None if split.names is None else tuple(split.names[i] for i in positions),
        counts=tuple(np.bincount(labels, minlength=len(manifest.classes)).tolist()),
    )
