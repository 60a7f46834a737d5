"""Images of a data set decoded and brought to a short side once, in a file that cells map.

A store is a folder ``classfair-cache/NAME-SIDE-IDENTITY`` below the data folder: ``pixels``, the
images' bytes one after the other; ``index.npz``, where each part's images begin and their sizes;
``about.json``. Its identity covers the data set's fingerprint, the short side and the versions of
what decodes, so a store of other images is never read. The pixels are those that decoding gives
each time, so a store changes the speed of a run and none of its numbers.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch

from classfair.exclusive import exclusive
from classfair.geometry import with_short_side
from classfair.images import Images, Look, ResidentImages, StreamedImages
from classfair.prepare import FOLDER
from classfair.resample import Pixels, Store
from classfair_registry.errors import DataBad, UsageError
from classfair_registry.files import digest, workers, write_json
from classfair_registry.specs import FileSplit, Splits

_VERSION = 1
_BLOCK = 256
_DEVICE_SHARE = 0.4
"""Of a device's free memory that images may take."""
_log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the images that are done and all of them."""


@dataclasses.dataclass(frozen=True)
class StoredPart:
    """The images of one part of a data set in a store.

    Attributes:
        pixels: [P, C] uint8 of the whole store, mapped.
        offset: [n] int64, first pixel of each image.
        height, width: [n] int64.
    """

    pixels: npt.NDArray[np.uint8]
    offset: npt.NDArray[np.int64]
    height: npt.NDArray[np.int64]
    width: npt.NDArray[np.int64]

    def image(self, index: int) -> Pixels:
        """Return an image [H, W, C], still mapped."""
        start, height, width = (int(a[index]) for a in (self.offset, self.height, self.width))
        flat = self.pixels[start : start + height * width]
        return flat.reshape(height, width, -1)


@dataclasses.dataclass(frozen=True)
class Stored:
    """An opened store: its parts by name."""

    folder: Path
    parts: Mapping[str, StoredPart]


# -- which images a run reads ----------------------------------------------------------------------


def file_images(
    split: FileSplit,
    positions: npt.NDArray[np.int64],
    look: Look,
    device: torch.device | str,
    short_side: int | None,
    stored: StoredPart | None,
) -> Images:
    """Return images that are files: from a store if there is one, else decoded each time.

    Args:
        split: the files.
        positions: which of them.
        look: what the network sees.
        device: of the run.
        short_side: that they are brought to first.
        stored: the same images, brought to it already.
    """
    labels = split.labels[positions]
    if stored is None:
        return StreamedImages(
            lambda i: with_short_side(split.image(int(positions[i])), short_side),
            labels,
            3,
            (0, 0),
            look,
            device,
        )
    if _fits(device, int((stored.height * stored.width)[positions].sum()) * 3):
        return ResidentImages(on_device(stored, positions, device), labels, (0, 0), look, device)
    return StreamedImages(
        lambda i: stored.image(int(positions[i])), labels, 3, (0, 0), look, device
    )


def array_images(
    images: Pixels, labels: npt.NDArray[np.int64], look: Look, device: torch.device | str
) -> Images:
    """Return images [n, H, W, C] of one size that are resized for the network."""
    count, height, width, channels = images.shape
    if not _fits(device, images.size):
        return StreamedImages(lambda i: images[i], labels, channels, (height, width), look, device)
    area, sides = height * width, np.array([height, width])
    flat = StoredPart(
        images.reshape(-1, channels),
        np.arange(count, dtype=np.int64) * area,
        *np.repeat(sides[:, np.newaxis], count, axis=1),
    )
    store = on_device(flat, np.arange(count), device)
    return ResidentImages(store, labels, (height, width), look, device)


def _fits(device: torch.device | str, size: int) -> bool:
    """Whether so many bytes of images should lie on a device: never on the CPU."""
    where = torch.device(device)
    if where.type != "cuda":
        return False
    free: int = torch.cuda.mem_get_info(where)[0]
    return size <= _DEVICE_SHARE * free


def on_device(
    part: StoredPart, positions: npt.NDArray[np.int64], device: torch.device | str
) -> Store:
    """Copy some images of a store to a device, block by block."""
    area = (part.height * part.width)[positions]
    offset = np.cumsum(area) - area
    size = (int(area.sum()), part.pixels.shape[1])
    pixels = torch.empty(size, dtype=torch.uint8, device=device)
    for start in range(0, len(positions), _BLOCK):
        block = positions[start : start + _BLOCK]
        found = [part.image(int(i)).reshape(-1, size[1]) for i in block]
        first, values = int(offset[start]), np.concatenate(found)
        pixels[first : first + len(values)] = torch.from_numpy(values).to(device)
    sides = (torch.from_numpy(a[positions]) for a in (part.height, part.width))
    return Store(pixels, torch.from_numpy(offset), *sides)


# -- stores on disk --------------------------------------------------------------------------------


def find_stored(
    name: str, root: Path | None, fingerprint: str, short_side: int | None
) -> Stored | None:
    """Return the store of a data set if there is a whole one, else None."""
    if root is None or short_side is None:
        return None
    folder = root / FOLDER / _identity(name, fingerprint, short_side)
    if not (folder / "about.json").is_file():
        _log.info("no store of %s at %d pixels: images are decoded each time", name, short_side)
        return None
    _log.info("images are read from %s", folder)
    return Stored(folder, _parts(folder))


def _parts(folder: Path) -> dict[str, StoredPart]:
    """Map a store.

    Raises:
        DataBad: if its files do not belong together.
    """
    try:
        about = json.loads((folder / "about.json").read_text())
        with np.load(folder / "index.npz") as index:
            arrays = {key: index[key] for key in index.files}
        if (folder / "pixels").stat().st_size != about["bytes"]:
            raise ValueError("pixels are of another size than noted")
        pixels = np.memmap(folder / "pixels", np.uint8, "r").reshape(-1, 3)
    except (OSError, ValueError, KeyError) as error:
        raise DataBad(f"{folder}: not a whole store ({error}); delete it") from error
    return {
        part: StoredPart(pixels, *(arrays[f"{part}/{key}"] for key in _COLUMNS))
        for part in about["parts"]
    }


_COLUMNS = ("offset", "height", "width")


def _identity(name: str, fingerprint: str, short_side: int) -> str:
    import PIL
    from PIL import features

    what = {
        "version": _VERSION,
        "fingerprint": fingerprint,
        "short_side": short_side,
        "decoder": [PIL.__version__, features.version_codec("jpg")],
    }
    return f"{name.replace(':', '_')}-{short_side}-{digest(what)[:16]}"


def build(
    name: str, splits: Splits, root: Path, short_side: int, progress: Progress = lambda *_: None
) -> Path:
    """Make the store of a data set unless it is there, and return its folder.

    Two processes that do this at once make it once: the second waits for the first. A store gets
    its name when it is whole, so one that is killed leaves nothing that is read.

    Args:
        name: of the data set.
        splits: it, opened.
        root: the user's data folder.
        short_side: in pixels.
        progress: told how many images are done.

    Raises:
        UsageError: if its images are of one size, or the folder cannot be written.
        DataBad: if an image cannot be decoded.
    """
    parts = {part: split for part, split in splits.by_name.items() if isinstance(split, FileSplit)}
    if len(parts) < len(splits.by_name):
        raise UsageError(f"{name}: its images are small and of one size; they need no store")
    target = root / FOLDER / _identity(name, splits.fingerprint, short_side)
    about = {"name": name, "fingerprint": splits.fingerprint, "short_side": short_side}
    try:
        target.parent.mkdir(exist_ok=True)
        with exclusive(target.parent / f".{target.name}.lock") as alone:
            if alone:
                clear_leftovers(target)
            if not (target / "about.json").is_file():
                _make(target, parts, short_side, about, progress)
    except OSError as error:
        raise UsageError(
            f"{error.filename or target}: {error.strerror}; the store of images goes there"
        ) from error
    return target


def clear_leftovers(target: Path) -> None:
    """Delete what processes that were killed have left beside a folder that they meant to make."""
    for left in target.parent.glob(f".{target.name}-*.part"):
        shutil.rmtree(left, ignore_errors=True)


def _make(
    target: Path,
    parts: Mapping[str, FileSplit],
    short_side: int,
    about: dict[str, Any],
    progress: Progress,
) -> None:
    made = Path(tempfile.mkdtemp(prefix=f".{target.name}-", suffix=".part", dir=target.parent))
    try:
        with (made / "pixels").open("wb") as file:
            index = _write_pixels(file, parts, short_side, progress)
            file.flush()
            os.fsync(file.fileno())
            size = file.tell()
        np.savez(made / "index.npz", **index)
        write_json(made / "about.json", {**about, "parts": list(parts), "bytes": size})
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():
                raise  # Else another process made it meanwhile, and it is equal.
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write_pixels(
    file: BinaryIO, parts: Mapping[str, FileSplit], short_side: int, progress: Progress
) -> dict[str, Any]:
    """Write every image, decoded in threads and in order; return the arrays of the index."""
    index: dict[str, Any] = {}
    total, done, offset = sum(len(split.labels) for split in parts.values()), 0, 0
    with ThreadPoolExecutor(workers()) as pool:
        for part, split in parts.items():
            rows: list[Sequence[int]] = []
            for start in range(0, len(split.labels), _BLOCK):
                block = range(start, min(start + _BLOCK, len(split.labels)))
                small = pool.map(
                    lambda i, of=split: with_short_side(of.image(i), short_side), block
                )
                for image in small:
                    height, width, _ = image.shape
                    rows.append((offset, height, width))
                    file.write(np.ascontiguousarray(image).data)
                    offset += height * width
                done += len(block)
                progress(done, total)
            columns = np.array(rows, np.int64).reshape(-1, 3).T
            index |= {
                f"{part}/{key}": column for key, column in zip(_COLUMNS, columns, strict=True)
            }
    return index
