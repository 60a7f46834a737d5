"""What the verbs share: options, plugins, and how things are printed."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classfair_registry.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from classfair_leaderboard import Report
    from classfair_registry.manager import Plugins
    from classfair_registry.records import MatrixInfo

PluginFiles = Annotated[
    list[Path] | None,
    typer.Option("--plugin", metavar="FILE", help="A plugin of one file; may be repeated."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ResultsFolder = Annotated[
    Path,
    typer.Option("--results", metavar="DIR", envvar="CLASSFAIR_RESULTS", help="Where records are."),
]
DataFolder = Annotated[
    Path | None,
    typer.Option("--data", metavar="DIR", envvar="CLASSFAIR_DATA", help="Where data sets are."),
]
MatrixName = Annotated[
    str, typer.Argument(metavar="NAME|FILE", help="An experiment, or a matrix ending in .yaml.")
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change a recipe key (epochs=2, optimizer.lr=0.05) or a setting (mr2.c_bar=1).",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="KEY=A,B", help="Only these: method=, recipe= or seed=."),
]
Add = Annotated[
    list[str] | None,
    typer.Option("--add", metavar="method=NAME", help="One method more, with its defaults."),
]
MatrixOption = Annotated[
    str | None,
    typer.Option("--experiment", metavar="NAME", help="Only this matrix of the results."),
]
RankingOption = Annotated[
    str | None,
    typer.Option("--ranking", metavar="NAME", help="By what classes are called easy or hard."),
]
RESULTS = Path("results")
_PIPED_WIDTH = 120


def remember_plugins(context: typer.Context, files: Sequence[Path] | None) -> None:
    """Keep the files of ``--plugin`` before the verb for the verb."""
    context.obj = list(files or ())


def find_plugins(context: typer.Context, files: Sequence[Path] | None = None) -> Plugins:
    """Return all plugins, those of ``--plugin`` before and after the verb included.

    Those that failed to load are named on standard error, since whoever misses a method should not
    have to look for the reason.
    """
    from classfair_registry.manager import discover

    both = dict.fromkeys([*context.find_root().obj, *(files or ())])
    plugins = discover(list(both))
    for broken in plugins.broken:
        note(f"plugin {broken.name} ({broken.distribution}) was put aside: {broken.error}")
    return plugins


def checked_folder(path: Path | None, option: str) -> Path | None:
    """Return a folder that must exist if it is given.

    Raises:
        UsageError: if it is not a folder.
    """
    if path is not None and not path.is_dir():
        raise UsageError(f"{option} {path}: no such folder")
    return path


def checked_results(path: Path) -> Path:
    """Return a results folder or an archive of results, which must exist.

    Raises:
        UsageError: if there is neither.
    """
    if not path.exists():
        raise UsageError(f"DIR {path}: no such folder")
    return path


def note(text: str) -> None:
    """Print a line on standard error."""
    print(text, file=sys.stderr)


def print_json(value: Any) -> None:
    """Print JSON on standard output; NaN is an error."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def console() -> Console:
    """Return a console on standard output that guesses no markup and obeys ``NO_COLOR``."""
    from rich.console import Console

    piped = not sys.stdout.isatty()
    # Where nobody's terminal sets the width, tables have room for every number on one line.
    width = _PIPED_WIDTH if piped and "COLUMNS" not in os.environ else None
    plain = piped or bool(os.environ.get("NO_COLOR"))
    return Console(highlight=False, markup=False, no_color=plain, width=width)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table: wrapped to the width of a terminal, else one line a row."""
    texts = [["" if value is None else str(value) for value in row] for row in rows]
    if not sys.stdout.isatty():
        from tabulate import tabulate

        print(tabulate(texts, list(headings), tablefmt="plain", disable_numparse=True))
        return
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold")
    for row in texts:
        table.add_row(*(Text(value) for value in row))
    console().print(table)


def checked_ranking(name: str | None) -> None:
    """Raise UsageError for a ranking that there is not, before anything else is done."""
    from classfair_leaderboard import RANKINGS
    from classfair_registry.errors import near

    if name is not None and name not in RANKINGS:
        raise UsageError(f"--ranking: no ranking {name!r}{near(name, RANKINGS)}")


def read_report(
    results: Path,
    plugins: Plugins,
    matrix: MatrixInfo | str | None,
    ranking: str | None,
    metrics: Sequence[str] = (),
) -> Report:
    """Return the leaderboards of a results folder; what they leave out goes to standard error."""
    from classfair_leaderboard import report

    told = report(results, plugins, matrix, ranking, metrics=metrics)
    for complaint in told.complaints:
        note(complaint)
    return told


def print_report(told: Report, *, json: bool) -> None:
    """Print leaderboards."""
    from classfair_leaderboard import render_terminal

    if json:
        print_json([dataclasses.asdict(table) for table in (*told.tables, *told.paper)])
    else:
        console().print(render_terminal((*told.tables, *told.ranks, *told.paper)))
