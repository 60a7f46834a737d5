"""``compare``: is a method better than another one, and by how much."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from classfair.cli.common import (
    RESULTS,
    AsJson,
    MatrixOption,
    PluginFiles,
    RankingOption,
    checked_ranking,
    checked_results,
    console,
    find_plugins,
    note,
    print_json,
)


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command("compare")(compare)


def compare(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", envvar="CLASSFAIR_RESULTS")] = RESULTS,
    baseline: Annotated[
        str, typer.Option("--baseline", metavar="METHOD", help="What the others are compared with.")
    ] = "erm",
    experiment: MatrixOption = None,
    ranking: RankingOption = None,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Print the differences to a baseline with intervals, seeds crossed with test images."""
    from classfair_leaderboard import compare_table, render_terminal
    from classfair_leaderboard.compare import compare as compared

    checked_results(folder)
    checked_ranking(ranking)
    plugins = find_plugins(context, plugin)
    told, complaints = compared(folder, plugins, baseline, experiment, ranking)
    for complaint in complaints:
        note(complaint)
    if json:
        print_json([one.to_json() for one in told])
    else:
        console().print(render_terminal([compare_table.to_table(one) for one in told]))
