"""Getting a data set: downloaded, unpacked, and in its place only when it is whole."""

from __future__ import annotations

import shutil
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path

from classfair import download
from classfair.exclusive import exclusive
from classfair.recipe import Data
from classfair.stamps import dataset_settings
from classfair_registry.errors import DataBad, DataMissing, UsageError
from classfair_registry.specs import Archive, DatasetSpec

FOLDER = "classfair-cache"
"""Below the data folder, for what the suite makes there itself."""

Progress = Callable[[str, int, int], None]
"""Called with what is done, how much of it, and of how much, 0 if that is not known."""


def present(spec: DatasetSpec, data: Data, root: Path | None) -> bool:
    """Whether the files of a data set are where they are looked for."""
    try:
        spec.files(root, dataset_settings(spec, data))
    except DataMissing:
        return False
    return True


def obtain(
    spec: DatasetSpec, data: Data, root: Path | None, progress: Progress = lambda *_: None
) -> bool:
    """Download a data set unless it is there; return whether anything was downloaded.

    Two processes that do this at once download it once. Files are moved into place one by one when
    their archive is unpacked as a whole, so none is ever half there.

    Args:
        spec: the data set.
        data: which way it is split.
        root: the user's data folder, made if it is not there.
        progress: told how far it is.

    Raises:
        DataMissing: with what is wanted, if it cannot be downloaded.
        DataBad: if what a server sends is not the file.
        UsageError: without a folder.
    """
    official = Data(name=spec.name, settings=data.settings)
    marker = None if root is None else root / FOLDER / f".{spec.name}.incomplete"
    broken_off = marker is not None and marker.exists()
    if present(spec, data, root) and not broken_off:
        return False
    there = present(spec, official, root) and not broken_off
    if root is None or marker is None or there or not spec.manifest.archives:
        # What lacks is nothing that is downloaded: the data set says what it is.
        spec.files(root, dataset_settings(spec, data))
        return False
    try:
        marker.parent.mkdir(parents=True, exist_ok=True)
        with exclusive(marker.with_suffix(".lock")):
            if present(spec, official, root) and not marker.exists():
                return False  # Another process got it meanwhile.
            marker.touch()
            for archive in spec.manifest.archives:
                _place(archive, marker.parent, root, progress)
            marker.unlink()
    except OSError as error:
        raise UsageError(f"{error.filename or root}: {error.strerror}") from error
    spec.files(root, dataset_settings(spec, data))
    return True


def _place(archive: Archive, holder: Path, root: Path, progress: Progress) -> None:
    """Download one archive and put what it holds where it belongs."""
    told = f"downloading {archive.file}"
    file = download.fetch(archive, holder, lambda have, size: progress(told, have, size))
    target = root / archive.folder
    target.mkdir(parents=True, exist_ok=True)
    if not archive.unpack:
        file.replace(target / archive.file)
        return
    with tempfile.TemporaryDirectory(prefix=".", suffix=".part", dir=holder) as temporary:
        _unpack(file, Path(temporary), lambda n: progress(f"unpacking {archive.file}", n, 0))
        _move(Path(temporary), target)
    file.unlink()


def _unpack(file: Path, target: Path, progress: Callable[[int], None]) -> None:
    try:
        with tarfile.open(file) as archive:
            for number, member in enumerate(archive, 1):
                # The filter refuses names that lead out of the folder, links and devices.
                archive.extract(member, target, filter="data")
                progress(number)
    except (tarfile.TarError, EOFError) as error:
        raise DataBad(f"{file}: cannot be unpacked ({error}); delete it and try again") from error


def _move(source: Path, target: Path) -> None:
    """Move every file, each in one step, over whatever an earlier try has left."""
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        else:
            shutil.move(path, place)
