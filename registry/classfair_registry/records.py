"""What a cell is before, while and after it runs, and the JSON of it both ways."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, Self

import pydantic

from classfair_registry.errors import ClassfairError
from classfair_registry.files import digest, write_json

PROTOCOL = 1
"""Version of the engine's, data's and metrics' rules. Records of different protocols never share a
table. A method's own fix moves that method's revision, never this."""

KEY_VERSION = 1
"""Version of what the run key is a hash of."""

FailureKind = Literal["oom", "diverged", "timeout", "killed", "data", "plugin", "error"]


class Stored(pydantic.BaseModel):
    """A frozen value with strict JSON both ways: NaN and infinities become null, numpy is plain."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        plain: dict[str, Any] = finite(self.model_dump())
        return plain

    def save(self, path: Path) -> None:
        """Write the JSON file, whole or not at all."""
        write_json(path, self.to_json())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read the JSON file.

        Raises:
            ClassfairError: naming the file and the first thing that is wrong with it.
        """
        try:
            return cls.model_validate_json(path.read_bytes())
        except pydantic.ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"]) or "the file"
            raise ClassfairError(f"{path}: {place}: {first['msg']}") from error
        except OSError as error:
            raise ClassfairError(f"{path}: {error.strerror}") from error


def finite(value: Any) -> Any:
    """Return plain JSON values: numpy scalars and arrays unwrapped, NaN and infinities as None."""
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if hasattr(value, "tolist"):
        return finite(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value


class MethodInfo(Stored):
    """Which method, with everything that can change its numbers."""

    name: str
    label: str
    title: str
    plugin: str
    version: str
    revision: int
    settings: dict[str, Any]
    source: str
    """sha256 of the plugin's source file, as it was."""
    code: str | None = None
    """sha256 of its docstring-free syntax tree, for plugins outside a release; part of the key."""
    reduces_to: str | None = None
    """The method that it is equal to on this task, as its spec says."""
    budget: str = ""


class CellInfo(Stored):
    """``cell.json``: a cell with all settings resolved, written before it trains."""

    protocol: int = PROTOCOL
    key_version: int = KEY_VERSION
    key: str
    method: MethodInfo
    recipe: dict[str, Any]
    recipe_name: str
    recipe_key: str
    """Hash of the recipe and the data: cells that share it belong into one table."""
    fingerprint: str
    """Of the data set's content."""
    weights: str | None = None
    """sha256 of the weights file, if one is loaded."""
    code: dict[str, str] = {}
    """As ``MethodInfo.code``, of the data set's and the backbone's plugin (``dataset``,
    ``backbone``) where they are outside a release; part of the key."""
    seed: int
    track: Literal["default", "tuned"] = "default"
    ranking_run: bool = False
    """A dedicated ERM run that ranks the classes and stands in no table."""
    paths: dict[str, str | None] = {}
    """Folders and files of this machine (data root, weights, plugin files). Not in the key."""

    @property
    def folder(self) -> str:
        """The name of the cell's folder."""
        parts = (self.method.name, self.recipe_name, f"s{self.seed}", self.key[:8])
        return "--".join(slug(part) for part in parts)


class Progress(Stored):
    """``progress.json``: how far a running cell is."""

    phase: str
    done: float
    """Share of the whole run, 0 to 1."""
    step: int
    loss: float | None = None
    images_per_second: float | None = None
    seconds: float
    pid: int


class Failure(Stored):
    """``failure.json``: why a cell ended without a record. Never cached: it is tried again."""

    kind: FailureKind
    message: str
    step: int | None = None
    term: str | None = None
    traceback: str | None = None
    log: str | None = None
    """Path of the cell's log, relative to the results folder."""


class Cost(Stored):
    """What a run took."""

    images_forward: int
    images_backward: int
    steps: int
    seconds: dict[str, float]
    """By part: ``start``, ``train``, ``trace``, ``evaluate``."""
    peak_memory: int
    """Bytes: of the accelerator if one was used, else of the process."""


class Record(Stored):
    """``record.json``: what a finished cell leaves. Its presence is the done marker."""

    cell: CellInfo
    dataset: dict[str, Any]
    """plugin, version, split, classes, headline, train, validation and test images."""
    metrics: dict[str, float | None]
    class_accuracy: list[float | None]
    class_count: list[int]
    selection: dict[str, Any]
    """rule, phase and step of the state that was judged."""
    tuning: dict[str, Any] | None = None
    """trials, split and metric of the search that chose the settings, on the tuned track."""
    cost: Cost
    machine: dict[str, Any]
    """device, driver, torch and package versions, threads, determinism."""
    provenance: dict[str, Any]
    """git commit and dirty flag, command line, start and end as UTC, hours of interruptions."""
    digests: dict[str, str]
    """sha256 of the cell's other files by name."""
    result_digest: str
    """sha256 over metrics, predictions and trace: equal runs have equal ones."""
    own_digest: str = ""
    """sha256 of this record without this field: a record that was edited by hand is noticed."""

    def sealed(self) -> Record:
        """Return the record with its own digest."""
        return self.model_copy(update={"own_digest": self._seal()})

    def check(self, where: str) -> None:
        """Raise ClassfairError if the record was changed after it was written."""
        if self.own_digest != self._seal():
            raise ClassfairError(f"{where}: the record was edited after the run that wrote it")

    def _seal(self) -> str:
        return digest({k: v for k, v in self.to_json().items() if k != "own_digest"})


class Skipped(Stored):
    """A cell of a matrix that cannot or shall not run."""

    method: str
    """Label of the method."""
    recipe: str
    seed: int
    why: str
    asked: bool = False
    """Whether the matrix itself asks for it, rather than the method or the machine."""


class MatrixInfo(Stored):
    """``matrices/NAME.json``: all cells that a matrix expects, written before any of them runs."""

    name: str
    caption: str = ""
    cells: list[CellInfo]
    skipped: list[Skipped] = []


def slug(text: str) -> str:
    """Return ``text`` in lower-case letters, digits and single underscores, 40 at most."""
    kept = "".join(char if char.isascii() and char.isalnum() else " " for char in text.lower())
    return "_".join(kept.split())[:40] or "_"
