"""Reading a results folder: every finished run, and every complaint about what cannot be used.

Nothing here is fatal: a record that is torn, of another protocol or edited by hand is named and
left out, and of several records of one cell the newest counts.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pydantic

from classfair_leaderboard.answers import Answers, read_answers
from classfair_leaderboard.archive import SUFFIX, About, Archived, load_archive
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.files import digest, file_digest
from classfair_registry.predictions import Floats, Predictions
from classfair_registry.records import PROTOCOL, CellInfo, Failure, MatrixInfo, Record, Skipped

PREDICTIONS = "predictions.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A finished cell: its record, and its predictions when they are asked for.

    Attributes:
        folder: of the cell; the cell's name behind that of the file for one of an archive.
        record: as it was read and checked.
        kept: what an archive has of it.
        about: whose archive that is.
    """

    folder: Path
    record: Record
    kept: Archived | None = None
    about: About | None = None

    @property
    def seed(self) -> int:
        """Of the cell."""
        return self.record.cell.seed

    @property
    def finished(self) -> str:
        """When it finished: ISO 8601 in UTC, so that text order is time order."""
        return str(self.record.provenance.get("finished", ""))

    @functools.cached_property
    def accuracy(self) -> Floats:
        """[K] class accuracies in [0, 1], NaN for a class without test images."""
        return np.array(self.record.class_accuracy, float)

    @functools.cached_property
    def count(self) -> npt.NDArray[np.int64]:
        """[K] test images of each class."""
        return np.array(self.record.class_count, np.int64)

    def predictions(self) -> Predictions:
        """Read the predictions; they are not kept.

        Raises:
            ClassfairError: naming the file, if it cannot be read or is an archive.
        """
        if self.kept is not None:
            raise ClassfairError(f"{self.folder}: an archive has no predictions")
        return Predictions.load(self.folder / PREDICTIONS)

    def answers(self) -> Answers:
        """Read which test images were answered rightly; they are not kept.

        Raises:
            ClassfairError: naming the file, if it cannot be read.
        """
        if self.kept is None:
            return read_answers(self.folder / PREDICTIONS, len(self.record.class_count))
        if self.kept.answers is None:
            raise ClassfairError(f"{self.folder}: came without answers")
        return self.kept.answers

    def per_class(self, name: str) -> Floats:
        """Return [K] values of the classes, NaN where there are none.

        Args:
            name: one of :data:`classfair_leaderboard.archive.PER_CLASS`.

        Raises:
            ClassfairError: naming the file, if it cannot be read.
        """
        if self.kept is None:
            return np.asarray(getattr(self.predictions(), name), float)
        return self.kept.classes.get(name, np.full(len(self.record.class_count), np.nan))


def load(results: Path) -> tuple[list[Run], list[str]]:
    """Return the finished runs of a results folder or archive, sorted, and the complaints.

    A folder may hold archives besides cells.

    Raises:
        UsageError: if there is no such folder or file.
    """
    paths = [results / name / "record.json" for name in _folders(results)]
    found = [_load_run(path) for path in paths]
    runs = [run for run in found if isinstance(run, Run)]
    complaints = [text for text in found if isinstance(text, str)]
    for path in archives(results):
        archive = load_archive(path)
        complaints += archive.complaints
        runs += [
            Run(path / run.record.cell.folder, run.record, run, archive.about)
            for run in archive.runs
        ]
    kept, doubled = _newest(runs)
    return kept, complaints + doubled


def archives(results: Path) -> list[Path]:
    """Return the archives of a results folder, or the path itself if it is a file."""
    return [results] if results.is_file() else sorted(results.glob(f"*{SUFFIX}"))


def _folders(results: Path) -> list[str]:
    """Return the names of the folders that may be cells."""
    if results.is_file():
        return []
    try:
        names = sorted(entry.name for entry in os.scandir(results) if entry.is_dir())
    except OSError as error:
        raise UsageError(f"{results}: no results folder ({error.strerror})") from error
    return [name for name in names if not name.startswith(".")]


def load_matrices(results: Path) -> tuple[dict[str, MatrixInfo], list[str]]:
    """Return what each matrix of a results folder expects, sorted by name, and the complaints."""
    matrices, complaints = {}, []
    for path in sorted((results / "matrices").glob("*.json")):
        try:
            matrices[path.stem] = MatrixInfo.load(path)
        except ClassfairError as error:
            complaints.append(f"{error}; the matrix is left out")
    for path in archives(results):
        for matrix in load_archive(path).matrices:
            before = matrices.get(matrix.name)
            matrices[matrix.name] = joined(before, matrix) if before else matrix
    return matrices, complaints


def joined(one: MatrixInfo, other: MatrixInfo) -> MatrixInfo:
    """Return a matrix with the cells and notes of two of one name, each once."""
    cells = {cell.key: cell for cell in (*other.cells, *one.cells)}
    order = dict.fromkeys(cell.key for cell in (*one.cells, *other.cells))
    return MatrixInfo(
        name=one.name,
        caption=one.caption or other.caption,
        cells=[cells[key] for key in order],
        skipped=list(dict.fromkeys((*one.skipped, *other.skipped))),
    )


def why_missing(results: Path, cell: CellInfo) -> str:
    """Return, in a few words, why a cell has no record."""
    folder = results / cell.folder
    try:
        if (folder / "failure.json").is_file():
            failure = Failure.load(folder / "failure.json")
            return f"failed, {failure.kind}: {failure.message}"
        if (folder / "skipped.json").is_file():
            return f"skipped, {Skipped.load(folder / 'skipped.json').why}"
    except ClassfairError as error:
        return str(error)
    if (folder / "record.json").is_file():
        return "with a record that cannot be used"
    return "not finished" if (folder / "cell.json").is_file() else "not run"


def _load_run(path: Path) -> Run | str | None:
    """Return a run, what is wrong with it, or None where no record is."""
    try:
        return Run(path.parent, _read(path))
    except FileNotFoundError:
        return None
    except (ClassfairError, OSError) as error:
        return f"{error}; the record is left out"


def _read(path: Path) -> Record:
    """Read and check one record and the digest of its predictions."""
    raw = path.read_bytes()
    try:
        plain = json.loads(raw)
        protocol = plain["cell"]["protocol"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise ClassfairError(f"{path}: torn, or not a record ({error})") from error
    if protocol != PROTOCOL:
        raise ClassfairError(
            f"{path}: of protocol {protocol}, which never shares a table with ours"
        )
    try:
        record = Record.model_validate(plain)
    except pydantic.ValidationError:
        record = Record.load(path)  # Fails too, and says in a line what is wrong.
    # What Record.check does, without writing the values out anew: twice as fast.
    if plain.pop("own_digest", "") != digest(plain):
        record.check(str(path))
    _check_predictions(path.parent / PREDICTIONS, record)
    return record


def _check_predictions(path: Path, record: Record) -> None:
    try:
        found = file_digest(path)
    except OSError as error:
        raise ClassfairError(f"{path}: {error.strerror}") from error
    if found != record.digests.get(PREDICTIONS):
        raise ClassfairError(f"{path}: changed after the run that wrote it")


def _newest(runs: Iterable[Run]) -> tuple[list[Run], list[str]]:
    """Keep the newest run of each key; return a complaint for each key that had several."""
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        by_key[run.record.cell.key].append(run)
    kept, complaints = [], []
    for same in by_key.values():
        ranked = sorted(same, key=lambda run: (run.finished, run.folder.name))
        kept.append(ranked[-1])
        if len(ranked) > 1:
            older = ", ".join(run.folder.name for run in ranked[:-1])
            complaints.append(
                f"{ranked[-1].folder}: {len(ranked)} records of this cell; "
                f"this newest one counts, not {older}"
            )
    return kept, complaints
