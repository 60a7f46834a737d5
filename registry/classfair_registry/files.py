"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from classfair_registry.errors import UsageError


@contextlib.contextmanager
def writing(path: Path, *, durable: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary file beside ``path``; on a clean exit it replaces ``path`` in one step.

    Args:
        path: the file to make or replace.
        durable: flush to the disk before the rename, so that a power cut leaves the old or the
            new content. Off for what may be lost, such as a progress line.
    """
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Make a rename in ``folder`` survive a power cut, where the file system can."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Write ``value`` as JSON, whole or not at all; NaN and infinities are an error."""
    text = json.dumps(value, indent=1, allow_nan=False, ensure_ascii=False)
    with writing(path, durable=durable) as file:
        file.write(text.encode() + b"\n")


def digest(value: Any) -> str:
    """Return the sha256 of ``value`` as canonical JSON, in hexadecimal."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def file_digest(path: Path) -> str:
    """Return the sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def workers() -> int:
    """Return how many threads read files: ``CLASSFAIR_WORKERS``, else the processors, 16 at most.

    Raises:
        UsageError: if the variable is not a number above zero.
    """
    given = os.environ.get("CLASSFAIR_WORKERS")
    if given is None:
        return min(16, len(os.sched_getaffinity(0)))
    if not given.isdecimal() or int(given) < 1:
        raise UsageError(f"CLASSFAIR_WORKERS={given}: not a number of threads above zero")
    return int(given)
