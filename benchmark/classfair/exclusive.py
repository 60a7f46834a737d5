"""One process at a time, where files are made that several may want at once."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[bool]:
    """Hold the lock of a file, made if it is not there; wait for whoever holds it.

    The lock is the kernel's: it vanishes with its holder, however that dies.

    Yields:
        Whether it is held; False on a file system without locks, where only what is safe without
        one may be done.
    """
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:
            yield False
        else:
            yield True
