"""What a plugin hands over: one frozen spec a thing, each checking itself when it is made."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from classfair_registry.datasets import Archive, FileSplit, Manifest, Split, Splits
from classfair_registry.settings import NoSettings, describe

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch

    from classfair_registry.contracts import Method, Setup, Task
    from classfair_registry.predictions import Predictions
    from classfair_registry.tables import Table

__all__ = [
    "KINDS",
    "REGIMES",
    "Archive",
    "BackboneSpec",
    "Capabilities",
    "DatasetSpec",
    "FileSplit",
    "Job",
    "JobState",
    "LaunchOptions",
    "LauncherSpec",
    "Manifest",
    "MethodSpec",
    "MetricSpec",
    "Regime",
    "ReporterSpec",
    "Resources",
    "Split",
    "Splits",
]

Regime = Literal["scratch", "finetune", "probe"]
REGIMES: tuple[Regime, ...] = ("scratch", "finetune", "probe")
_NAME = re.compile(r"[a-z][a-z0-9_.:-]{0,63}")


class _Named:
    """Shared checks: a name that is safe in a path and a summary of one line."""

    name: str
    summary: str

    def _check(self) -> None:
        kind = type(self).__name__
        if not _NAME.fullmatch(self.name):
            raise ValueError(
                f"{kind}: name {self.name!r} must be lower case letters, digits and _ . : - "
                "and start with a letter"
            )
        if not self.summary or "\n" in self.summary:
            raise ValueError(f"{kind} {self.name!r}: summary must be one line")


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a method claims, each tested by the conformance kit.

    Attributes:
        distributed: a step on W processes does what one process does with the whole batch.
        resume: ``exact`` (bit for bit from any step) or ``restart`` (from the start only).
        capturable: its step can be captured in a CUDA graph: no sync, no shapes from data.
        decomposable: its loss is a mean over samples, so gradients may be accumulated.
    """

    distributed: bool = False
    resume: Literal["exact", "restart"] = "exact"
    capturable: bool = False
    decomposable: bool = False


@dataclasses.dataclass(frozen=True)
class MethodSpec(_Named):
    """A way to train.

    Attributes:
        name: the name on the command line and in YAML.
        title: the spelling of the paper, for tables.
        make: called as ``make(setup, settings)`` inside the training process.
        summary: one line.
        reference: authors, title, venue, year.
        cost: step time against ERM, in ERM steps, as expected from the passes it makes.
        settings: frozen dataclass, see :mod:`classfair_registry.settings`.
        revision: raised by hand when the method's numbers change.
        regimes: where it can be used.
        splits: the splits it reads; never ``test``.
        budget: empty if its phases share the recipe's passes; else what it takes beyond them.
        capabilities: what the conformance kit may hold it to.
        reduces_to: given the task and its settings as a mapping, the name of the method that
            it is equal to there, or None.
        example: settings under which a tiny run reaches every part of the method, for tests.
    """

    name: str
    title: str
    make: Callable[[Setup, Any], Method]
    summary: str
    reference: str
    cost: float
    settings: type = NoSettings
    revision: int = 1
    regimes: tuple[Regime, ...] = REGIMES
    splits: tuple[str, ...] = ("train",)
    budget: str = ""
    capabilities: Capabilities = Capabilities()
    reduces_to: Callable[[Task, Mapping[str, Any]], str | None] = lambda _task, _settings: None
    example: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check()
        describe(self.settings)
        if not set(self.regimes) <= set(REGIMES) or not self.regimes:
            raise ValueError(f"method {self.name!r}: regimes must be some of {REGIMES}")
        if "test" in self.splits:
            raise ValueError(f"method {self.name!r}: a method never reads the test split")
        if self.revision < 1 or self.cost <= 0:
            raise ValueError(f"method {self.name!r}: revision and cost must be positive")


@dataclasses.dataclass(frozen=True)
class DatasetSpec(_Named):
    """A data set.

    Attributes:
        open: called as ``open(root, settings)``; ``root`` is the user's data folder or None.
            Raises DataMissing (with the files wanted) or DataBad.
        files: called as ``files(root, settings)``; the files that ``open`` would read, found
            without reading them, so that a fingerprint can be remembered by path, size and time.
            Raises DataMissing.
        manifest: what it must be.
    """

    name: str
    title: str
    open: Callable[[Path | None, Any], Splits]
    files: Callable[[Path | None, Any], Sequence[str | PathLike[str]]]
    manifest: Manifest
    summary: str
    settings: type = NoSettings

    def __post_init__(self) -> None:
        self._check()
        describe(self.settings)


@dataclasses.dataclass(frozen=True)
class BackboneSpec(_Named):
    """A network without its classification head.

    Attributes:
        make: called as ``make(shape, settings)`` with (channels, height, width); returns a module
            that maps [B, C, H, W] to [B, num_features] and has the attribute ``num_features``.
        head: the head that goes with it unless the recipe says otherwise.
        weights: names of the weight files it can load; empty for training from scratch.
    """

    name: str
    title: str
    make: Callable[[tuple[int, int, int], Any], torch.nn.Module]
    summary: str
    reference: str
    settings: type = NoSettings
    head: Literal["linear", "cosine"] = "linear"
    weights: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check()
        describe(self.settings)


@dataclasses.dataclass(frozen=True)
class MetricSpec(_Named):
    """A number, or one per class, computed from predictions alone, without torch.

    Attributes:
        compute: maps :class:`~classfair_registry.predictions.Predictions` to a float or [K] array;
            NaN where it is not defined.
        better: which direction is better.
        unit: ``%``, ``points``, ``degrees`` or empty.
        definition: one or two sentences, or the formula.
        ranked: whether it depends on the ranking of the classes.
    """

    name: str
    title: str
    compute: Callable[[Predictions], float | npt.NDArray[np.float64]]
    better: Literal["higher", "lower", "neither"]
    unit: str
    definition: str
    ranked: bool = False

    @property
    def summary(self) -> str:  # type: ignore[override]
        """The definition, cut to one line."""
        return self.definition.splitlines()[0]

    def __post_init__(self) -> None:
        self._check()


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a job asks for.

    Attributes:
        threads: CPU threads.
        devices: accelerators; 0 runs on the CPU.
        minutes: time limit, or None.
        cost: expected time relative to other jobs, so that the longest start first.
    """

    threads: int = 1
    devices: int = 0
    minutes: float | None = None
    cost: float = 1.0


@dataclasses.dataclass(frozen=True)
class Job:
    """One process to run: a Python module with arguments, never a shell string.

    ``module`` has a function ``main(args) -> int``, so a launcher can either call it in a process
    that it forked or run :attr:`argv`.
    """

    module: str
    args: tuple[str, ...]
    folder: Path
    resources: Resources = Resources()

    @property
    def argv(self) -> tuple[str, ...]:
        """The same as an argument list for a Python interpreter."""
        return ("-m", self.module, *self.args)


@dataclasses.dataclass(frozen=True)
class JobState:
    """What a launcher knows of a job. What is *done* is decided by records, never by this.

    Attributes:
        kind: ``started`` or ``ended``.
        exit_code: of an ended one; negative for a signal, None where it is not known.
        reason: ``timeout`` if the launcher ended it, else empty.
    """

    kind: Literal["started", "ended"]
    exit_code: int | None = None
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class LaunchOptions:
    """How to run the jobs.

    Attributes:
        device: ``auto``, ``cpu`` or ``cuda``.
        jobs_per_device: processes on one accelerator at a time.
        max_parallel: processes at a time altogether, or None for what the machine has room for.
        tick: called a few times a second from the launcher's own loop.
    """

    device: Literal["auto", "cpu", "cuda"] = "auto"
    jobs_per_device: int = 1
    max_parallel: int | None = None
    tick: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class LauncherSpec(_Named):
    """A place to run jobs.

    Attributes:
        launch: called as ``launch(jobs, options)``; yields (job, state) as things happen. When
            its iterator is closed or interrupted it asks the running jobs to stop (SIGTERM:
            they write a checkpoint) and waits; interrupted again, it kills them.
    """

    name: str
    launch: Callable[[Iterable[Job], LaunchOptions], Iterator[tuple[Job, JobState]]]
    summary: str

    def __post_init__(self) -> None:
        self._check()


@dataclasses.dataclass(frozen=True)
class ReporterSpec(_Named):
    """A format for tables.

    Attributes:
        suffix: of the file it makes, with the dot.
        render: maps tables to the file's text.
    """

    name: str
    suffix: str
    render: Callable[[Sequence[Table]], str]
    summary: str

    def __post_init__(self) -> None:
        self._check()
        if not re.fullmatch(r"\.[a-z0-9]+", self.suffix):
            raise ValueError(f"reporter {self.name!r}: suffix {self.suffix!r} must look like .md")


KINDS: dict[str, type] = {
    "methods": MethodSpec,
    "datasets": DatasetSpec,
    "backbones": BackboneSpec,
    "metrics": MetricSpec,
    "launchers": LauncherSpec,
    "reporters": ReporterSpec,
}
"""The kinds of spec by the last word of the hook that provides them."""
