"""Which test images a run answered rightly: all that its accuracies depend on, quick to read."""

from __future__ import annotations

import dataclasses
import functools
import io
import struct
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import Predictions

Labels = npt.NDArray[np.int64]
Right = npt.NDArray[np.bool_]

_HEADER = struct.Struct("<4s5H3I2H")
_DEFLATED = 8
_MAGIC = b"\x93NUMPY\x01\x00"


@dataclasses.dataclass(frozen=True, eq=False)
class Answers:
    """The answers to N test images of K classes, in the order of the test split.

    Attributes:
        label: [N] true classes.
        correct: [N] whether the answer is right.
        num_classes: K.
    """

    label: Labels
    correct: Right
    num_classes: int

    @functools.cached_property
    def count(self) -> npt.NDArray[np.int64]:
        """[K] test images of each class."""
        return np.bincount(self.label, minlength=self.num_classes)


def read_answers(path: Path, num_classes: int) -> Answers:
    """Read the answers from ``predictions.npz`` without the rest of it.

    The file must have been compared with its digest before: a file that this program wrote is read
    by its layout, and only one of another layout with all checks.

    Args:
        path: the file.
        num_classes: K.

    Raises:
        ClassfairError: naming the file, if it cannot be read.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ClassfairError(f"{path}: {error.strerror}") from error
    try:
        arrays = _members(raw, ("label", "top5"))
        label, top = arrays["label"].astype(np.int64), arrays["top5"]
        return Answers(label, np.asarray(top[:, 0] == label), num_classes)
    except (struct.error, zlib.error, ValueError, LookupError):
        predictions = Predictions.load(path)
        return Answers(predictions.label, predictions.correct, predictions.num_classes)


def _members(raw: bytes, wanted: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of an npz file by walking along its members.

    Ten times as fast as opening the archive, which matters when ten thousand of them are read.

    Raises:
        ValueError: if the file has another layout, or not all arrays.
    """
    found: dict[str, npt.NDArray[Any]] = {}
    place = 0
    while len(found) < len(wanted):
        magic, _, flags, method, *_, size, _, name_size, extra = _HEADER.unpack_from(raw, place)
        if magic != b"PK\x03\x04" or flags or method != _DEFLATED:
            raise ValueError("not a member as this program writes it")
        start = place + _HEADER.size + name_size + extra
        name = raw[place + _HEADER.size :][:name_size].decode().removesuffix(".npy")
        place = start + size
        if name in wanted:
            found[name] = _array(zlib.decompress(raw[start:place], -zlib.MAX_WBITS))
    return found


def _array(content: bytes) -> npt.NDArray[Any]:
    """Return the array of an npy file."""
    size = len(_MAGIC) + 2 + int.from_bytes(content[len(_MAGIC) :][:2], "little")
    if not content.startswith(_MAGIC):
        raise ValueError("not an array as this program writes it")
    shape, by_column, dtype = _header(content[:size])
    if by_column:
        raise ValueError("an array in another order")
    return np.frombuffer(content, dtype, offset=size).reshape(shape)


@functools.lru_cache(maxsize=1024)
def _header(head: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, order and type; kept, since files of one data set have the same."""
    stream = io.BytesIO(head)
    np.lib.format.read_magic(stream)
    return np.lib.format.read_array_header_1_0(stream)
