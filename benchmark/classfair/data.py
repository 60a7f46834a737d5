"""Data sets on the device of a run: checked, cut, and read as batches of normalised images."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from classfair import augment, stamps
from classfair.image_store import array_images, file_images, find_stored
from classfair.images import DeviceImages, Images, Look, Shape
from classfair.recipe import NORMALISATIONS, Augmentation, Data, Evaluation, look_problems
from classfair.split import check_labels, check_splits, cut
from classfair.stamps import dataset_settings
from classfair_registry.contracts import Batch
from classfair_registry.errors import DataBad, UsageError
from classfair_registry.specs import DatasetSpec, FileSplit, Split

__all__ = ["DeviceImages", "Images", "Opened", "Part", "Reader", "check_labels", "cut", "open_data"]

Transform = Literal["eval", "train"]


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
        images: Images,
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
        everything = torch.arange(len(images), device="cpu")
        self._images, self._batch_size, self._rank, self._size = images, batch_size, rank, size
        self._index = everything if subset is None else subset.cpu()
        self._augmentation = augmentation or Augmentation()
        self._generator = generator if transform == "train" else None
        self.labels = images.labels[self._index.to(images.labels.device)]

    def batches(self) -> Iterator[Batch]:
        """Iterate once over this process's share, in order.

        Shares are contiguous, in rank order, and differ by one image at most. All processes get
        the same number of batches, so each may reduce something after every one.
        """
        table = self._table(len(self._index))
        progress = torch.zeros((), device=self.labels.device)
        bounds = self._bounds()
        requests = ((self._index[start:stop], table[start:stop]) for start, stop in bounds)
        with contextlib.closing(self._images.read(requests)) as reading:
            for (start, stop), images in zip(bounds, reading, strict=True):
                index = self._index[start:stop].to(self.labels.device)
                yield Batch(index, (images,), self.labels[start:stop], progress)

    def images(self, index: Tensor) -> Tensor:
        """Return [len(index), C, H, W] float32 images at positions in the split."""
        return self._images.augmented(index, self._table(len(index)))

    def _table(self, n: int) -> Tensor:
        """Return [n, P] rows for the transform; under the evaluation transform P is 0."""
        if self._generator is None:
            return torch.empty((n, 0), dtype=torch.int16, device="cpu")
        return augment.parameter_table(self._augmentation, n, self._generator)

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

    images: Images
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
    def shape(self) -> Shape:
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
    spec: DatasetSpec,
    data: Data,
    root: Path | None,
    device: torch.device | str = "cpu",
    *,
    evaluation: Evaluation | None = None,
    augmentation: Augmentation | None = None,
) -> Opened:
    """Read a data set, check it against its manifest, cut it, and make its images ready.

    Args:
        spec: the data set.
        data: the recipe's part about it.
        root: the user's data folder, or None.
        device: of the run.
        evaluation: how images are brought to the network's size; as stored by default.
        augmentation: what the rows of a parameter table mean; crop and flip by default.

    Raises:
        DataMissing: with the files wanted.
        DataBad: if the files hold another split, other labels or other images than they should.
        UsageError: if the settings are wrong or the cut leaves a class without training images.
    """
    look = _look(spec, data, evaluation, augmentation)
    splits = spec.open(root, dataset_settings(spec, data))
    check_splits(spec, splits, data.split)
    fingerprint = (
        splits.digest
        if isinstance(splits.digest, str)
        else stamps.fingerprint(spec, data, root, splits)
    )
    kept, aside = cut(
        splits["train"].labels,
        len(spec.manifest.classes),
        fraction=data.fraction,
        counts=data.counts,
        validation=data.validation,
        seed=data.seed,
    )
    stored = find_stored(spec.name, root, fingerprint, data.short_side)

    def load(name: str, positions: npt.NDArray[np.int64] | None = None) -> Part:
        chosen = np.arange(len(splits[name].labels)) if positions is None else positions
        split = splits[name]
        if isinstance(split, FileSplit):
            of_part = stored.parts[name] if stored else None
            images = file_images(split, chosen, look, device, data.short_side, of_part)
        else:
            images = _array_images(spec, name, split, chosen, look, device)
        return _part(spec, split, chosen, images)

    val = load("train", aside) if aside.size else None
    if val is None and "val" in splits.by_name:
        val = load("val")
    return Opened(
        train=load("train", kept),
        val=val,
        test=load("test"),
        class_names=spec.manifest.classes,
        fingerprint=fingerprint,
    )


def _look(
    spec: DatasetSpec, data: Data, evaluation: Evaluation | None, augmentation: Augmentation | None
) -> Look:
    """Return what a network sees, after checking that this data set can be seen so."""
    manifest = spec.manifest
    for problem in look_problems(manifest.shape, data, evaluation or Evaluation()):
        raise UsageError(f"data ({spec.name}): {problem}")
    mean, std = NORMALISATIONS.get(data.normalisation, (manifest.mean, manifest.std))
    return Look(
        mean,
        std,
        evaluation or Evaluation(),
        augmentation or Augmentation(name="crop_flip"),
    )


def _part(
    spec: DatasetSpec, split: Split, positions: npt.NDArray[np.int64], images: Images
) -> Part:
    labels, names = split.labels[positions], split.names
    return Part(
        images=images,
        positions=positions,
        names=None if names is None else tuple(names[i] for i in positions),
        counts=tuple(np.bincount(labels, minlength=len(spec.manifest.classes)).tolist()),
    )


def _array_images(
    spec: DatasetSpec,
    name: str,
    split: Split,
    positions: npt.NDArray[np.int64],
    look: Look,
    device: torch.device | str,
) -> Images:
    """Read images of one size, check that they are what the manifest says, and keep them all."""
    images, labels = split.images(positions), split.labels[positions]
    channels, height, width = spec.manifest.shape
    wanted = (len(positions), height or images.shape[1], width or images.shape[2], channels)
    if images.dtype != np.uint8 or images.shape != wanted:
        raise DataBad(
            f"{spec.name}, {name}: images are {images.dtype} {images.shape}, not uint8 {wanted}"
        )
    crops = look.augmentation.name == "random_resized_crop"
    if look.evaluation.name == "stored" and not crops:
        return DeviceImages(images, labels, look.mean, look.std, device, look.augmentation)
    return array_images(images, labels, look, device)
