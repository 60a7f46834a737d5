"""``list`` and ``describe``: what there is."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from classfair.cli.common import AsJson, PluginFiles, find_plugins, print_json, print_table

_COLUMNS = {
    "methods": ("name", "title", "cost", "revision", "summary"),
    "plugins": ("name", "version", "origin", "summary"),
    "metrics": ("name", "unit", "better", "summary"),
}
Kind = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help="methods, datasets, backbones, metrics, launchers, reporters, experiments, recipes "
        "or plugins.",
    ),
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command("list")(list_kind)
    app.command("describe")(describe)


def list_kind(
    context: typer.Context, kind: Kind, json: AsJson = False, plugin: PluginFiles = None
) -> None:
    """List what there is of a kind."""
    from classfair.describe import entries, kind_of

    wanted = kind_of(kind)
    found = entries(wanted, find_plugins(context, plugin))
    if json:
        print_json(found)
        return
    columns = _COLUMNS.get(wanted, ("name", "summary"))
    print_table(columns, [[_cell(entry, column) for column in columns] for entry in found])


def describe(
    context: typer.Context,
    kind: Kind,
    name: Annotated[str, typer.Argument(help="As `list` prints it.")],
    json: AsJson = False,
    plugin: PluginFiles = None,
) -> None:
    """Describe one thing: what it does, its settings with their sources, where it comes from."""
    from classfair.describe import description, kind_of, text

    wanted, plugins = kind_of(kind), find_plugins(context, plugin)
    if json:
        print_json(description(wanted, name, plugins))
    else:
        print(text(wanted, name, plugins))


def _cell(entry: dict[str, Any], column: str) -> Any:
    if column == "summary" and entry.get("error"):
        return f"FAILED: {entry['error']}"
    return entry[column]
