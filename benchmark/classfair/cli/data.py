"""``data list``, ``data check``, ``data prepare``: what images there are, and are they right?"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classfair.cli.common import (
    AsJson,
    PluginFiles,
    checked_folder,
    find_plugins,
    note,
    print_json,
    print_table,
)
from classfair_registry.errors import ClassfairError, UsageError

if TYPE_CHECKING:
    from classfair.datacheck import Report
    from classfair_registry.manager import Card, Plugins

Name = Annotated[str, typer.Argument(metavar="NAME", help="Of a data set, as `data list` has it.")]
Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", envvar="CLASSFAIR_DATA", help="Where data sets are."),
]
Split = Annotated[
    str, typer.Option("--split", metavar="NAME", help="Another way to split it, such as zhou.")
]
CacheSide = Annotated[
    int | None,
    typer.Option(
        "--cache",
        metavar="SIZE",
        min=8,
        help="Store its images with this short side, for recipes with data.short_side.",
    ),
]
AllowDuplicates = Annotated[
    bool,
    typer.Option("--allow-duplicates", help="Equal images in two parts are no problem."),
]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    data = typer.Typer(help="Look after data sets.", no_args_is_help=True)
    data.command("list")(list_data)
    data.command("check")(check)
    data.command("prepare")(prepare)
    app.add_typer(data, name="data")


def list_data(
    context: typer.Context, root: Root = None, plugin: PluginFiles = None, json: AsJson = False
) -> None:
    """List the data sets, how many images they have, and whether they are there."""
    plugins = find_plugins(context, plugin)
    checked_folder(root, "--root")
    found = [_entry(card, plugins, root) for card in plugins.cards("datasets")]
    if json:
        print_json(found)
        return
    rows = [
        (
            entry["name"],
            f"{entry['classes']:,}",
            " / ".join(f"{count:,} {part}" for part, count in entry["counts"].items()),
            ", ".join(entry["splits"]),
            entry["state"],
            entry["licence"],
        )
        for entry in found
    ]
    print_table(("name", "classes", "images", "splits", "state", "licence"), rows)


def check(
    context: typer.Context,
    name: Name,
    root: Root = None,
    split: Split = "official",
    allow_duplicates: AllowDuplicates = False,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Read every image of a data set once and compare it with what it should be.

    Exit code 1 if anything is wrong with it, 2 if it is not there.
    """
    plugins = find_plugins(context, plugin)
    checked_folder(root, "--root")
    report = _check(plugins, name, root, split, allow_duplicates=allow_duplicates)
    _print_report(report, plugins.card("datasets", name), json=json)
    raise typer.Exit(0 if report.good else 1)


def prepare(
    context: typer.Context,
    name: Name,
    root: Root = None,
    split: Split = "official",
    cache: CacheSide = None,
    allow_duplicates: AllowDuplicates = False,
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Download a data set unless it is there, check it, and store its images if asked to."""
    from classfair.prepare import obtain
    from classfair.recipe import Data

    plugins = find_plugins(context, plugin)
    spec = plugins.get("datasets", name)
    with _progress() as progress:
        if obtain(spec, Data(name=name, split=split), root, progress):
            note(f"{name}: downloaded to {root}")
    report = _check(plugins, name, root, split, allow_duplicates=allow_duplicates)
    stored = None
    if report.good and cache is not None:
        stored = _store(spec, root, split, cache)
    _print_report(report, plugins.card("datasets", name), stored, json=json)
    raise typer.Exit(0 if report.good else 1)


def _entry(card: Card, plugins: Plugins, root: Path | None) -> dict[str, Any]:
    manifest = card.values["manifest"]
    return {
        "name": card.name,
        "title": card.values["title"],
        "classes": len(manifest["classes"]),
        "counts": manifest["counts"],
        "splits": ["official", *manifest["splits"]],
        "licence": manifest["licence"],
        "downloads": bool(manifest["archives"]),
        "state": _state(card, plugins, root),
    }


def _state(card: Card, plugins: Plugins, root: Path | None) -> str:
    """Return ``checked``, ``there`` (not read yet), ``bad``, or ``missing``."""
    from classfair.recipe import Data
    from classfair.stamps import stamped
    from classfair_registry.errors import DataMissing

    try:
        known = stamped(plugins.get("datasets", card.name), Data(name=card.name), root)
    except DataMissing:
        return "missing"
    except ClassfairError:
        return "bad"
    return "checked" if known else "there"


def _check(
    plugins: Plugins, name: str, root: Path | None, split: str, *, allow_duplicates: bool
) -> Report:
    from classfair.datacheck import check as check_data
    from classfair.recipe import Data

    with _progress() as progress:
        return check_data(
            plugins.get("datasets", name),
            Data(name=name, split=split),
            root,
            lambda done, total: progress("reading images", done, total),
            allow_duplicates=allow_duplicates,
        )


def _store(spec: Any, root: Path | None, split: str, side: int) -> Path:
    from classfair import image_store
    from classfair.recipe import Data
    from classfair.stamps import dataset_settings

    if root is None:
        raise UsageError(f"{spec.name}: give the folder for the store with --root")
    splits = spec.open(root, dataset_settings(spec, Data(name=spec.name, split=split)))
    with _progress() as progress:
        return image_store.build(
            spec.name,
            splits,
            root,
            side,
            lambda done, total: progress("storing images", done, total),
        )


def _print_report(
    report: Report, card: Card, stored: Path | None = None, *, json: bool = False
) -> None:
    if json:
        print_json({**report.to_json(), "stored": None if stored is None else str(stored)})
        return
    for problem in report.problems:
        print(f"PROBLEM: {problem}")
    for remark in report.notes:
        print(f"note: {remark}")
    for one, two in report.duplicates:
        print(f"  {one} = {two}")
    images = ", ".join(f"{part} {count:,}" for part, count in report.counts.items())
    said = "is what it should be" if report.good else "is not what it should be"
    print(f"{report.name}, split {report.split}: {images or 'not read'}; {said}.")
    if report.fingerprint:
        print(f"Fingerprint: {report.fingerprint}")
    if not report.good:
        print(f"People get it from {' or '.join(card.values['manifest']['sources'])}.")
    if stored is not None:
        print(f"Images stored in {stored}")


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show a bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    screen = Console(stderr=True)
    with Progress(console=screen, transient=True, disable=not screen.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bar.add_task(what)
            bar.update(tasks[what], completed=done, total=total or None)

        yield tell
