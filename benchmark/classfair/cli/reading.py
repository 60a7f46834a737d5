"""``status`` and ``report``: what is in a results folder."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classfair.cli.common import (
    RESULTS,
    AsJson,
    MatrixOption,
    PluginFiles,
    RankingOption,
    checked_folder,
    checked_ranking,
    checked_results,
    console,
    find_plugins,
    note,
    print_json,
    print_report,
    read_report,
)
from classfair_registry.errors import ClassfairError

if TYPE_CHECKING:
    from classfair.results import CellState, Results
    from classfair_leaderboard import Report
    from classfair_registry.manager import Plugins
    from classfair_registry.records import CellInfo

_WATCH_SECONDS = 1.0
Folder = Annotated[Path, typer.Argument(metavar="DIR", envvar="CLASSFAIR_RESULTS")]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("status")(status)
    app.command("report")(report)


def status(
    folder: Folder = RESULTS,
    experiment: MatrixOption = None,
    json: AsJson = False,
    watch: Annotated[bool, typer.Option("--watch", help="Go on until nothing is left.")] = False,
) -> None:
    """Say how many cells are done, failed, running or queued, and why those failed."""
    from classfair.results import Results

    checked_folder(folder, "DIR")
    results = Results(folder)
    if json:
        print_json(_told(results, experiment))
    elif watch:
        _watch(results, experiment)
    else:
        print("\n".join(_lines(_told(results, experiment))))


def report(
    context: typer.Context,
    folder: Folder = RESULTS,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="OUT", help="Folder to write the tables to.")
    ] = None,
    experiment: MatrixOption = None,
    ranking: RankingOption = None,
    formats: Annotated[
        list[str] | None,
        typer.Option("--format", metavar="NAME", help="A reporter; may be repeated."),
    ] = None,
    metrics: Annotated[
        list[str] | None,
        typer.Option("--metric", metavar="NAME", help="One more column; may be repeated."),
    ] = None,
    paper: Annotated[
        bool, typer.Option("--paper", help="Also the MR2 paper's numbers and claims beside ours.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Compute every metric anew and compare.")
    ] = False,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Print the leaderboards; with --out write them as Markdown, CSV, LaTeX and as a page."""
    checked_results(folder)
    checked_ranking(ranking)
    plugins = find_plugins(context, plugin)
    for name in formats or ():
        plugins.card("reporters", name, "--format")
    told = read_report(folder, plugins, experiment, ranking, metrics or ())
    if paper:
        from classfair_leaderboard.beside import paper_tables

        told = dataclasses.replace(told, paper=paper_tables(folder, plugins, experiment))
    print_report(told, json=json)
    if out is not None:
        _write(told, folder, out, plugins, experiment, ranking, formats)
    if verify:
        _verify(folder, plugins)


def _write(
    told: Report,
    folder: Path,
    out: Path,
    plugins: Plugins,
    experiment: str | None,
    ranking: str | None,
    formats: list[str] | None,
) -> None:
    """Write the formats that are asked for, or the usual ones and the page."""
    from classfair_leaderboard import page, write
    from classfair_leaderboard.reporting import read

    files = write(told, out, plugins, formats or ["markdown", "csv", "latex"])
    if not formats:
        files += page.write_page(read(folder, experiment), plugins, out, ranking)
    for file in files:
        note(f"wrote {file}")


def _verify(folder: Path, plugins: Plugins) -> None:
    """Compute the metrics of every run from its predictions.

    Raises:
        ClassfairError: if a recorded one is not that; each is named before.
    """
    from classfair_leaderboard.submit import verify

    checked, wrong = verify(folder, plugins)
    for text in wrong:
        note(text)
    if wrong:
        raise ClassfairError(f"{folder}: {len(wrong)} values are not those of the predictions")
    note(f"the metrics of {checked} runs are those of their predictions")


def _told(results: Results, experiment: str | None) -> dict[str, Any]:
    """Return the counts by state, and each cell with its state."""
    names = [experiment] if experiment else results.names()
    return {
        **results.counts(experiment),
        "matrices": names,
        "cells": [_cell(results, cell, state) for cell, state in results.states(experiment)],
        "skipped_cells": [skipped.to_json() for skipped in results.skipped(experiment)],
    }


def _cell(results: Results, cell: CellInfo, state: CellState) -> dict[str, Any]:
    folder = results.folder_of(cell)
    return {
        "method": cell.method.label,
        "recipe": cell.recipe_name,
        "seed": cell.seed,
        "ranking_run": cell.ranking_run,
        "state": state.kind,
        "reason": state.reason,
        "message": state.message,
        "complaint": state.complaint,
        "folder": cell.folder,
        "log": str(folder / "log.txt") if (folder / "log.txt").exists() else None,
        "progress": _progress(folder) if state.kind == "running" else None,
    }


def _progress(folder: Path) -> dict[str, Any] | None:
    """Return how far a running cell is; None until it has said so."""
    from classfair_registry.records import Progress

    try:
        return Progress.load(folder / "progress.json").to_json()
    except ClassfairError:
        return None


def _lines(told: dict[str, Any]) -> Iterator[str]:
    if not told["matrices"]:
        yield "No matrix was run into this folder."
        return
    kinds = ("done", "failed", "running", "queued", "preempted", "skipped")
    yield f"{', '.join(told['matrices'])}: " + ", ".join(f"{told[kind]} {kind}" for kind in kinds)
    for cell in told["cells"]:
        name = f"{cell['method']} on {cell['recipe']}, seed {cell['seed']}"
        if cell["state"] in ("failed", "skipped"):
            log = f" (log: {cell['log']})" if cell["log"] else ""
            yield f"{cell['state']}: {name}: {cell['reason']}: {cell['message']}{log}"
        elif cell["progress"]:
            done = cell["progress"]
            yield f"running: {name}: {done['done']:.0%}, {done['phase']}, step {done['step']}"
        if cell["complaint"]:
            yield f"left out: {name}: {cell['complaint']}"
    for cell in told["skipped_cells"]:
        yield f"skipped: {cell['method']} on {cell['recipe']}, seed {cell['seed']}: {cell['why']}"


def _watch(results: Results, experiment: str | None) -> None:
    """Show the status again and again until nothing runs or waits."""
    from rich.live import Live

    with Live(console=console(), auto_refresh=False) as live:
        while True:
            told = _told(results, experiment)
            live.update("\n".join(_lines(told)), refresh=True)
            if not told["running"] + told["queued"] + told["preempted"]:
                return
            time.sleep(_WATCH_SECONDS)
