"""A run as JSON lines: one line an event, in the file that ``CLASSFAIR_EVENTS`` names.

Each line has ``event`` (``started``, ``progress``, ``finished`` or ``failed``), ``time`` (UTC),
``folder``, ``key``, ``method``, ``recipe`` and ``seed``; a progress line also the fields of
:class:`~classfair_registry.records.Progress`, a finished one ``metrics`` and ``seconds``, a failed
one ``kind`` and ``message``. Without the variable nothing is written.
"""

from __future__ import annotations

import datetime as dt
import json
import os
from pathlib import Path
from typing import Any

from classfair_registry import hookimpl
from classfair_registry.records import CellInfo, Failure, Progress, Record

VARIABLE = "CLASSFAIR_EVENTS"


@hookimpl
def classfair_cell_started(cell: CellInfo) -> None:
    """Write that a cell was started."""
    _write("started", cell, {})


@hookimpl
def classfair_progress(cell: CellInfo, progress: Progress) -> None:
    """Write how far a cell is."""
    _write("progress", cell, progress.to_json())


@hookimpl
def classfair_cell_finished(cell: CellInfo, record: Record) -> None:
    """Write what a cell reached and how long it took."""
    result = record.to_json()
    seconds = sum(record.cost.seconds.values())
    _write("finished", cell, {"metrics": result["metrics"], "seconds": seconds})


@hookimpl
def classfair_cell_failed(cell: CellInfo, failure: Failure) -> None:
    """Write why a cell failed."""
    _write("failed", cell, {"kind": failure.kind, "message": failure.message})


def _write(event: str, cell: CellInfo, facts: dict[str, Any]) -> None:
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = {
        "event": event,
        "time": dt.datetime.now(dt.UTC).isoformat(timespec="milliseconds"),
        "folder": cell.folder,
        "key": cell.key,
        "method": cell.method.label,
        "recipe": cell.recipe_name,
        "seed": cell.seed,
        **facts,
    }
    # Opened for each line, so that several runners may append to one file.
    with Path(path).open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False, allow_nan=False) + "\n")
