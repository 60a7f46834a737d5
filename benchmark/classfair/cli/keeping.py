"""``results merge, prune, export`` and ``submit check``: looking after results and giving them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classfair.cli.common import (
    AsJson,
    MatrixOption,
    PluginFiles,
    checked_folder,
    checked_results,
    find_plugins,
    note,
    print_json,
)
from classfair_registry.errors import ClassfairError, UsageError

if TYPE_CHECKING:
    from classfair_leaderboard.submit import Check, RowCheck
    from classfair_registry.records import CellInfo

Folder = Annotated[Path, typer.Argument(metavar="DIR")]


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    results = typer.Typer(help="Put results folders together, tidy them, export them.")
    results.command("merge")(merge)
    results.command("prune")(prune)
    results.command("export")(export)
    app.add_typer(results, name="results", no_args_is_help=True)
    submit = typer.Typer(help="Check results before they are given to the leaderboard.")
    submit.command("check")(check)
    app.add_typer(submit, name="submit", no_args_is_help=True)


def merge(
    folders: Annotated[list[Path], typer.Argument(metavar="FROM... INTO")],
) -> None:
    """Copy the finished cells and the matrices of results folders into the last one named."""
    from classfair import housekeeping

    *sources, into = folders
    if not sources:
        raise UsageError("results merge: name at least one folder and the one to merge into")
    done = housekeeping.merge(sources, into)
    for complaint in done.complaints:
        note(complaint)
    print(f"{into}: {len(done.copied)} cells copied, {len(done.there)} were there.")


def prune(
    folder: Folder,
    yes: Annotated[bool, typer.Option("--yes", help="Remove it; without, only say what.")] = False,
    json: AsJson = False,
) -> None:
    """Say what in a results folder nobody needs, and remove it with --yes."""
    from classfair import housekeeping

    found = housekeeping.find_waste(folder)
    if yes:
        housekeeping.remove(found)
    if json:
        told = [{"path": str(w.path), "why": w.why, "bytes": w.size} for w in found]
        print_json({"removed": yes, "waste": told})
        return
    for waste in found:
        print(f"{waste.path}: {waste.why} ({waste.size / 1e6:.1f} MB)")
    total = sum(waste.size for waste in found) / 1e6
    print(f"{len(found)} things, {total:.1f} MB{' removed' if yes else '; --yes removes them'}.")


def export(
    folder: Folder,
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file to write.")],
    experiment: MatrixOption = None,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who gives the results.")] = "",
) -> None:
    """Write a results folder as one file of JSON lines, to commit or to submit."""
    from classfair_leaderboard import exporting

    checked_results(folder)
    done = exporting.export(folder, out, experiment, by)
    for complaint in done.complaints:
        note(complaint)
    print(f"{out}: {done.runs} runs, {out.stat().st_size / 1e3:.0f} kB.")


def check(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(metavar="FILE|DIR")],
    rerun: Annotated[
        Path | None,
        typer.Option("--rerun", metavar="DIR", help="Results of seeds that were run again."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where to write it if nothing is wrong."),
    ] = None,
    by: Annotated[str, typer.Option("--by", metavar="NAME", help="Who gives the results.")] = "",
    plugin: PluginFiles = None,
    json: AsJson = False,
) -> None:
    """Say whether an outside result can be taken, what is missing, and how far it is trusted."""
    from classfair_leaderboard import submit

    checked_folder(rerun, "--rerun")
    found = submit.check(file, find_plugins(context, plugin), _keys, rerun)
    if json:
        print_json(_told(found))
    else:
        _print(found)
    if not found.accepted:
        raise ClassfairError(f"{file}: cannot be taken as it is")
    if out is not None:
        submit.accept(found, out, by)
        note(f"wrote {out}")


def _keys(cell: CellInfo) -> tuple[str, str]:
    """Return the run key and the recipe key that a cell must have.

    Raises:
        ClassfairError: if its recipe is none.
    """
    import pydantic

    from classfair.keys import recipe_key, run_key
    from classfair.recipe import Recipe

    try:
        recipe = Recipe.model_validate(cell.recipe)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ClassfairError(f"its recipe: {place}: {first['msg']}") from error
    return run_key(cell), recipe_key(recipe, cell.fingerprint, cell.weights, cell.code)


def _told(found: Check) -> dict[str, Any]:
    rows = [
        {
            "method": row.method,
            "recipe": row.recipe,
            "seeds": list(row.seeds),
            "trust": row.trust,
            "wrong": list(row.wrong),
            "remarks": list(row.remarks),
        }
        for row in found.rows
    ]
    return {"accepted": found.accepted, "wrong": list(found.wrong), "rows": rows}


def _print(found: Check) -> None:
    for text in found.wrong:
        print(f"wrong: {text}")
    for row in found.rows:
        _print_row(row)
    if not found.rows:
        print("no results in it")


def _print_row(row: RowCheck) -> None:
    state = "wrong" if row.wrong else "ok"
    print(f"{state}: {row.method} on {row.recipe}, n = {len(row.seeds)}: {row.trust}")
    for text in row.wrong:
        print(f"  wrong: {text}")
    for text in row.remarks:
        print(f"  note: {text}")
