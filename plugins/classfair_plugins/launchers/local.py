"""Jobs as processes of this machine, each forked from a warm parent that has imported torch.

A job on an accelerator gets one of its own, shared by ``jobs_per_device``; jobs on the CPU share
its cores by the threads that they ask for. Each writes into ``log.txt`` of its folder. Whatever
ends a job touches no other, and none outlives the process that launched it: at its end, even by
SIGKILL, each is asked to stop as if by SIGTERM.

Jobs given as a sequence start longest first. Of any other iterable the next job is only taken when
there is room for it, so that whoever makes them can decide as late as possible.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import faulthandler
import importlib
import io
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from classfair_plugins.launchers._room import Room
from classfair_registry import hookimpl
from classfair_registry.specs import Job, JobState, LauncherSpec, LaunchOptions

LOG = "log.txt"
GRACE_SECONDS = 60.0
"""What a job has for its checkpoint between being asked to stop and being killed."""
TICK_SECONDS = 0.2
WARM = "CLASSFAIR_WARM"
"""Names, for the fork server, the modules to import ahead."""
BLOCKED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
"""Signals that the fork server does not meet."""
_SERVER_DIED = 255
_clock = time.monotonic


def launch(
    jobs: Iterable[Job], options: LaunchOptions, *, grace: float = GRACE_SECONDS
) -> Iterator[tuple[Job, JobState]]:
    """Run jobs and yield each with its state when it starts and when it ends.

    Closed or interrupted, it sends SIGTERM to the running jobs and waits; interrupted again, or
    after ``grace`` seconds, it kills them.

    Raises:
        UsageError: if CUDA is asked for and there is no device, or fewer than a job wants.
    """
    pool = _Pool(jobs, options, grace)
    try:
        yield from pool.run()
    finally:
        pool.stop()


class _Child:
    """A running job."""

    def __init__(self, job: Job, taken: tuple[str, ...]) -> None:
        self.job, self.taken = job, taken
        self.reason = ""
        self.process = _start(job, taken)
        minutes = job.resources.minutes
        self._end = _clock() + 60 * minutes if minutes is not None else math.inf
        self._killed_at = math.inf

    def ask(self, grace: float) -> None:
        """Ask it to stop; it is killed ``grace`` seconds later."""
        if self._killed_at == math.inf:
            self._killed_at = _clock() + grace
            self.process.terminate()

    def watch(self, grace: float) -> None:
        """Hold it to its time limit and to its promise to stop."""
        now = _clock()
        if now > self._end and self._killed_at == math.inf:
            self.reason = "timeout"
            self.ask(grace)
        elif now > self._killed_at:
            self.process.kill()

    def collect(self) -> JobState:
        """Return how it ended, once its sentinel is ready."""
        self.process.join()
        code, pid = self.process.exitcode, self.process.pid
        self.process.close()
        if code == _SERVER_DIED and pid is not None and _alive(pid):
            # The fork server itself was killed. Its child lives, but nobody learns how it ends.
            code = None
            if self._killed_at == math.inf:
                os.kill(pid, signal.SIGTERM)
        return JobState("ended", code, self.reason)


class _Pool:
    """The jobs that wait and those that run."""

    def __init__(self, jobs: Iterable[Job], options: LaunchOptions, grace: float) -> None:
        self._jobs = iter(_longest_first(jobs) if isinstance(jobs, Sequence) else jobs)
        self._next: Job | None = None
        self._tick, self._grace = options.tick, grace
        self._room = Room(options)
        self._running: list[_Child] = []

    def run(self) -> Iterator[tuple[Job, JobState]]:
        """Start and collect until nothing is left."""
        while True:
            while (child := self._start_one()) is not None:
                yield child.job, JobState("started")
                self._tick()
            if not self._running:
                return
            yield from [(child.job, child.collect()) for child in self._ended()]
            self._tick()

    def stop(self) -> None:
        """Ask what runs to stop, and wait; kill it after the grace or if interrupted again."""
        try:
            for child in self._running:
                child.ask(self._grace)
            while self._running:
                for child in self._ended():
                    child.collect()
                with contextlib.suppress(Exception):  # It may be why all this stops.
                    self._tick()
        except KeyboardInterrupt:
            for child in self._running:
                child.process.kill()
            for child in self._running:
                child.collect()

    def _start_one(self) -> _Child | None:
        if self._next is None and self._room.some:
            self._next = next(self._jobs, None)
        if self._next is None:
            return None
        taken = self._room.take(self._next.resources)
        if taken is None:
            return None
        job, self._next = self._next, None
        self._running.append(_Child(job, taken))
        return self._running[-1]

    def _ended(self) -> list[_Child]:
        """Wait a moment and return the children that ended, which run no more."""
        for child in self._running:
            child.watch(self._grace)
        ready = wait([child.process.sentinel for child in self._running], TICK_SECONDS)
        ended = [child for child in self._running if child.process.sentinel in ready]
        for child in ended:
            self._running.remove(child)
            self._room.give_back(child.job.resources, child.taken)
        return ended


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    return sorted(jobs, key=lambda job: -job.resources.cost)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _start(job: Job, taken: tuple[str, ...]) -> ForkServerProcess:
    context = multiprocessing.get_context("forkserver")
    environment = {
        **os.environ,
        **_threads(job.resources.threads),
        "CUDA_VISIBLE_DEVICES": ",".join(taken),
    }
    arguments = (job.module, job.args, str(job.folder), environment)
    process = context.Process(target=_child, args=arguments, name=job.folder.name)
    with _no_main():
        _ensure_server(job.module)
        process.start()
    return process


def _ensure_server(module: str) -> None:
    """Start the fork server, if there is none, with ``module`` imported and on one thread."""
    forkserver.set_forkserver_preload([f"{__package__}._warm"])
    # A linear algebra library makes its threads when it is loaded, and threads do not survive
    # a fork; cells set the number that they want by themselves. The safe path keeps the working
    # directory out of the server's, where a project's classfair_plugins.py would be taken for ours.
    with _environment({WARM: module, "PYTHONSAFEPATH": "1", **_threads(1)}):
        forkserver.ensure_running()


def _threads(number: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return dict.fromkeys(names, str(number))


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Hide ``__main__``: a child would import it anew, and needs nothing of it.

    So a script that runs a matrix needs no ``if __name__ == "__main__"``.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _child(
    module: str, arguments: tuple[str, ...], folder: str, environment: Mapping[str, str]
) -> None:
    """Be the job: runs in the new process and ends it with what ``main`` returns."""
    _set_signals()
    os.environ.clear()
    os.environ.update(environment)
    _log_into(Path(folder) / LOG)
    threading.Thread(target=_follow_parent, daemon=True).start()
    sys.exit(importlib.import_module(module).main(arguments))


def _set_signals() -> None:
    """Listen to requests to stop, and leave to the runner what concerns the whole terminal."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, BLOCKED)


def _log_into(path: Path) -> None:
    """Send what the process prints to the end of a file, at once and under a heading."""
    with path.open("a") as file:
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        file.write(f"== {now} process {os.getpid()}\n")
        file.flush()
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    for text in (sys.stdout, sys.stderr):
        if isinstance(text, io.TextIOWrapper):
            text.reconfigure(line_buffering=True)
    faulthandler.enable(2)


def _follow_parent() -> None:
    """Wait for the end of the launching process, then stop this one."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)


@hookimpl
def classfair_launchers() -> list[LauncherSpec]:
    """Provide the launcher."""
    summary = "processes of this machine, one for each GPU or as the CPU has cores"
    return [LauncherSpec("local", launch, summary)]
