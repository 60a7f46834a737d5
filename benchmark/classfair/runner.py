"""A matrix of cells, each run in a process of its own until its record is there or says why not.

What is done is decided by the files of the results folder, never by what a launcher says. Several
runners may share the folder: whoever has a cell's claim starts it, the others wait for its record.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from rich.console import Console

from classfair.display import Board, Display, Pace
from classfair.endings import explain
from classfair.interrupts import Interrupts
from classfair.outcome import Outcome, summary
from classfair.plan import train_images
from classfair.results import FAILURE, PROGRESS, CellState, Claim, Results
from classfair_registry.errors import ClassfairError
from classfair_registry.manager import Plugins
from classfair_registry.records import CellInfo, Failure, MatrixInfo, Progress
from classfair_registry.specs import Job, JobState, LauncherSpec, LaunchOptions, Resources

CELL_MODULE = "classfair.cell"
_WAIT_SECONDS = 0.25


def run(
    matrix: MatrixInfo,
    results: Path,
    plugins: Plugins,
    launcher: LauncherSpec,
    options: LaunchOptions,
    *,
    device: Literal["auto", "cpu", "cuda"],
    console: Console,
    allow_skips: bool = False,
    chosen: Collection[str] | None = None,
    minutes: float | None = None,
    module: str = CELL_MODULE,
) -> Outcome:
    """Run what is not done of a matrix, and return how it went.

    Asked to stop once (Ctrl-C or SIGTERM), the running cells write checkpoints and the run ends;
    asked twice, it ends at once.

    Args:
        matrix: its cells.
        results: folder that they go to.
        plugins: whose observers are told; nothing that one of them does ends a cell.
        launcher: where the cells run.
        options: of the launcher; ``tick`` is called a few times a second.
        device: that each cell runs on.
        console: to show how far it is.
        allow_skips: whether cells that cannot run are no reason for exit code 1.
        chosen: keys of the cells to run; None for all. The folder expects the others too.
        minutes: time limit of each cell.
        module: what a cell's process runs.

    Raises:
        UsageError: if the results folder cannot be written to.
    """
    folder = Results(results)
    folder.prepare()
    folder.expect(matrix)
    wanted = [cell for cell in matrix.cells if chosen is None or cell.key in chosen]
    board = Board(matrix.name, len(wanted))
    settings = _Settings(dataclasses.replace(options, device=device), minutes, module)
    with Display(console, board) as display, Interrupts() as interrupts:
        runner = _Runner(wanted, folder, plugins, launcher, settings, display, interrupts)
        interrupted = runner.run()
    outcome = dataclasses.replace(
        runner.outcome(),
        skipped=tuple(matrix.skipped),
        interrupted=interrupted,
        allow_skips=allow_skips,
    )
    for line in summary(outcome, len(wanted), folder):
        display.say(line)
    return outcome


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What is the same for all cells."""

    options: LaunchOptions
    minutes: float | None
    module: str

    def job(self, cell: CellInfo, folder: Path, cost: float) -> Job:
        device = self.options.device
        resources = Resources(
            threads=cell.recipe["threads"],
            devices=0 if device == "cpu" else 1,
            minutes=self.minutes,
            cost=cost,
        )
        return Job(self.module, (str(folder), device), folder, resources)


class _Runner:
    """The cells of a run, each in one of: queue, running, done, failed, preempted."""

    def __init__(
        self,
        cells: list[CellInfo],
        results: Results,
        plugins: Plugins,
        launcher: LauncherSpec,
        settings: _Settings,
        display: Display,
        interrupts: Interrupts,
    ) -> None:
        self.results, self.plugins, self.launcher = results, plugins, launcher
        self.settings, self.display, self.interrupts = settings, display, interrupts
        self.board = display.board
        self.cells = {results.folder_of(cell): cell for cell in cells}
        self.cached = 0
        self.failed: dict[str, tuple[CellInfo, CellState]] = {}
        self.complaints: list[str] = []
        self.claims: dict[str, tuple[CellInfo, Claim]] = {}
        self.queue = self._sorted_out(cells)
        self.earlier = {cell.key: _stamp(self._failure(cell)) for cell in self.queue}
        self.costs = {cell.key: _cost(cell, plugins) for cell in self.queue}
        self.queue.sort(key=lambda cell: -self.costs[cell.key])
        self.pace = Pace(self.costs, time.monotonic())
        self._seen: dict[str, tuple[int, int] | None] = {}

    def run(self) -> bool:
        """Run the queue; return whether it was interrupted."""
        if self.cached:
            self.display.say(f"{self.cached} of {self.board.total} cells are done already")
        try:
            while self.queue:
                jobs = self._jobs()
                first = next(jobs, None)
                if first is not None:
                    self._launch(itertools.chain([first], jobs))
                elif self.queue:
                    self._wait_for_others()
        except KeyboardInterrupt:
            return True
        finally:
            for cell, _ in list(self.claims.values()):
                self._settle(cell, self.results.state(cell))
        return False

    def outcome(self) -> Outcome:
        return Outcome(
            done=self.board.done,
            cached=self.cached,
            failed=tuple(self.failed.values()),
            preempted=self.board.preempted,
            left=len(self.queue),
            complaints=tuple(self.complaints),
        )

    # -- what is to be done --------------------------------------------------------------------

    def _sorted_out(self, cells: Iterable[CellInfo]) -> list[CellInfo]:
        """Count the cells that are done and return the others."""
        left = []
        for cell in cells:
            state = self.results.state(cell)
            self._complain([state.complaint] if state.complaint else [])
            if state.kind == "done":
                self.cached += 1
                self.board.done += 1
            else:
                left.append(cell)
        return left

    def _jobs(self) -> Iterator[Job]:
        """Yield a job whenever one is asked for, until no cell is to be had."""
        while (cell := self._take()) is not None:
            fresh = self.results.state(cell).kind != "preempted"
            self.pace.started(cell.key, fresh=fresh)
            try:
                folder = self.results.begin(cell)
            except OSError as error:
                raise ClassfairError(f"{error.filename}: {error.strerror}") from error
            yield self.settings.job(cell, folder, self.costs[cell.key])

    def _take(self) -> CellInfo | None:
        """Claim and return the costliest cell that nobody else has."""
        for cell in list(self.queue):
            claim = self.results.claim(cell)
            if claim is None:
                continue
            self.queue.remove(cell)
            if not self._done_by_others(cell):
                self.claims[cell.key] = cell, claim
                return cell
            claim.release()
        self.board.elsewhere = len(self.queue)
        return None

    def _done_by_others(self, cell: CellInfo) -> bool:
        """Take the result of another runner, if it left one since this run began."""
        state = self.results.state(cell)
        fresh = _stamp(self._failure(cell)) != self.earlier[cell.key]
        if state.kind == "done" or (state.kind == "failed" and fresh):
            self._settle(cell, state, ours=False)
            return True
        return False

    def _wait_for_others(self) -> None:
        self._tick()
        time.sleep(_WAIT_SECONDS)

    # -- what happens --------------------------------------------------------------------------

    def _launch(self, jobs: Iterable[Job]) -> None:
        options = dataclasses.replace(self.settings.options, tick=self._tick)
        stream = self.launcher.launch(jobs, options)
        try:
            for job, state in stream:
                cell = self.cells[job.folder]
                if state.kind == "started":
                    self._started(cell)
                else:
                    self._ended(cell, state)
                self.display.refresh()
        finally:
            # An iterator that is no generator has nothing to close.
            getattr(stream, "close", lambda: None)()

    def _started(self, cell: CellInfo) -> None:
        self.board.cells[cell.key] = cell
        self.board.running[cell.key] = None
        self.board.elsewhere = 0
        self.display.started(cell)
        self._notify("classfair_cell_started", cell=cell)

    def _ended(self, cell: CellInfo, job_state: JobState) -> None:
        """Find out how a cell ended, from its files first."""
        state = self.results.state(cell)
        if state.kind == "running":
            # Another process trains it; this one waited for the lock in vain.
            self._forget(cell)
            self.queue.append(cell)
            return
        if state.kind not in ("done", "failed"):
            failure = self._why(cell, state, job_state)
            if failure is not None:
                self._save(failure, self._failure(cell))
                state = CellState("failed", failure.kind, failure.message)
            else:
                state = CellState("preempted")
        self._settle(cell, state)

    def _why(self, cell: CellInfo, state: CellState, job_state: JobState) -> Failure | None:
        if state.complaint and job_state.exit_code == 0:
            return Failure(kind="error", message=state.complaint)
        return explain(job_state, self.results.folder_of(cell), self.settings.minutes)

    def _save(self, failure: Failure, path: Path) -> None:
        try:
            failure.save(path)
        except OSError as error:  # A full disk ends this cell, not the others.
            self._complain([f"{path}: {error.strerror}"])

    def _settle(self, cell: CellInfo, state: CellState, *, ours: bool = True) -> None:
        """Count a cell that ended and tell of it; observers hear only of this runner's cells."""
        self._forget(cell)
        if state.kind == "done":
            self.board.done += 1
        elif state.kind == "failed":
            self.board.failed += 1
            self.failed[cell.key] = (cell, state)
        elif state.kind == "preempted":
            self.board.preempted += 1
        else:  # Interrupted before there was anything to keep.
            self.queue.append(cell)
            return
        self.pace.over(cell.key, finished=state.kind == "done")
        self.display.ended(cell, state)
        if ours and state.record is not None:
            self._notify("classfair_cell_finished", cell=cell, record=state.record)
        elif ours and state.kind == "failed":
            self._notify("classfair_cell_failed", cell=cell, failure=self._told(cell, state))

    def _forget(self, cell: CellInfo) -> None:
        self.board.cells.pop(cell.key, None)
        self.board.running.pop(cell.key, None)
        self._seen.pop(cell.key, None)
        if cell.key in self.claims:
            self.claims.pop(cell.key)[1].release()

    def _told(self, cell: CellInfo, state: CellState) -> Failure:
        try:
            return Failure.load(self._failure(cell))
        except ClassfairError:
            return Failure(kind="error", message=state.message)

    def _failure(self, cell: CellInfo) -> Path:
        return self.results.folder_of(cell) / FAILURE

    # -- while it happens ----------------------------------------------------------------------

    def _tick(self) -> None:
        for cell in list(self.board.cells.values()):
            self._read_progress(cell)
        self.board.left = self.pace.left(time.monotonic())
        self.board.stopping = self.interrupts.asked
        self.display.refresh()
        self.settings.options.tick()
        self.interrupts.check()

    def _read_progress(self, cell: CellInfo) -> None:
        path = self.results.folder_of(cell) / PROGRESS
        stamp = _stamp(path)
        if stamp is None or stamp == self._seen.get(cell.key):
            return
        self._seen[cell.key] = stamp
        with contextlib.suppress(ClassfairError):  # The next one will be whole.
            progress = Progress.load(path)
            self.board.running[cell.key] = progress
            self.pace.at(cell.key, progress.done)
            self._notify("classfair_progress", cell=cell, progress=progress)

    def _notify(self, hook: str, **arguments: object) -> None:
        self._complain(self.plugins.notify(hook, **arguments))

    def _complain(self, complaints: Iterable[str]) -> None:
        for complaint in complaints:
            self.complaints.append(complaint)
            self.display.say(complaint)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what tells one version of a file from the next, None if it is not there."""
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_ino, state.st_mtime_ns


def _cost(cell: CellInfo, plugins: Plugins) -> float:
    """Return the time that a cell is expected to take, in any unit."""
    method: Mapping[str, float] = plugins.card("methods", cell.method.name).values
    return method["cost"] * float(cell.recipe["epochs"]) * train_images(cell, plugins)
