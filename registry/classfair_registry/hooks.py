"""The hooks of classfair, for pluggy's project name ``classfair``.

The first six *provide*: each takes no argument and returns an iterable of specs of its kind. The
last four *observe*: what they return is ignored, and an observer that raises is reported once and
ends nothing. No hook is firstresult, historic or a wrapper: no plugin can change another's result.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from classfair_registry.records import CellInfo, Failure, Progress, Record
    from classfair_registry.specs import (
        BackboneSpec,
        DatasetSpec,
        LauncherSpec,
        MethodSpec,
        MetricSpec,
        ReporterSpec,
    )

PROJECT = "classfair"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def classfair_methods() -> Iterable[MethodSpec]:  # type: ignore[empty-body]
    """Return the methods that this plugin brings: ways to train."""


@hookspec
def classfair_datasets() -> Iterable[DatasetSpec]:  # type: ignore[empty-body]
    """Return the data sets that this plugin brings. The module must import without torch."""


@hookspec
def classfair_backbones() -> Iterable[BackboneSpec]:  # type: ignore[empty-body]
    """Return the networks that this plugin brings, without their classification heads."""


@hookspec
def classfair_metrics() -> Iterable[MetricSpec]:  # type: ignore[empty-body]
    """Return the metrics that this plugin brings. The module must import without torch."""


@hookspec
def classfair_launchers() -> Iterable[LauncherSpec]:  # type: ignore[empty-body]
    """Return the launchers that this plugin brings. The module must import without torch."""


@hookspec
def classfair_reporters() -> Iterable[ReporterSpec]:  # type: ignore[empty-body]
    """Return the table formats that this plugin brings. The module must import without torch."""


@hookspec
def classfair_cell_started(cell: CellInfo) -> None:
    """A cell was started. Called in the runner's process, as are the three below."""


@hookspec
def classfair_progress(cell: CellInfo, progress: Progress) -> None:
    """A running cell reported how far it is. Called at most a few times a second a cell."""


@hookspec
def classfair_cell_finished(cell: CellInfo, record: Record) -> None:
    """A cell finished and its record is on disk."""


@hookspec
def classfair_cell_failed(cell: CellInfo, failure: Failure) -> None:
    """A cell failed; the failure is on disk and the other cells go on."""
