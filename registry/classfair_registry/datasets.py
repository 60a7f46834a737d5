"""What a data set must be, and what an opened one gives."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclasses.dataclass(frozen=True)
class Archive:
    """A file that can be downloaded.

    Attributes:
        url: where it is.
        checksum: ``md5:`` or ``sha256:`` and the digest in hexadecimal.
        size: in bytes, or None where it is not known.
        folder: under the data folder, where its content goes.
        unpack: whether it is a tar file whose content is wanted, or wanted as it is.
    """

    url: str
    checksum: str
    size: int | None = None
    folder: str = "."
    unpack: bool = True

    def __post_init__(self) -> None:
        if not re.fullmatch(r"md5:[0-9a-f]{32}|sha256:[0-9a-f]{64}", self.checksum):
            raise ValueError(f"archive {self.url}: checksum must be md5: or sha256: and the digest")

    @property
    def file(self) -> str:
        """The name of the file at its source."""
        return self.url.rpartition("/")[2]


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What a data set must be, against which the files are checked.

    Attributes:
        classes: class names in the order of their labels 0 .. K-1; two may be equal.
        counts: images per split, for the splits it provides (``train``, ``test``, maybe ``val``).
        shape: (channels, height, width) of the images as read, 0 where it varies.
        mean, std: per channel, of images scaled to [0, 1].
        licence, citation: of the data.
        sources: where people get it, one line each.
        headline: the metric that its literature reports.
        decode: how files become pixels.
        prompts: templates with ``{}`` for the class name, for text-initialised heads.
        splits: the same as ``counts`` for other ways to split than ``official``, by their names.
        per_class: fewest and most images of a class, by split (``train``), or by way and split
            (``zhou/train``); only where it is known.
        archives: what ``data prepare`` downloads; empty if it must be fetched by hand.
        duplicates: how many images of a part may be in an earlier one too (train, val, test); None
            where checksums show that the images are the published ones, whatever those are.
    """

    classes: tuple[str, ...]
    counts: Mapping[str, int]
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str
    citation: str
    sources: tuple[str, ...]
    headline: Literal["overall", "mean_class"] = "overall"
    decode: str = "uint8 as stored"
    prompts: tuple[str, ...] = ("a photo of a {}.",)
    splits: Mapping[str, Mapping[str, int]] = dataclasses.field(default_factory=dict)
    per_class: Mapping[str, tuple[int, int]] = dataclasses.field(default_factory=dict)
    archives: tuple[Archive, ...] = ()
    duplicates: int | None = 0

    def counts_of(self, split: str) -> Mapping[str, int]:
        """Return images per part of a way to split, such as ``official``."""
        return self.splits.get(split, self.counts)

    def per_class_of(self, split: str) -> dict[str, tuple[int, int]]:
        """Return the fewest and most images of a class by part of a way to split."""
        prefix = f"{split}/" if split in self.splits else ""
        parts = self.counts_of(split)
        found = {part: self.per_class.get(f"{prefix}{part}") for part in parts}
        return {part: bounds for part, bounds in found.items() if bounds is not None}

    def __post_init__(self) -> None:
        if len(self.classes) < 2:
            raise ValueError("a manifest needs at least two classes")
        for counts in (self.counts, *self.splits.values()):
            if not {"train", "test"} <= set(counts):
                raise ValueError("a manifest needs counts for train and test")
        if not len(self.mean) == len(self.std) == self.shape[0]:
            raise ValueError("mean and std need one value per channel")


class Split(Protocol):
    """One split of an opened data set."""

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """[n] labels, 0 .. K-1."""
        ...

    @property
    def names(self) -> Sequence[str] | None:
        """File names in the same order, or None where images have none."""
        ...

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return images [len(indices), height, width, channels] as stored."""
        ...


@runtime_checkable
class FileSplit(Split, Protocol):
    """A split whose images are files of any size, decoded when they are asked for.

    All of its methods may be called from several threads at once. ``images`` is for images that
    happen to be of one size.
    """

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """Return one image [height, width, channels], decoded.

        Raises:
            DataBad: naming the file and why it cannot be read.
        """
        ...

    def examined(self, index: int) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the sha256 of a file and its image, from one reading of the file.

        The digest is remembered, so that the fingerprint need not read the file again.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Splits:
    """An opened data set.

    Attributes:
        by_name: its splits.
        digest: a fingerprint of everything in them, or a function that returns it, for data whose
            reading takes minutes.
    """

    by_name: Mapping[str, Split]
    digest: str | Callable[[], str]

    def __getitem__(self, name: str) -> Split:
        return self.by_name[name]

    @functools.cached_property
    def fingerprint(self) -> str:
        """The fingerprint; found when it is first asked for."""
        return self.digest if isinstance(self.digest, str) else self.digest()
