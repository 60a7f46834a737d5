"""The command line: one file for each group of verbs.

A verb imports what it needs inside, so that ``--help`` and the verbs that only read answer fast,
and none of them but ``run`` imports torch. Exit codes: 0 all is well; 1 a cell failed or was
skipped, or data are bad; 2 a mistake, found before anything ran.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from classfair.cli import checking, comparing, data, keeping, listing, reading, running
from classfair.cli.common import PluginFiles, remember_plugins
from classfair_registry.errors import ClassfairError

app = typer.Typer(
    name="classfair",
    help="Benchmark of methods that make an image classifier evenly good over its classes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for verbs in (running, reading, comparing, listing, data, keeping, checking):
    verbs.add_to(app)


def _version(value: bool) -> None:
    if value:
        from classfair_registry.manager import version

        typer.echo(f"classfair {version()}")
        raise typer.Exit


@app.callback()
def _options(
    context: typer.Context,
    plugin: PluginFiles = None,
    version: Annotated[  # noqa: ARG001 - typer calls _version
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    remember_plugins(context, plugin)


def run(arguments: Sequence[str]) -> int:
    """Run the command line and return its exit code.

    A mistake is one message on standard error; what is not foreseen keeps its traceback.
    """
    try:
        app(args=list(arguments), prog_name="classfair")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    except ClassfairError as error:
        print(f"classfair: {error}", file=sys.stderr)
        return error.exit_code
    return 0
