"""``plan`` and ``run``: a matrix of cells."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classfair.cli.common import (
    RESULTS,
    Add,
    AsJson,
    DataFolder,
    MatrixName,
    Only,
    PluginFiles,
    RankingOption,
    ResultsFolder,
    Sets,
    checked_folder,
    checked_ranking,
    find_plugins,
    note,
    print_json,
    print_report,
    print_table,
    read_report,
)

if TYPE_CHECKING:
    from classfair.expand import Fingerprint
    from classfair.matrix import Expansion
    from classfair.plan import Plan, Planned
    from classfair_registry.manager import Plugins


class Device(enum.StrEnum):
    """Where a cell may run."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


Launcher = Annotated[str, typer.Option("--launcher", metavar="NAME", help="Where cells run.")]
DeviceOption = Annotated[Device, typer.Option("--device", help="auto takes CUDA if it is there.")]
JobsPerDevice = Annotated[
    int, typer.Option("--jobs-per-device", min=1, help="Cells on one accelerator at a time.")
]
MaxParallel = Annotated[
    int | None, typer.Option("--max-parallel", min=1, help="Cells at a time altogether.")
]
Minutes = Annotated[
    float | None, typer.Option("--minutes", min=0.01, help="Time limit of each cell.")
]
AllowSkips = Annotated[
    bool, typer.Option("--allow-skips", help="Cells that cannot run are no failure.")
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("plan")(plan)
    app.command("run")(run)


def plan(
    context: typer.Context,
    name: MatrixName,
    results: ResultsFolder = RESULTS,
    data: DataFolder = None,
    sets: Sets = None,
    only: Only = None,
    add: Add = None,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Say what a run would do: cells, what is done already or why not, steps and images."""
    from classfair import stamps
    from classfair.plan import plan as make_plan
    from classfair.results import Results

    plugins = find_plugins(context, plugin)
    matrix = _read(name, plugins, stamps.stamped, (sets, only, add), data)
    made = make_plan(matrix, Results(results), plugins)
    if json:
        print_json(made.to_json())
    else:
        _print_plan(made)


def run(
    context: typer.Context,
    name: MatrixName,
    results: ResultsFolder = RESULTS,
    data: DataFolder = None,
    launcher: Launcher = "local",
    device: DeviceOption = Device.AUTO,
    jobs_per_device: JobsPerDevice = 1,
    max_parallel: MaxParallel = None,
    minutes: Minutes = None,
    sets: Sets = None,
    only: Only = None,
    add: Add = None,
    plugin: PluginFiles = None,
    allow_skips: AllowSkips = False,
    ranking: RankingOption = None,
    json: AsJson = False,
) -> None:
    """Train whatever is not done yet and print the leaderboard.

    It can be stopped at any moment; the same command again goes on where it was.
    """
    from rich.console import Console

    from classfair import runner, stamps
    from classfair_registry.specs import LaunchOptions

    checked_ranking(ranking)
    plugins = find_plugins(context, plugin)
    matrix = _read(name, plugins, stamps.fingerprint, (sets, only, add), data).runnable()
    outcome = runner.run(
        matrix.info,
        results,
        plugins,
        plugins.get("launchers", launcher, "--launcher"),
        LaunchOptions(device.value, jobs_per_device, max_parallel),
        device=device.value,
        console=Console(stderr=True, highlight=False),
        allow_skips=allow_skips,
        chosen=matrix.chosen,
        minutes=minutes,
    )
    if not outcome.interrupted:
        print_report(read_report(results, plugins, matrix.asked, ranking), json=json)
        (note if json else print)(f"Results: {results}")
    raise typer.Exit(outcome.exit_code)


def _read(
    name: str,
    plugins: Plugins,
    fingerprint: Fingerprint,
    changes: Sequence[Sequence[str] | None],
    data: Path | None,
) -> Expansion:
    """Return the cells that the arguments of a verb ask for."""
    from classfair.changes import Changes
    from classfair.expand import read

    sets, only, add = (tuple(typed or ()) for typed in changes)
    return read(
        name, plugins, fingerprint, Changes(sets, only, add), checked_folder(data, "--data")
    )


def _print_plan(plan: Plan) -> None:
    print(f"{plan.matrix.name}. {plan.matrix.caption}".rstrip())
    print()
    rows: dict[tuple[str, str], list[Planned]] = {}
    for planned in plan.cells:
        label = "ranking runs" if planned.cell.ranking_run else planned.cell.method.label
        rows.setdefault((planned.cell.recipe_name, label), []).append(planned)
    headings = ("recipe", "method", "seeds", "done", "steps", "images", "not done because")
    print_table(headings, [_row(recipe, label, cells) for (recipe, label), cells in rows.items()])
    print()
    for skipped in plan.matrix.skipped:
        print(f"skipped: {skipped.method} on {skipped.recipe}, seed {skipped.seed}: {skipped.why}")
    print(_summary(plan))


def _row(recipe: str, label: str, cells: Sequence[Planned]) -> tuple[str, ...]:
    done = sum(planned.cached is True for planned in cells)
    unknown = any(planned.cached is None for planned in cells)
    return (
        recipe,
        label,
        f"{len(cells)}",
        "unknown" if unknown else f"{done}",
        f"{cells[0].steps:,}",
        f"{cells[0].images:,}",
        "; ".join(dict.fromkeys(planned.why for planned in cells if planned.why)),
    )


def _summary(plan: Plan) -> str:
    told = plan.to_json()
    parts = [f"{told['total']} cells, {told['cached']} of them done"]
    if plan.ranking_runs:
        parts.append(f"{len(plan.ranking_runs)} ranking runs")
    parts.append(f"{told['steps']:,} steps over {told['images']:,} images left to train")
    if plan.left and plan.seconds is not None:
        parts.append(f"about {_time(plan.seconds)} of computing, one cell at a time")
    return "; ".join(parts) + "."


def _time(seconds: float) -> str:
    """Return a duration in the unit that suits it."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
