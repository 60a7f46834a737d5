"""What a person sees while a matrix runs.

On a terminal: a bar for the matrix, a line for each running cell, and above them what happened to
stay. Elsewhere: a line with the time for each start and each end.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from classfair.results import CellState
from classfair_registry.records import CellInfo, Progress

_REFRESH_SECONDS = 0.25
_MEASURE_SECONDS = 5.0
_SIDES: tuple[JustifyMethod, ...] = ("left", "left", "right", "left", "right")
"""Of the columns after method and recipe: seed, phase, share, loss, speed."""


class Pace:
    """How long the rest of a matrix takes, from what was measured so far.

    Args:
        costs: of the cells to run, by key, in any unit.
        now: seconds on a clock.
    """

    def __init__(self, costs: Mapping[str, float], now: float) -> None:
        self._costs = dict(costs)
        self._begun = now
        self._first: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._over: set[str] = set()

    def started(self, key: str, *, fresh: bool) -> None:
        """Note that a cell runs; one that is not fresh goes on from a checkpoint."""
        self._over.discard(key)
        self._first.pop(key, None)
        if fresh:
            self._first[key] = self._done[key] = 0.0

    def at(self, key: str, done: float) -> None:
        """Note the share of a cell that is done."""
        self._first.setdefault(key, done)
        self._done[key] = done

    def over(self, key: str, *, finished: bool) -> None:
        """Note that nothing more is to be done for a cell in this run."""
        self._over.add(key)
        if finished:
            self._first.setdefault(key, 0.0)
            self._done[key] = 1.0

    def left(self, now: float) -> float | None:
        """Return the seconds that are left, or None if too little was measured to say."""
        if now - self._begun < _MEASURE_SECONDS:
            return None
        gained = sum(
            self._costs[key] * (self._done[key] - first) for key, first in self._first.items()
        )
        rest = sum(
            cost * (1 - self._done.get(key, 0.0))
            for key, cost in self._costs.items()
            if key not in self._over
        )
        return rest * (now - self._begun) / gained if gained > 0 and rest > 0 else None


@dataclasses.dataclass
class Board:
    """The state of a matrix, for showing.

    Attributes:
        name: of the matrix.
        total: its cells that are wanted.
        done: of them, those that are done, cached ones included.
        failed, preempted: of them.
        elsewhere: of them, those that another runner has.
        running: last progress of each running cell, None before the first, by key.
        cells: the running cells by key.
        left: seconds, or None if not known.
        stopping: whether the running cells were asked to stop.
    """

    name: str
    total: int
    done: int = 0
    failed: int = 0
    preempted: int = 0
    elsewhere: int = 0
    running: dict[str, Progress | None] = dataclasses.field(default_factory=dict)
    cells: dict[str, CellInfo] = dataclasses.field(default_factory=dict)
    left: float | None = None
    stopping: bool = False

    @property
    def queued(self) -> int:
        """Cells that wait."""
        ended = self.done + self.failed + self.preempted
        return max(0, self.total - ended - len(self.running) - self.elsewhere)

    def counts(self) -> str:
        """Return the counts as one line, without those that are 0."""
        parts = [f"{self.done}/{self.total} done"]
        for kind in ("running", "elsewhere", "queued", "failed", "preempted"):
            value = getattr(self, kind)
            number = len(value) if kind == "running" else value
            parts += [f"{number} {kind}"] if number else []
        return ", ".join(parts)


class Display:
    """Shows a board and tells what happens; a context manager.

    Args:
        console: where to.
        board: what to show; whoever changes it calls :meth:`refresh`.
    """

    def __init__(self, console: Console, board: Board) -> None:
        self.console, self.board = console, board
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        self._shown = 0.0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self.refresh(now=True)
            self._live.stop()

    def started(self, cell: CellInfo) -> None:
        """Tell that a cell runs; on a terminal its line says so."""
        if self._live is None:
            self.say(f"{_clock()} started  {title(cell)}")

    def ended(self, cell: CellInfo, state: CellState) -> None:
        """Tell how a cell ended; on a terminal only what a person must know."""
        if self._live is None:
            self.say(f"{_clock()} {_end(cell, state)} ({self.board.counts()})")
        elif state.kind != "done":
            self.say(_end(cell, state))
        self.refresh(now=True)

    def say(self, text: str) -> None:
        """Print a line to stay."""
        self.console.print(Text(text), soft_wrap=True)

    def refresh(self, *, now: bool = False) -> None:
        """Draw the board anew, a few times a second at most unless told ``now``."""
        moment = time.monotonic()
        if self._live is None or (moment - self._shown < _REFRESH_SECONDS and not now):
            return
        self._shown = moment
        self._live.update(render(self.board, self.console.height), refresh=True)


def render(board: Board, height: int = 24) -> RenderableType:
    """Return the bar of a board and a line for each running cell.

    Args:
        board: what to show.
        height: lines of the terminal; cells beyond it are counted instead.
    """
    room = max(1, height - 5)
    shown = list(board.running.items())[:room]
    parts: list[RenderableType] = [_bar(board)]
    if shown:
        table = Table.grid(expand=True, padding=(0, 1, 0, 0))
        for _ in range(2):
            table.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        for side in _SIDES:
            table.add_column(justify=side, no_wrap=True)
        for key, progress in shown:
            table.add_row(*_line(board.cells[key], progress))
        parts.append(table)
    if len(board.running) > room:
        parts.append(Text(f"  and {len(board.running) - room} more", style="dim"))
    if board.stopping:
        note = "Stopping: the running cells write a checkpoint. Ctrl-C again stops at once."
        parts.append(Text(note, style="yellow", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def _bar(board: Board) -> RenderableType:
    partly = sum(progress.done for progress in board.running.values() if progress)
    ended = board.done + board.failed + partly
    row = Table.grid(expand=True, padding=(0, 1, 0, 0))
    row.add_column(no_wrap=True, overflow="ellipsis", max_width=30)
    row.add_column(ratio=1)
    row.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(total=max(1, board.total), completed=ended)
    left = "" if board.left is None else f"{duration(board.left)} left"
    row.add_row(Text(board.name, style="bold"), bar, Text(left))
    return Group(row, Text(board.counts(), no_wrap=True, overflow="ellipsis"))


def _line(cell: CellInfo, progress: Progress | None) -> tuple[Text, ...]:
    run = "rank" if cell.ranking_run else "seed"
    name = (cell.method.label, cell.recipe_name, f"{run} {cell.seed}")
    if progress is None:
        return tuple(map(Text, (*name, "starts", "", "", "")))
    loss = "" if progress.loss is None else f"loss {progress.loss:.3f}"
    rate = progress.images_per_second
    speed = "" if rate is None else f"{rate:,.0f} img/s"
    return tuple(map(Text, (*name, progress.phase[:10], f"{progress.done:.0%}", loss, speed)))


def title(cell: CellInfo) -> str:
    """Return what a cell is called in a line."""
    run = "ranking run" if cell.ranking_run else "seed"
    return f"{cell.method.label} on {cell.recipe_name}, {run} {cell.seed}"


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _end(cell: CellInfo, state: CellState) -> str:
    if state.kind == "done":
        return f"finished {title(cell)}"
    if state.kind == "failed":
        return f"failed   {title(cell)}: {state.reason}: {state.message}"
    return f"stopped  {title(cell)}"


def _clock() -> str:
    return dt.datetime.now().astimezone().strftime("%H:%M:%S")
