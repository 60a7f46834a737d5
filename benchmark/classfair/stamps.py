"""Fingerprints of data sets, remembered so that ``plan`` knows them without reading the data.

A data set's fingerprint is a hash of its content, so a stamp ties it to the files that were read:
their paths, sizes and times. A stamp of files that changed since is no stamp.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import json
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from classfair.recipe import Data
from classfair_registry import settings as plugin_settings
from classfair_registry.errors import DataMissing, UsageError
from classfair_registry.files import digest, file_digest, write_json
from classfair_registry.manager import cache_folder, version
from classfair_registry.specs import DatasetSpec, Splits


def dataset_settings(spec: DatasetSpec, data: Data) -> Any:
    """Return the settings object for a data set's plugin, with the recipe's split in it.

    A data set that knows other splits than ``official`` has a setting named ``split``.

    Raises:
        UsageError: for an unknown or wrong setting, or a split that the data set does not know.
    """
    described = plugin_settings.describe(spec.settings)
    where = f"data ({spec.name})"
    resolved = plugin_settings.resolve(described, data.settings, where)
    own = next((item for item in described if item.name == "split"), None)
    if own is not None:
        if resolved["split"] not in (own.default, data.split):
            raise UsageError(
                f"{where}: its split is {data.split!r} but its settings say "
                f"{resolved['split']!r}; give it once, as data.split"
            )
        resolved["split"] = own.check(data.split, where)
    elif data.split != "official":
        raise UsageError(f"{where}: no split {data.split!r}; known: official")
    return plugin_settings.build(spec.settings, resolved)


def fingerprint(
    spec: DatasetSpec, data: Data, root: Path | None, opened: Splits | None = None
) -> str:
    """Return a data set's fingerprint: from its stamp, else by reading it and leaving one.

    Args:
        spec: the data set.
        data: the recipe's part that names settings and split.
        root: the user's data folder, or None.
        opened: the data set, if it is open already.

    Raises:
        DataMissing: if its files are not there.
        DataBad: if they cannot be read.
        UsageError: for wrong settings.
    """
    known = stamped(spec, data, root)
    if known is not None:
        return known
    chosen = dataset_settings(spec, data)
    before = _state(spec.files(root, chosen))
    found = (opened or spec.open(root, chosen)).fingerprint
    # Files that changed while they were read belong to no fingerprint.
    if _state(spec.files(root, chosen)) == before:
        _remember(_stamp_file(spec, chosen, data.split, before), found, before)
    return found


def stamped(spec: DatasetSpec, data: Data, root: Path | None) -> str | None:
    """Return the remembered fingerprint, or None if there is none for the files as they are.

    Raises:
        DataMissing: if the files are not there.
        UsageError: for wrong settings.
    """
    chosen = dataset_settings(spec, data)
    files = _state(spec.files(root, chosen))
    try:
        stamp = json.loads(_stamp_file(spec, chosen, data.split, files).read_text())
        return str(stamp["fingerprint"]) if stamp["files"] == files.content else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # A stamp that cannot be read costs one more reading of the data.


@dataclasses.dataclass(frozen=True)
class _Files:
    """Hashes of many files, so that a stamp is small: which they are, and how they are."""

    paths: str
    content: str


def _state(files: Sequence[str | PathLike[str]]) -> _Files:
    """Return what tells that files are the same as before: path, size and time of each."""
    paths, content = hashlib.sha256(), hashlib.sha256()
    try:
        # Text all through: a million paths are made and compared in seconds, Path objects are not.
        for path in sorted(map(os.path.abspath, files)):
            state = os.stat(path)  # noqa: PTH116 - see above
            paths.update(f"{path}\0".encode())
            content.update(f"{state.st_size} {state.st_mtime_ns}\0".encode())
    except OSError as error:
        raise DataMissing(f"{error.filename}: {error.strerror}") from error
    return _Files(paths.hexdigest(), content.hexdigest())


def _stamp_file(spec: DatasetSpec, chosen: Any, split: str, files: _Files) -> Path:
    """Return the stamp's path: one for each data set, settings, split, place and reader of it."""
    identity = {
        "name": spec.name,
        "settings": repr(chosen),
        "split": split,
        "paths": files.paths,
        "reader": [version(), _source_digest(spec)],
    }
    return cache_folder() / "stamps" / f"{spec.name.replace(':', '_')}-{digest(identity)[:24]}.json"


def _source_digest(spec: DatasetSpec) -> str:
    """Return a hash of the sources that read the data set: an edited reader may read otherwise.

    Those are the file of its ``open``, and the modules beside it that begin with an underscore.
    """
    reader = spec.open.func if isinstance(spec.open, functools.partial) else spec.open
    try:
        own = Path(inspect.getfile(inspect.unwrap(reader)))
    except (TypeError, OSError):
        return ""
    shared = sorted(own.parent.glob("_*.py"))
    return digest([file_digest(file) for file in (own, *shared)])


def _remember(path: Path, found: str, files: _Files) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, {"fingerprint": found, "files": files.content}, durable=False)
    except OSError:
        pass  # A read-only cache costs the next start another reading of the data.
