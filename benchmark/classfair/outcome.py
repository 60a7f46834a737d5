"""How a run of a matrix ended."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from classfair.display import title
from classfair.results import LOG, CellState, Results
from classfair_registry.records import CellInfo, Skipped

INTERRUPTED = 130


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        done: cells whose record is there, cached ones included.
        cached: of them, those that were done before.
        failed: cells with why they failed.
        preempted: cells that were asked to stop.
        left: cells that were not come to.
        skipped: cells that the matrix skips.
        complaints: of observers, and about files that were left out of account.
        interrupted: whether the run was asked to stop.
    """

    done: int = 0
    cached: int = 0
    failed: tuple[tuple[CellInfo, CellState], ...] = ()
    preempted: int = 0
    left: int = 0
    skipped: tuple[Skipped, ...] = ()
    complaints: tuple[str, ...] = ()
    interrupted: bool = False
    allow_skips: bool = False

    @property
    def exit_code(self) -> int:
        """0 if all that was wanted is there; 130 if interrupted, else 1."""
        if self.interrupted:
            return INTERRUPTED
        unasked = [note for note in self.skipped if not note.asked]
        wrong = self.failed or self.preempted or self.left or (unasked and not self.allow_skips)
        return 1 if wrong else 0


def summary(outcome: Outcome, total: int, results: Results) -> Iterator[str]:
    """Yield the lines that end a run."""
    for cell, state in outcome.failed:
        log = results.folder_of(cell) / LOG
        yield f"failed: {title(cell)}: {state.reason}: {state.message} (log: {log})"
    parts = [f"{outcome.done} of {total} cells done"]
    for kind, number in (
        ("of them before", outcome.cached),
        ("failed", len(outcome.failed)),
        ("stopped with a checkpoint", outcome.preempted),
        ("not started", outcome.left),
        ("skipped", len(outcome.skipped)),
    ):
        parts += [f"{number} {kind}"] if number else []
    yield "; ".join(parts) + "."
    if outcome.interrupted or outcome.preempted:
        yield "The same command again goes on where this one stopped."
