"""From a command to its answer, and from a cell's start to its first step."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from classfair import library
from classfair.changes import Changes
from classfair.expand import read
from classfair.results import PROGRESS, Results
from classfair.stamps import fingerprint
from classfair_registry.files import file_digest
from classfair_registry.records import CellInfo, Cost, Record
from classfair_registry.specs import Job, LaunchOptions, Resources
from speed.figures import Row, Target
from speed.made import plugins
from speed.measure import Effort, Measured, Spread, compared, pairs, seconds

FULL, SMALL = "table1a", "quickstart"
"""The experiment to plan, and the one to do with until it ships."""


def rows() -> list[Row]:
    """Return the rows."""
    planned = FULL if FULL in library.shipped("experiments") else SMALL
    commands = {
        "--help": (0.3, ("--help",)),
        "list methods": (0.6, ("list", "methods")),
        f"plan {planned}": (0.6, ("plan", planned, "--results", "{folder}")),
        "status of 45 done cells": (0.5, ("status", "{folder}")),
    }
    return [
        *(command_row(told, bound, words) for told, (bound, words) in commands.items()),
        Row(
            "start.cell",
            "a further cell's start to its first step, local launcher",
            "none",
            Target(0.5, "seconds"),
            further_cell,
        ),
        Row(
            "quickstart",
            "classfair run quickstart, 45 cells",
            "none",
            Target(150, "seconds"),
            quickstart,
        ),
    ]


def command_row(told: str, bound: float, words: tuple[str, ...]) -> Row:
    """Return the row of a command."""
    return Row(
        f"start.{words[0].strip('-')}",
        f"classfair {told}",
        "python that does nothing",
        Target(bound, "seconds"),
        functools.partial(command, words),
    )


def command(words: Sequence[str], effort: Effort) -> Measured:
    """Time a command of the suite in a process of its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "results")
        if words[0] == "status":
            fill(folder)
        given = [word.replace("{folder}", str(folder)) for word in words]
        # As pip installs, compiled: the first run, which is not timed, fills the cache.
        compiled = {"PYTHONPYCACHEPREFIX": name, "PYTHONDONTWRITEBYTECODE": ""}
        ours = functools.partial(run, "-m", "classfair", *given, **compiled)
        rival = functools.partial(run, "-c", "pass", **compiled)
        return compared(pairs(ours, rival, effort.pick(9, 2)))


def quickstart(effort: Effort) -> Measured:
    """Time the whole experiment, once; a quick look takes one cell of it."""
    less = ("--only", "method=erm", "--only", "seed=0") if effort.quick else ()
    with tempfile.TemporaryDirectory() as folder:
        words = ("-m", "classfair", "run", SMALL, "--results", folder, "--launcher", "local")
        return Measured(ours=Spread.of([seconds(lambda: run(*words, *less))]))


def run(*arguments: str, **environment: str) -> None:
    """Run Python and drop what it prints; raise if it fails."""
    command, surroundings = [sys.executable, *arguments], os.environ | environment
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=surroundings)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        raise RuntimeError(f"exit code {done.returncode}: {last[0]}")


# -- a results folder --------------------------------------------------------------------------


def fill(root: Path) -> None:
    """Make a results folder in which every cell of the small experiment is done."""
    matrix, results = read(SMALL, plugins(), fingerprint), Results(root)
    results.prepare()
    results.expect(matrix.info)
    for cell in matrix.cells:
        finish(results.begin(cell), cell)


def finish(folder: Path, cell: CellInfo) -> None:
    """Leave what a finished cell leaves, with made-up numbers."""
    files = ("predictions.npz", "trace.npz")
    for name in files:
        (folder / name).write_bytes(bytes(50_000))
    record = Record(
        cell=cell,
        dataset={"name": cell.recipe["data"]["name"]},
        metrics={spec.name: 50.0 for spec in plugins().specs("metrics")},
        class_accuracy=[0.5] * 10,
        class_count=[60] * 10,
        selection={"rule": "last", "phase": "train", "step": 1},
        cost=Cost(
            images_forward=1, images_backward=1, steps=1, seconds={"train": 1.0}, peak_memory=1
        ),
        machine={},
        provenance={},
        digests={name: file_digest(folder / name) for name in files},
        result_digest="0" * 64,
    )
    record.sealed().save(folder / "record.json")


# -- a cell ------------------------------------------------------------------------------------


def further_cell(effort: Effort) -> Measured:
    """Time from the launcher's word that a cell has started to the first step it tells of.

    The first cell is left out: it also waits for the parent that the others are forked from.
    """
    changes = Changes(sets=("epochs=4",), only=("method=erm,mr2,sam",))
    matrix = read(SMALL, plugins(), fingerprint, changes).asked
    cells = matrix.cells[: effort.pick(9, 3)]
    launcher = plugins().get("launchers", "local")
    with tempfile.TemporaryDirectory() as name:
        results = Results(Path(name))
        results.prepare()
        jobs = [job(results.begin(cell)) for cell in cells]
        taken, begun = [], time.perf_counter()
        for one, state in launcher.launch(jobs, LaunchOptions(device="cpu", max_parallel=1)):
            if state.kind == "started":
                begun = time.perf_counter()
                watch = Watch(one.folder / PROGRESS)
            elif state.exit_code:
                raise RuntimeError((one.folder / "log.txt").read_text()[-300:])
            else:
                taken.append(watch.appeared() - begun)
    return Measured(ours=Spread.of(taken[1:]))


def job(folder: Path) -> Job:
    """Return the job of a cell's folder."""
    return Job("classfair.cell", (str(folder), "cpu"), folder, Resources(threads=1))


class Watch:
    """Notes when a file appears."""

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0.0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def appeared(self) -> float:
        """Return when it did, as ``time.perf_counter`` counts."""
        self._thread.join(timeout=1)
        if not self._at:
            raise RuntimeError(f"{self._path} never appeared")
        return self._at

    def _look(self) -> None:
        while not self._path.exists():
            time.sleep(0.002)
        self._at = time.perf_counter()
