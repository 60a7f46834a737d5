"""``doctor`` and ``plugin check``: is everything as it should be?"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from classfair.cli.common import (
    RESULTS,
    AsJson,
    DataFolder,
    PluginFiles,
    ResultsFolder,
    checked_folder,
    find_plugins,
    print_json,
    print_table,
)

if TYPE_CHECKING:
    from classfair_registry.testing import CheckResult


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("doctor")(doctor)
    plugins = typer.Typer(help="Check a plugin of your own.", no_args_is_help=True)
    plugins.command("check")(check)
    app.add_typer(plugins, name="plugin")


def doctor(
    context: typer.Context,
    results: ResultsFolder = RESULTS,
    data: DataFolder = None,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Say what there is on this machine, and what is wrong with it."""
    from classfair.doctor import examine

    plugins = find_plugins(context, plugin)
    found = list(examine(plugins, checked_folder(data, "--data"), results))
    if json:
        print_json([dataclasses.asdict(finding) for finding in found])
    else:
        rows = [(f.topic, f"PROBLEM: {f.text}" if f.problem else f.text) for f in found]
        print_table(("what", "found"), rows)
    raise typer.Exit(1 if any(finding.problem for finding in found) else 0)


def check(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of a method.")],
    quick: Annotated[bool, typer.Option("--quick", help="The checks that take seconds.")] = False,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Hold a method to everything that its spec promises. Exit code 1 if a check fails."""
    plugins = find_plugins(context, plugin)
    plugins.card("methods", name)

    from classfair_registry.testing import check_method

    found = check_method(plugins.get("methods", name), quick=quick)
    if json:
        print_json([dataclasses.asdict(result) for result in found])
    else:
        print_table(("check", "outcome", "what to do"), [_row(result) for result in found])
        wrong = sum(not result.passed for result in found)
        print(f"\n{name}: {len(found) - wrong} of {len(found)} checks hold.")
    raise typer.Exit(0 if all(result.passed for result in found) else 1)


def _row(result: CheckResult) -> tuple[str, str, str]:
    return result.name, result.outcome, result.sentence
