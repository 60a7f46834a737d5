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
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.files import digest, file_digest
from classfair_registry.predictions import Floats, Predictions
from classfair_registry.records import PROTOCOL, CellInfo, Failure, MatrixInfo, Record, Skipped

PREDICTIONS = "predictions.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A finished cell: its record, and its predictions when they are asked for.

    Attributes:
        folder: of the cell.
        record: as it was read and checked.
    """

    folder: Path
    record: Record

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
            ClassfairError: naming the file, if it cannot be read.
        """
        return Predictions.load(self.folder / PREDICTIONS)

    def answers(self) -> Answers:
        """Read which test images were answered rightly; they are not kept.

        Raises:
            ClassfairError: naming the file, if it cannot be read.
        """
        return read_answers(self.folder / PREDICTIONS, len(self.record.class_count))


def load(results: Path) -> tuple[list[Run], list[str]]:
    """Return the finished runs of a results folder, sorted by folder, and the complaints.

    Raises:
        UsageError: if there is no such folder.
    """
    try:
        folders = sorted(entry.name for entry in os.scandir(results) if entry.is_dir())
    except OSError as error:
        raise UsageError(f"{results}: no results folder ({error.strerror})") from error
    paths = [results / name / "record.json" for name in folders if not name.startswith(".")]
    found = [_load_run(path) for path in paths]
    runs = [run for run in found if isinstance(run, Run)]
    complaints = [text for text in found if isinstance(text, str)]
    kept, doubled = _newest(runs)
    return kept, complaints + doubled


def load_matrices(results: Path) -> tuple[dict[str, MatrixInfo], list[str]]:
    """Return what each matrix of a results folder expects, sorted by name, and the complaints."""
    matrices, complaints = {}, []
    for path in sorted((results / "matrices").glob("*.json")):
        try:
            matrices[path.stem] = MatrixInfo.load(path)
        except ClassfairError as error:
            complaints.append(f"{error}; the matrix is left out")
    return matrices, complaints


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
