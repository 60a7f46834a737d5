"""A strict reader of idx files, the format of MNIST and its successors.

An idx file is a magic number (two zero bytes, the type of the values, the number of dimensions),
the dimensions as big-endian 32-bit integers, and the values. All that is read here is uint8.
"""

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import numpy.typing as npt

from classfair_registry.errors import DataBad

_UINT8 = 0x08
_CHUNK = 1 << 20


def read_idx(path: Path, item: tuple[int, ...], most: int) -> npt.NDArray[np.uint8]:
    """Read a file of uint8 items, plain or gzipped.

    Args:
        path: ``.gz`` at its end says that it is gzipped.
        item: shape of one item: (height, width) of an image, () of a label.
        most: items that it may hold; a header that claims more is refused before anything is read.

    Returns:
        [n, *item].

    Raises:
        DataBad: naming the file and what is wrong: magic number, dimensions, truncated, too long.
    """
    try:
        with _opened(path) as file:
            count = _header(file, path, item, most)
            return _values(file, path, (count, *item))
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataBad(f"{path}: not a whole gzip file ({error}); get it again") from error
    except EOFError as error:
        raise DataBad(f"{path}: truncated: the compressed data end early; get it again") from error
    except OSError as error:
        raise DataBad(f"{path}: {error.strerror}") from error


def _opened(path: Path) -> BinaryIO:
    return cast("BinaryIO", gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _header(file: BinaryIO, path: Path, item: tuple[int, ...], most: int) -> int:
    """Check the header against what the file should be and return its number of items."""
    dimensions = 1 + len(item)
    magic = file.read(4)
    wanted = bytes((0, 0, _UINT8, dimensions))
    if magic != wanted:
        raise DataBad(
            f"{path}: begins with {magic.hex() or 'nothing'}, not {wanted.hex()}: this is no idx "
            f"file of bytes in {dimensions} dimension{'s' if dimensions > 1 else ''}; get it again"
        )
    sizes = file.read(4 * dimensions)
    if len(sizes) < 4 * dimensions:
        raise DataBad(f"{path}: truncated within its header; get it again")
    count, *found = struct.unpack(f">{dimensions}I", sizes)
    if tuple(found) != item:
        raise DataBad(f"{path}: holds items of size {tuple(found)}, not {item}")
    if count > most:
        raise DataBad(f"{path}: claims {count:,} items; the data set has {most:,} at most")
    return int(count)


def _values(file: BinaryIO, path: Path, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Read exactly the values that the header announced."""
    total = int(np.prod(shape))
    # In pieces, so that a header that claims much makes nothing large before the bytes are there.
    buffer = io.BytesIO()
    while piece := file.read(min(_CHUNK, total + 1 - buffer.tell())):
        buffer.write(piece)
    if buffer.tell() < total:
        raise DataBad(
            f"{path}: truncated: {buffer.tell():,} of {total:,} bytes of data; get it again"
        )
    if buffer.tell() > total:
        raise DataBad(f"{path}: goes on after the {total:,} bytes that its header announces")
    return np.frombuffer(buffer.getbuffer(), np.uint8).reshape(shape)
