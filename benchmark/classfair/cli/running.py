"""``plan`` and ``run``: a matrix of cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from classfair.cli.common import (
    RESULTS,
    Add,
    AsJson,
    DataFolder,
    MatrixName,
    Only,
    PluginFiles,
    ResultsFolder,
    Sets,
    checked_folder,
    find_plugins,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from classfair.plan import Plan, Planned


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("plan")(plan)


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
    from classfair.changes import Changes
    from classfair.expand import read
    from classfair.plan import plan as make_plan
    from classfair.results import Results
    from classfair.stamps import stamped

    plugins = find_plugins(context, plugin)
    changes = Changes(tuple(sets or ()), tuple(only or ()), tuple(add or ()))
    matrix = read(name, plugins, stamped, changes, checked_folder(data, "--data"))
    made = make_plan(matrix, Results(results), plugins)
    if json:
        print_json(made.to_json())
    else:
        _print_plan(made)


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
