"""Results as one small file of JSON lines: to commit, to send, to submit.

An archive holds the records, which test images each run answered rightly (one bit an image), what
is known of each class, and which cells the matrices expect; not the predictions' probabilities, not
traces. So every accuracy under every ranking can be computed from it, and nothing else anew.

Lines, each an object with one key besides ``format``:

- ``about``: who gives the results, and how far they were checked (:class:`About`);
- ``labels``: true classes of the test images of a data set, by the hash that records name;
- ``matrix``: what a matrix expects;
- ``run``: a record with ``right`` and ``classes``.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pydantic

from classfair_leaderboard.answers import Answers, Labels
from classfair_registry.errors import ClassfairError
from classfair_registry.files import digest, writing
from classfair_registry.predictions import Floats, Predictions
from classfair_registry.records import PROTOCOL, CellInfo, MatrixInfo, Record, Skipped, finite

FORMAT = 1
SUFFIX = ".records.jsonl"
"""Of archives that are looked for in a results folder."""
PER_CLASS = (
    "vector_norm",
    "vector_angle",
    "feature_mean_square",
    "feature_spread",
    "feature_collapse",
)
_DIGITS = 7

Level = Literal["self-reported", "recomputed", "re-run"]


@dataclasses.dataclass(frozen=True)
class About:
    """Whose results an archive holds.

    Attributes:
        by: who gives them; empty for the suite's own.
        trust: ``self-reported`` as given, ``recomputed`` here from the answers, or ``re-run``: a
            seed was run again here and came out alike.
        how: what was done for that.
    """

    by: str = ""
    trust: Level = "recomputed"
    how: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class Archived:
    """What an archive has of one run.

    Attributes:
        record: as it was sealed.
        answers: None if they were not given.
        classes: [K] values by name, see :data:`PER_CLASS`.
    """

    record: Record
    answers: Answers | None
    classes: Mapping[str, Floats]


@dataclasses.dataclass(frozen=True, eq=False)
class Archive:
    """A file that was read.

    Attributes:
        about: whose results they are.
        runs: those that can be used.
        matrices: what is expected.
        complaints: a line about each line that cannot be used.
    """

    about: About
    runs: tuple[Archived, ...]
    matrices: tuple[MatrixInfo, ...]
    complaints: tuple[str, ...]


# -- writing -------------------------------------------------------------------------------------


def archived(record: Record, predictions: Predictions) -> Archived:
    """Return what is kept of a run. Paths of the machine that ran it are left out."""
    cell = record.cell.model_copy(update={"paths": {}})
    sealed = record.model_copy(update={"cell": cell, "own_digest": ""}).sealed()
    answers = Answers(predictions.label, predictions.correct, predictions.num_classes)
    classes = {name: getattr(predictions, name) for name in PER_CLASS}
    return Archived(sealed, answers, classes)


def save(
    path: Path, runs: Iterable[Archived], matrices: Iterable[MatrixInfo], about: About = About()
) -> None:
    """Write an archive, whole or not at all; the same results give the same bytes."""
    with writing(path) as file:
        for line in _lines(list(runs), list(matrices), about):
            text = json.dumps(
                {"format": FORMAT, **line},
                allow_nan=False,
                ensure_ascii=False,
                separators=(",", ":"),
            )
            file.write(text.encode() + b"\n")


def _lines(
    runs: Sequence[Archived], matrices: Sequence[MatrixInfo], about: About
) -> Iterator[dict[str, Any]]:
    yield {"about": dataclasses.asdict(about)}
    ordered = sorted(runs, key=lambda run: _place(run.record.cell))
    labels = {_label_hash(run.answers): run.answers for run in ordered if run.answers is not None}
    for name, answers in sorted(labels.items()):
        values = zlib.compress(answers.label.astype("<u2").tobytes(), 9)
        yield {
            "labels": {
                "hash": name,
                "classes": answers.num_classes,
                "values": base64.b64encode(values).decode(),
            }
        }
    there = {run.record.cell.key for run in ordered}
    for matrix in sorted(matrices, key=lambda matrix: matrix.name):
        yield {"matrix": _short_matrix(matrix, there)}
    for run in ordered:
        yield {"run": _run_line(run)}


def _place(cell: CellInfo) -> tuple[Any, ...]:
    return (
        cell.recipe_name,
        cell.recipe_key,
        cell.ranking_run,
        cell.method.label,
        cell.seed,
        cell.key,
    )


def _run_line(run: Archived) -> dict[str, Any]:
    line: dict[str, Any] = {"record": run.record.to_json()}
    if run.answers is not None:
        line["labels"] = _label_hash(run.answers)
        line["right"] = base64.b64encode(np.packbits(run.answers.correct).tobytes()).decode()
    classes = {name: values for name, values in run.classes.items() if np.isfinite(values).any()}
    line["classes"] = {
        name: finite([float(f"{value:.{_DIGITS}g}") for value in values])
        for name, values in classes.items()
    }
    return line


def _short_matrix(matrix: MatrixInfo, there: set[str]) -> dict[str, Any]:
    """Return a matrix with its cells by key; those that no record describes in full."""
    cells = [cell.model_copy(update={"paths": {}}) for cell in matrix.cells]
    return {
        "name": matrix.name,
        "caption": matrix.caption,
        "keys": [cell.key for cell in cells],
        "cells": [cell.to_json() for cell in cells if cell.key not in there],
        "skipped": [skipped.to_json() for skipped in matrix.skipped],
    }


def _label_hash(answers: Answers) -> str:
    content = answers.label.astype("<u2").tobytes()
    return hashlib.sha256(content + str(answers.num_classes).encode()).hexdigest()[:16]


# -- reading -------------------------------------------------------------------------------------


def load_archive(path: Path) -> Archive:
    """Read an archive; a line that cannot be used is named and left out.

    Raises:
        ClassfairError: naming the file, if it cannot be read at all.
    """
    try:
        found = path.stat()
        return _load_archive(path, (found.st_size, found.st_mtime_ns))
    except OSError as error:
        raise ClassfairError(f"{path}: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def _load_archive(path: Path, _stamp: tuple[int, int]) -> Archive:
    """Read an archive once, as its runs and its matrices are asked for apart."""
    reader = _Reader(path)
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        if line.strip():
            reader.take(number, line)
    return reader.archive()


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._about = About(trust="self-reported")
        self._labels: dict[str, Answers] = {}
        self._runs: list[Archived] = []
        self._matrices: list[tuple[str, dict[str, Any]]] = []
        self._complaints: list[str] = []

    def take(self, number: int, line: bytes) -> None:
        """Read one line."""
        where = f"{self._path}:{number}"
        try:
            plain = json.loads(line)
            if plain["format"] != FORMAT:
                raise ClassfairError(f"of format {plain['format']}, not {FORMAT}")
            self._read(where, plain)
        except ClassfairError as error:
            self._complaints.append(f"{where}: {error}; the line is left out")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            self._complaints.append(f"{where}: torn, or no line of results ({what})")

    def _read(self, where: str, plain: dict[str, Any]) -> None:
        if "about" in plain:
            self._about = _about(plain["about"])
        elif "labels" in plain:
            answers = _labels(plain["labels"])
            self._labels[_label_hash(answers)] = answers
        elif "matrix" in plain:
            self._matrices.append((where, plain["matrix"]))
        else:
            self._runs.append(_run(plain["run"], self._labels))

    def archive(self) -> Archive:
        """Return what was read."""
        cells = {run.record.cell.key: run.record.cell for run in self._runs}
        matrices = []
        for where, plain in self._matrices:
            try:
                matrix, lost = _matrix(plain, cells)
                matrices.append(matrix)
                if lost:
                    self._complaints.append(f"{where}: {lost} cells that it expects are not known")
            except (ValueError, LookupError, TypeError) as error:
                self._complaints.append(f"{where}: no matrix ({str(error).splitlines()[0]})")
        return Archive(self._about, tuple(self._runs), tuple(matrices), tuple(self._complaints))


def _about(plain: Mapping[str, Any]) -> About:
    if plain.get("trust") not in ("self-reported", "recomputed", "re-run"):
        raise ClassfairError(f"no trust level {plain.get('trust')!r}")
    texts = {key: str(plain.get(key, "")) for key in ("by", "how")}
    return About(trust=cast("Level", plain["trust"]), **texts)


def _labels(plain: Mapping[str, Any]) -> Answers:
    classes = int(plain["classes"])
    label = np.frombuffer(_inflated(plain["values"]), "<u2").astype(np.int64)
    if label.size and label.max() >= classes:
        raise ClassfairError(f"labels are not within 0..{classes - 1}")
    return Answers(label, np.zeros(len(label), bool), classes)


_MOST = 1 << 28
"""Bytes of labels that a line may inflate to."""


def _inflated(text: str) -> bytes:
    stream = zlib.decompressobj()
    try:
        content = stream.decompress(base64.b64decode(text, validate=True), _MOST)
    except zlib.error as error:
        raise ClassfairError(f"labels cannot be read ({error})") from error
    if stream.unconsumed_tail:
        raise ClassfairError("labels of more than 256 MiB")
    return content


def _run(plain: Mapping[str, Any], labels: Mapping[str, Answers]) -> Archived:
    record = _record(plain["record"])
    classes = {
        name: np.array(plain["classes"][name], float)
        for name in PER_CLASS
        if name in plain.get("classes", {})
    }
    count = len(record.class_count)
    if any(values.shape != (count,) for values in classes.values()):
        raise ClassfairError(f"values of other than {count} classes")
    if "right" not in plain:
        return Archived(record, None, classes)
    if plain["labels"] not in labels:
        raise ClassfairError(f"no labels {plain['labels']!r} above it")
    answers = _answers(plain["right"], labels[plain["labels"]])
    agree(record, answers)
    return Archived(record, answers, classes)


def _record(plain: Mapping[str, Any]) -> Record:
    if plain["cell"]["protocol"] != PROTOCOL:
        raise ClassfairError(
            f"of protocol {plain['cell']['protocol']}, which never shares a table with ours"
        )
    try:
        record = Record.model_validate(plain)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ClassfairError(f"{place}: {first['msg']}") from error
    if plain["own_digest"] != digest({k: v for k, v in plain.items() if k != "own_digest"}):
        raise ClassfairError("the record was edited after the run that wrote it")
    return record


def _answers(text: str, labels: Answers) -> Answers:
    packed = np.frombuffer(base64.b64decode(text, validate=True), np.uint8)
    if len(packed) != (len(labels.label) + 7) // 8:
        raise ClassfairError(f"answers are not of {len(labels.label)} images")
    right: npt.NDArray[np.bool_] = np.unpackbits(packed)[: len(labels.label)].astype(bool)
    return dataclasses.replace(labels, correct=right)


def agree(record: Record, answers: Answers) -> None:
    """Raise ClassfairError if a record's class accuracies are not those of the answers."""
    label: Labels = answers.label
    right = np.bincount(label[answers.correct], minlength=answers.num_classes)
    if answers.count.tolist() != record.class_count:
        raise ClassfairError("the record has other test images than its answers")
    told = np.array(record.class_accuracy, float) * answers.count
    if not np.allclose(np.nan_to_num(told), right, atol=1e-6):
        raise ClassfairError("the record's accuracies are not those of its answers")


def _matrix(plain: Mapping[str, Any], known: Mapping[str, CellInfo]) -> tuple[MatrixInfo, int]:
    """Return a matrix, and how many of its cells are described nowhere."""
    cells = {cell.key: cell for cell in map(CellInfo.model_validate, plain["cells"])}
    cells.update((key, known[key]) for key in plain["keys"] if key in known)
    matrix = MatrixInfo(
        name=str(plain["name"]),
        caption=str(plain["caption"]),
        cells=[cells[key] for key in plain["keys"] if key in cells],
        skipped=[Skipped.model_validate(each) for each in plain["skipped"]],
    )
    return matrix, len(plain["keys"]) - len(matrix.cells)
