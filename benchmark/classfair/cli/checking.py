"""``doctor`` and ``plugin check``: is everything as it should be?"""

from __future__ import annotations

import dataclasses

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


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("doctor")(doctor)


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
        print_table(("", "found"), rows)
    raise typer.Exit(1 if any(finding.problem for finding in found) else 0)
