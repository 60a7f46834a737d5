"""The results folder: what is expected, what is done, and which cell is running.

::

    matrices/NAME.json      the cells that a matrix expects
    CELL/cell.json          the settings, before training
    CELL/lock               held by the process that trains the cell
    CELL/claim              held by the runner that means to train it
    CELL/checkpoint.pt, progress.json, log.txt
    CELL/record.json        the done marker, beside predictions.npz and trace.npz
    CELL/failure.json       why there is no record

The locks are the kernel's (flock): they vanish with their holder, however it dies.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from classfair_registry.errors import ClassfairError, UsageError, near
from classfair_registry.files import file_digest
from classfair_registry.records import CellInfo, Failure, MatrixInfo, Record, Skipped

CELL, RECORD, FAILURE = "cell.json", "record.json", "failure.json"
CHECKPOINT, PROGRESS, LOG = "checkpoint.pt", "progress.json", "log.txt"
LOCK, CLAIM, MATRICES = "lock", "claim", "matrices"
_POLL_SECONDS = 0.05

Kind = Literal["queued", "running", "done", "failed", "preempted", "skipped"]
KINDS: tuple[Kind, ...] = ("done", "failed", "running", "queued", "preempted", "skipped")


class Busy(ClassfairError):
    """Another process trains the cell."""


@contextlib.contextmanager
def locked(folder: Path, *, wait: float = 60.0) -> Iterator[None]:
    """Hold the lock of a cell, so that no second process trains it.

    Args:
        folder: of the cell.
        wait: seconds to give a predecessor that was asked to stop and writes its checkpoint.

    Raises:
        Busy: if the lock is still held after that.
    """
    end = time.monotonic() + wait
    while (handle := _try_lock(folder / LOCK)) is None:
        if time.monotonic() >= end:
            raise Busy(f"{folder}: another process has been training this cell for {wait:g} s")
        time.sleep(_POLL_SECONDS)
    try:
        yield
    finally:
        os.close(handle)


def is_running(folder: Path) -> bool:
    """Whether a process holds the lock of a cell; returns at once."""
    try:
        handle = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared, so that two who ask never see one another.
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


class Claim:
    """A runner's right to start a cell, until it is released or the runner dies."""

    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle

    def release(self) -> None:
        """Give the right back; more than once is harmless."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


@dataclasses.dataclass(frozen=True)
class CellState:
    """How far a cell is.

    Attributes:
        kind: as ``status`` counts it; never ``skipped``, which only a matrix says.
        reason: of a failed one its failure's kind.
        message: one line about the reason.
        record: of a done one.
        complaint: what is wrong with files that were left out of account, else empty.
    """

    kind: Kind
    reason: str = ""
    message: str = ""
    record: Record | None = None
    complaint: str = ""


class Results:
    """A results folder. It need not be there as long as nothing is written.

    Args:
        root: its path.

    Raises:
        UsageError: if something that is no folder has this name.
    """

    def __init__(self, root: Path) -> None:
        if root.exists() and not root.is_dir():
            raise UsageError(f"--results {root}: not a folder")
        self.root = root

    def prepare(self) -> None:
        """Make the folder if need be.

        Raises:
            UsageError: if it cannot be made or written to.
        """
        try:
            (self.root / MATRICES).mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise UsageError(f"--results {self.root}: {error.strerror}") from error

    # -- cells ---------------------------------------------------------------------------------

    def folder_of(self, cell: CellInfo) -> Path:
        """Return a cell's folder, which need not exist.

        Raises:
            UsageError: if the name is a link that leads out of the results folder.
        """
        folder = self.root / cell.folder
        if not self._inside(folder):
            raise UsageError(f"{folder} leads out of the results folder; remove the link")
        return folder

    def state(self, cell: CellInfo, *, verify: bool = False) -> CellState:
        """Return how far a cell is, from its files and its lock alone.

        Args:
            cell: which.
            verify: compare the digests of all its files instead of seeing whether they are there.
        """
        folder = self.folder_of(cell)
        record, complaint = self._record(folder, cell, verify=verify)
        if record is not None:
            return CellState("done", record=record)
        return dataclasses.replace(self._unfinished(folder), complaint=complaint)

    def states(self, name: str | None = None) -> list[tuple[CellInfo, CellState]]:
        """Return every expected cell with its state, of one matrix or of all."""
        return [(cell, self.state(cell)) for cell in self.cells(name)]

    def counts(self, name: str | None = None) -> dict[str, int]:
        """Return the number of cells by kind, those that a matrix skips included."""
        found = Counter(state.kind for _, state in self.states(name))
        found["skipped"] += len(self.skipped(name))
        return {kind: found[kind] for kind in KINDS}

    def begin(self, cell: CellInfo) -> Path:
        """Make a cell's folder ready for another try and return it.

        What an earlier try left is removed, except its checkpoint and its log; so are files that it
        was killed while writing. A record that does not count is put aside as
        ``record.json.rejected``. Only who has the cell's claim may do this.
        """
        folder = self.folder_of(cell)
        folder.mkdir(parents=True, exist_ok=True)
        for path in (folder / FAILURE, folder / PROGRESS, *folder.glob(".*.part")):
            path.unlink(missing_ok=True)
        if (folder / RECORD).exists():
            (folder / RECORD).replace(folder / f"{RECORD}.rejected")
        cell.save(folder / CELL)
        return folder

    def claim(self, cell: CellInfo) -> Claim | None:
        """Return the right to start a cell, or None while another runner or process has it."""
        folder = self.folder_of(cell)
        folder.mkdir(parents=True, exist_ok=True)
        handle = _try_lock(folder / CLAIM)
        if handle is None:
            return None
        claim = Claim(handle)
        if is_running(folder):
            claim.release()
            return None
        return claim

    def _record(self, folder: Path, cell: CellInfo, *, verify: bool) -> tuple[Record | None, str]:
        """Return a cell's record, or None and what is wrong with it."""
        path = folder / RECORD
        if not path.exists() and not path.is_symlink():
            return None, ""
        try:
            return self._checked(path, cell, verify=verify), ""
        except ClassfairError as error:
            return None, f"{error}; the cell counts as not done"

    def _checked(self, path: Path, cell: CellInfo, *, verify: bool) -> Record:
        if not self._inside(path):
            raise ClassfairError(f"{path} leads out of the results folder")
        record = Record.load(path)
        record.check(str(path))
        if record.cell.key != cell.key:
            raise ClassfairError(f"{path}: the record of another cell (key {record.cell.key})")
        for name, expected in record.digests.items():
            file = path.parent / name
            if Path(name).name != name or not self._inside(file):
                raise ClassfairError(f"{path}: {name!r} leads out of the results folder")
            if not file.is_file() or not file.stat().st_size:
                raise ClassfairError(f"{file}: missing, though the record names it")
            if verify and file_digest(file) != expected:
                raise ClassfairError(f"{file}: not what the record was made with")
        return record

    def _unfinished(self, folder: Path) -> CellState:
        if is_running(folder):
            return CellState("running")
        if self._has(folder / FAILURE):
            failure = _failure(folder / FAILURE)
            return CellState("failed", failure.kind, failure.message)
        return CellState("preempted" if self._has(folder / CHECKPOINT) else "queued")

    # -- matrices ------------------------------------------------------------------------------

    def expect(self, matrix: MatrixInfo) -> None:
        """Write down which cells a matrix expects, before any of them runs."""
        path = self._matrix_file(matrix.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        matrix.save(path)

    def names(self) -> list[str]:
        """Return the names of the matrices that were run into this folder."""
        found = (self.root / MATRICES).glob("*.json")
        return sorted(path.stem for path in found if self._inside(path))

    def matrix(self, name: str) -> MatrixInfo:
        """Return what a matrix expects.

        Raises:
            UsageError: for a name that is not there, with near ones.
            ClassfairError: if the file cannot be read.
        """
        if name not in self.names():
            raise UsageError(f"{self.root}: no matrix {name!r}{near(name, self.names())}")
        return MatrixInfo.load(self._matrix_file(name))

    def matrices(self, name: str | None = None) -> list[MatrixInfo]:
        """Return one matrix, or all of them sorted by name."""
        return [self.matrix(one) for one in ([name] if name is not None else self.names())]

    def cells(self, name: str | None = None) -> list[CellInfo]:
        """Return the expected cells, each once, of one matrix or of all."""
        return list(unique(cell for matrix in self.matrices(name) for cell in matrix.cells))

    def skipped(self, name: str | None = None) -> list[Skipped]:
        """Return what the matrices skip, each once."""
        found = (note for matrix in self.matrices(name) for note in matrix.skipped)
        return list(dict.fromkeys(found))

    def _matrix_file(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
            raise UsageError(f"matrix name {name!r}: use letters, digits, '_', '-' and '.'")
        return self.root / MATRICES / f"{name}.json"

    # -- paths ---------------------------------------------------------------------------------

    def _inside(self, path: Path) -> bool:
        return path.resolve().is_relative_to(self.root.resolve())

    def _has(self, path: Path) -> bool:
        return path.is_file() and self._inside(path)


def unique(cells: Iterable[CellInfo]) -> Iterator[CellInfo]:
    """Yield each cell once, by its key: matrices may share cells."""
    seen: set[str] = set()
    for cell in cells:
        if cell.key not in seen:
            seen.add(cell.key)
            yield cell


def _try_lock(path: Path) -> int | None:
    """Return an open descriptor that holds the lock, or None if somebody else does."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


def _failure(path: Path) -> Failure:
    try:
        return Failure.load(path)
    except ClassfairError as error:
        return Failure(kind="error", message=str(error))
