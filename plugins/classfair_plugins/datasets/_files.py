"""Images that are files of any size: how they become pixels, and splits made of them.

**Decode policy**, the same for every data set: 8-bit RGB, as stored.

- Grey is repeated over the three channels; palettes are looked up; CMYK, YCbCr, Lab and HSV are
  converted.
- What is transparent is laid on white, rather than showing the colour that lies hidden under it.
- Of 16 bits the upper 8 are taken, where a plain conversion would turn nearly everything white.
- The orientation that a camera noted is left alone unless the data set says otherwise.
- A file that is empty, truncated or no image is an error that names it; nothing is dropped.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import io
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from classfair_registry.errors import DataBad
from classfair_registry.files import workers
from classfair_registry.specs import Splits

if TYPE_CHECKING:
    from PIL import Image

DECODE = (
    "RGB of 8 bits; grey widened; transparent laid on white; 16 bits to their upper 8; "
    "orientation as stored"
)
_SIXTEEN_BITS = ("I;16", "I;16L", "I;16B", "I;16N", "I")
_PLAIN = ("1", "L", "P", "RGB", "RGBX", "CMYK", "YCbCr", "LAB", "HSV")
_ALPHA = ("LA", "La", "PA", "RGBA", "RGBa")
_BLOCK = 4096


class Member(NamedTuple):
    """A file inside a tar archive: where its bytes begin and how many there are."""

    archive: str
    offset: int
    size: int


Place = str | Member
"""Where the bytes of a file are: a path, or a part of an archive."""


@dataclasses.dataclass(eq=False)
class Files:
    """A split of image files; implements :class:`classfair_registry.specs.FileSplit`.

    Attributes:
        labels: [n] int64.
        names: n file names, with ``/`` between folders.
        places: n places of their bytes.
        upright: turn images as their camera noted.
    """

    labels: npt.NDArray[np.int64]
    names: Sequence[str]
    places: Sequence[Place]
    upright: bool = False

    def __post_init__(self) -> None:
        if not len(self.labels) == len(self.names) == len(self.places):
            raise ValueError("a split needs as many labels as names and places")
        self._digests: dict[int, str] = {}

    def image(self, index: int) -> npt.NDArray[np.uint8]:
        """Return an image [height, width, 3], decoded."""
        return decode(self._content(index), self._where(index), upright=self.upright)

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return images [len(indices), height, width, 3] of one size.

        Raises:
            DataBad: if a file cannot be read, or their sizes differ.
        """
        with ThreadPoolExecutor(workers()) as pool:
            images = list(pool.map(self.image, map(int, indices)))
        sizes = {image.shape for image in images}
        if len(sizes) > 1:
            one, two = sorted(sizes)[:2]
            raise DataBad(f"images of {one[:2]} and {two[:2]} pixels cannot be put together")
        return np.stack(images) if images else np.empty((0, 0, 0, 3), np.uint8)

    def examined(self, index: int) -> tuple[str, npt.NDArray[np.uint8]]:
        """Return the sha256 of a file and its image; the digest is remembered."""
        content = self._content(index)
        self._digests[index] = hashlib.sha256(content).hexdigest()
        return self._digests[index], decode(content, self._where(index), upright=self.upright)

    def digest(self, index: int) -> str:
        """Return the sha256 of a file, read unless it was examined."""
        if index not in self._digests:
            self._digests[index] = hashlib.sha256(self._content(index)).hexdigest()
        return self._digests[index]

    def _where(self, index: int) -> str:
        place = self.places[index]
        return place if isinstance(place, str) else f"{place.archive}, {self.names[index]}"

    def _content(self, index: int) -> bytes:
        place = self.places[index]
        try:
            if isinstance(place, str):
                return Path(place).read_bytes()
            with Path(place.archive).open("rb") as archive:
                archive.seek(place.offset)
                content = archive.read(place.size)
        except OSError as error:
            raise DataBad(f"{self._where(index)}: {error.strerror}") from error
        if len(content) < place.size:
            raise DataBad(
                f"{self._where(index)}: the archive ends after {len(content):,} of its "
                f"{place.size:,} bytes; get it again"
            )
        return content


def file_splits(classes: Sequence[str], splits: Mapping[str, Files]) -> Splits:
    """Return splits whose fingerprint covers the content of every file, read when it is asked for.

    It covers class names, labels, names without their endings, bytes and the decode policy; not
    paths, nor whether the files lie in folders or in archives.
    """
    return Splits(splits, functools.partial(_fingerprint, tuple(classes), splits))


def _fingerprint(classes: Sequence[str], splits: Mapping[str, Files]) -> str:
    total = hashlib.sha256("\0".join((DECODE, *classes)).encode())
    with ThreadPoolExecutor(workers()) as pool:
        for name, split in sorted(splits.items()):
            total.update(f"\0{name} {len(split.labels)} {split.upright}\0".encode())
            for start in range(0, len(split.labels), _BLOCK):
                block = range(start, min(start + _BLOCK, len(split.labels)))
                for index, digest in zip(block, pool.map(split.digest, block), strict=True):
                    stem = PurePosixPath(split.names[index]).with_suffix("")
                    total.update(f"{split.labels[index]} {stem} {digest}\n".encode())
    return total.hexdigest()


def decode(content: bytes, where: str, *, upright: bool = False) -> npt.NDArray[np.uint8]:
    """Return an image file's pixels [height, width, 3] under the decode policy.

    Args:
        content: of the file.
        where: the file, for messages.
        upright: turn it as its camera noted.

    Raises:
        DataBad: if it is empty, truncated, damaged or no image.
    """
    from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

    if not content:
        raise DataBad(f"{where}: empty, 0 bytes; get it again")
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise DataBad(
            f"{where}: some code set PIL.ImageFile.LOAD_TRUNCATED_IMAGES, which hides truncated "
            "files; take that out"
        )
    try:
        with Image.open(io.BytesIO(content)) as image:
            image.load()
            turned = ImageOps.exif_transpose(image) if upright else image
            return _rgb(turned)
    except UnidentifiedImageError as error:
        raise DataBad(f"{where}: no image; {begins(content)}") from error
    except DataBad as error:
        raise DataBad(f"{where}: {error}") from error
    except MemoryError:
        raise
    except Exception as error:  # decoders raise whatever they like on damaged files
        raise DataBad(f"{where}: cannot be decoded: {error}") from error


def begins(content: bytes) -> str:
    """Return how a file begins that is not what it should be, and what that may mean."""
    head = content[:200].lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "it is a web page, as servers send in place of a file; get it again"
    return f"it begins with {content[:8].hex() or 'nothing'}"


def _rgb(image: Image.Image) -> npt.NDArray[np.uint8]:
    if image.mode in _SIXTEEN_BITS:
        return _upper_bits(np.asarray(image))
    if image.mode in _ALPHA or "transparency" in image.info:
        return _on_white(image)
    if image.mode not in _PLAIN:
        raise DataBad(f"pixels of mode {image.mode} are not known here")
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _upper_bits(values: npt.NDArray[np.integer]) -> npt.NDArray[np.uint8]:
    """Return the upper byte of 16 bits, three times: what Pillow does for 16-bit colour too."""
    if values.min() < 0 or values.max() > 0xFFFF:
        raise DataBad(f"grey values from {values.min()} to {values.max()} are not of 16 bits")
    grey = (values >> 8).astype(np.uint8)
    return np.repeat(grey[..., np.newaxis], 3, axis=2)


def _on_white(image: Image.Image) -> npt.NDArray[np.uint8]:
    from PIL import Image as Images

    clear = image.convert("RGBA")
    white = Images.new("RGBA", image.size, "white")
    return np.asarray(Images.alpha_composite(white, clear).convert("RGB"))


def labelled(folder: Path, entries: Sequence[tuple[str, int]]) -> Files:
    """Return a split of the files below a folder with these names and labels."""
    names = [name for name, _ in entries]
    labels = np.array([label for _, label in entries], np.int64)
    return Files(labels, names, [f"{folder}/{name}" for name in names])


def paths(lists: Iterable[Path], splits: Mapping[str, Files]) -> list[str | Path]:
    """Return the files that splits were made from: their lists, and those that hold images."""
    places = (place for split in splits.values() for place in split.places)
    held = (place if isinstance(place, str) else place.archive for place in places)
    return [*lists, *dict.fromkeys(held)]
