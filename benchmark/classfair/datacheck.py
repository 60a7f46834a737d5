"""Is a data set what its manifest says? Every file is read once; nothing is changed or dropped."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair import stamps
from classfair.recipe import Data
from classfair.split import split_problems
from classfair.stamps import dataset_settings
from classfair_registry.errors import DataBad
from classfair_registry.files import workers
from classfair_registry.specs import DatasetSpec, FileSplit, Split, Splits

_BLOCK = 1024
_ORDER = ("train", "val", "test")
_NAMED = 20

Progress = Callable[[int, int], None]
"""Called with the images that were read and all of them."""


@dataclasses.dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        name: of the data set.
        split: the way it is split.
        counts: images of each part.
        problems: what is wrong, one sentence each; every bad file is named.
        notes: what one should know and is not wrong.
        duplicates: pairs of equal images in two parts, as they are named; at most 20.
        fingerprint: of the content; None if it cannot be read.
    """

    name: str
    split: str
    counts: dict[str, int]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    duplicates: tuple[tuple[str, str], ...]
    fingerprint: str | None

    @property
    def good(self) -> bool:
        """Whether nothing is wrong."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**dataclasses.asdict(self), "good": self.good}


def check(
    spec: DatasetSpec,
    data: Data,
    root: Path | None,
    progress: Progress = lambda *_: None,
    *,
    allow_duplicates: bool = False,
) -> Report:
    """Read a whole data set and compare it with its manifest; a good one leaves a stamp.

    Args:
        spec: the data set.
        data: which way it is split.
        root: the user's data folder, or None.
        progress: told how many images were read.
        allow_duplicates: equal images in two parts are told and not held against the data.

    Raises:
        DataMissing: if its files are not there.
        UsageError: for wrong settings.
    """
    settings = dataset_settings(spec, data)
    try:
        spec.files(root, settings)
        splits = spec.open(root, settings)
    except DataBad as error:
        return Report(spec.name, data.split, {}, (str(error),), (), (), None)
    counts = {part: len(split.labels) for part, split in splits.by_name.items()}
    problems = list(split_problems(spec, splits, data.split))
    bad, found = _read_all(splits, progress)
    twins = _duplicates(splits, found)
    allowed = spec.manifest.duplicates
    fine = allow_duplicates or allowed is None or len(twins) <= allowed
    told = [_told(len(twins), fine=fine)] if twins else []
    fingerprint = None if bad else stamps.fingerprint(spec, data, root, splits)
    return Report(
        spec.name,
        data.split,
        counts,
        (*problems, *bad, *([] if fine else told)),
        tuple(told if fine else []),
        tuple(twins[:_NAMED]),
        fingerprint,
    )


def _told(twins: int, *, fine: bool) -> str:
    """Say how many images are in two parts, and what to do if none should be."""
    are = "image is" if twins == 1 else "images are"
    mend = (
        ""
        if fine
        else ": files were mixed up, or the data set was published so; get it again, "
        "or accept them with --allow-duplicates"
    )
    return f"{twins:,} {are} in an earlier part too{mend}"


Digests = dict[str, list[bytes | None]]
"""Hashes of the pixels of each part's images, None for one that cannot be read."""


def _read_all(splits: Splits, progress: Progress) -> tuple[list[str], Digests]:
    """Return a sentence for each bad file, and the hashes of all images."""
    total = sum(len(split.labels) for split in splits.by_name.values())
    bad: list[str] = []
    found: Digests = {}
    done = 0
    with ThreadPoolExecutor(workers()) as pool:
        for part, split in splits.by_name.items():
            found[part] = []
            for start in range(0, len(split.labels), _BLOCK):
                block = range(start, min(start + _BLOCK, len(split.labels)))
                for answer in _read_block(pool, split, block):
                    found[part].append(answer if isinstance(answer, bytes) else None)
                    if isinstance(answer, str):
                        bad.append(answer)
                done += len(block)
                progress(done, total)
    return bad, found


def _read_block(
    pool: ThreadPoolExecutor, split: Split, block: Sequence[int]
) -> Iterator[bytes | str]:
    """Yield the hash of each image's pixels, or what is wrong with it."""
    if not isinstance(split, FileSplit):
        yield from map(_hashed, split.images(np.array(block)))
        return

    def read(index: int) -> bytes | str:
        try:
            return _hashed(split.examined(index)[1])
        except DataBad as error:
            return str(error)

    yield from pool.map(read, block)


def _hashed(image: npt.NDArray[np.uint8]) -> bytes:
    content = hashlib.sha256(str(image.shape).encode())
    content.update(np.ascontiguousarray(image).data)
    return content.digest()


def _duplicates(splits: Splits, found: Digests) -> list[tuple[str, str]]:
    """Return (earlier, later) names of images that are equal, pixel by pixel, in two parts."""
    first: dict[bytes, tuple[str, int]] = {}
    twins = []
    for part in sorted(found, key=lambda name: (*_ORDER, name).index(name)):
        for index, content in enumerate(found[part]):
            if content is None:
                continue
            earlier = first.setdefault(content, (part, index))
            if earlier[0] != part:
                twins.append((_named(splits, *earlier), _named(splits, part, index)))
    return twins


def _named(splits: Splits, part: str, index: int) -> str:
    names = splits[part].names
    return f"{part} {names[index] if names is not None else index}"
