"""Why a cell's process ended, where the cell itself left no word of it."""

from __future__ import annotations

import signal
from pathlib import Path

from classfair.results import LOG
from classfair_registry.records import Failure, FailureKind
from classfair_registry.specs import JobState

PREEMPTED = 75
"""Exit code of a cell that was asked to stop and wrote its checkpoint."""
_ASKED = {PREEMPTED, -signal.SIGTERM, -signal.SIGUSR1}
_LOG_LINES = 30
_LOG_BYTES = 20_000


def explain(state: JobState, folder: Path, minutes: float | None = None) -> Failure | None:
    """Return why there is no record, or None if the cell was merely asked to stop.

    Args:
        state: what the launcher knows.
        folder: of the cell.
        minutes: its time limit.
    """
    if state.reason != "timeout" and state.exit_code in _ASKED:
        return None
    lines = last_words(folder / LOG)
    kind, message = _cause(state, lines, minutes)
    return Failure(
        kind=kind,
        message=message,
        traceback="\n".join(lines) or None,
        log=f"{folder.name}/{LOG}",
    )


def _cause(state: JobState, lines: list[str], minutes: float | None) -> tuple[FailureKind, str]:
    code = state.exit_code
    if state.reason == "timeout":
        limit = "its time limit" if minutes is None else f"its limit of {minutes:g} minutes"
        return "timeout", f"took longer than {limit}; with a longer one it goes on where it was"
    if code is None:
        return "killed", "nobody saw how it ended: the process that starts cells was killed"
    if code == -signal.SIGKILL:
        advice = "if nobody did it, the memory ran out: run fewer cells at a time"
        return "killed", f"killed by SIGKILL; {advice}"
    said = f"; its last line was: {lines[-1]}" if lines else ""
    if code < 0:
        return "killed", f"killed by {_signal_name(-code)}{said}"
    if code == 1:  # What Python returns for an exception that nobody caught.
        return "error", lines[-1] if lines else "ended with exit code 1 and left no word"
    return "plugin", f"something ended the process with exit code {code} before it was done{said}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def last_words(log: Path) -> list[str]:
    """Return the last lines of a cell's log that belong to its last try, without empty ones."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    lines = [line.rstrip() for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith("== ")]
    own = lines[starts[-1] + 1 :] if starts else lines
    return [line for line in own if line][-_LOG_LINES:]
