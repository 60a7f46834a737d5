"""From a results folder to leaderboards, in one call; and from leaderboards to files."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from classfair_leaderboard import effective, groups
from classfair_leaderboard.aggregate import Group, group
from classfair_leaderboard.groups import RANKINGS, RankingName, Reference
from classfair_leaderboard.load import Run, load, load_matrices
from classfair_leaderboard.notes import headline
from classfair_leaderboard.ranking import FROZEN, Ranking, from_runs, load_frozen
from classfair_leaderboard.ranks import ranks
from classfair_leaderboard.table import TableMaker
from classfair_registry.errors import ClassfairError, UsageError, near
from classfair_registry.files import writing
from classfair_registry.manager import Plugins
from classfair_registry.records import CellInfo, MatrixInfo
from classfair_registry.tables import Table


@dataclasses.dataclass(frozen=True)
class Report:
    """Leaderboards.

    Attributes:
        tables: one a recipe and track.
        complaints: a line about each file that was left out, and why.
        ranks: mean ranks over recipes, one table a tier and track of several recipes.
        paper: the paper's numbers and claims beside ours, if asked for.
    """

    tables: tuple[Table, ...]
    complaints: tuple[str, ...]
    ranks: tuple[Table, ...] = ()
    paper: tuple[Table, ...] = ()


def report(
    results: Path,
    plugins: Plugins,
    matrix: str | MatrixInfo | None = None,
    ranking: str | None = None,
    *,
    metrics: Sequence[str] = (),
    frozen: Path = FROZEN,
) -> Report:
    """Return the leaderboards of a results folder.

    Args:
        results: the folder.
        plugins: for metrics, and to spell methods.
        matrix: only the cells that this matrix expects, given by its name in the folder or
            itself; None takes all that is there.
        ranking: one of :data:`~classfair_leaderboard.groups.RANKINGS`. None is ``reference`` where
            the recipe has a frozen ranking or dedicated runs, else ``own``. Local ERM runs are no
            default: then adding ERM would move the numbers of every other row.
        metrics: names of further metrics to show, computed from predictions where the records do
            not hold them.
        frozen: the folder of the frozen rankings.

    Raises:
        UsageError: for an unknown matrix, ranking or metric, or if there is no such folder.
        ClassfairError: if the matrix's file cannot be read.
    """
    check_ranking(ranking)
    for name in set(metrics) - {effective.NAME}:
        plugins.card("metrics", name)
    return report_of(read(results, matrix, frozen), plugins, ranking, metrics)


def check_ranking(name: str | None) -> None:
    """Raise UsageError for a ranking that there is not."""
    if name is not None and name not in RANKINGS:
        raise UsageError(f"no ranking {name!r}{near(name, RANKINGS)}")


def report_of(
    found: Found, plugins: Plugins, ranking: str | None = None, metrics: Sequence[str] = ()
) -> Report:
    """Return the leaderboards of what was read.

    Args, raises: see :func:`report`.
    """
    makers = list(_makers(found, plugins, ranking, metrics))
    _draw_lines(makers)
    skipped = list(dict.fromkeys(note for info in found.matrices for note in info.skipped))
    tables = [maker.table(_captions(maker.group, found.matrices), skipped) for maker in makers]
    headlines = [headline(part, plugins) for part in found.groups]
    complaints = [*found.complaints, *(text for maker in makers for text in maker.complaints)]
    return Report(
        tuple(tables),
        tuple(dict.fromkeys(complaints)),
        tuple(ranks(tables, found.groups, headlines)),
    )


def _makers(
    found: Found, plugins: Plugins, ranking: str | None, metrics: Sequence[str]
) -> Iterator[TableMaker]:
    for part in found.groups:
        reference = find_reference(part, found.frozen)
        yield TableMaker(part, plugins, pick(ranking, reference), reference, metrics)


def _draw_lines(makers: Sequence[TableMaker]) -> None:
    """Give the tables of each data set, under one ranking, the line through their ERM runs."""
    alike: dict[tuple[str, str], list[TableMaker]] = defaultdict(list)
    for maker in makers:
        alike[maker.group.cell.fingerprint, maker.ranking].append(maker)
    for same in alike.values():
        points = [maker.erm_points() for maker in same]
        line = effective.fit([point for each in points for point in each], sum(map(bool, points)))
        for maker in same:
            maker.line = line


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """What is in a results folder.

    Attributes:
        groups: the rows of each table.
        matrices: those that are asked for.
        frozen: rankings by recipe key.
        complaints: a line about each file that was left out, and why.
    """

    groups: tuple[Group, ...]
    matrices: tuple[MatrixInfo, ...]
    frozen: Mapping[str, Ranking]
    complaints: tuple[str, ...]


def read(results: Path, matrix: str | MatrixInfo | None = None, frozen: Path = FROZEN) -> Found:
    """Read a results folder and sort its runs into groups.

    Args, raises: see :func:`report`.
    """
    runs, complaints = load(results)
    matrices, torn = load_matrices(results)
    chosen = _choose(results, matrices, torn, matrix)
    thawed, broken = load_frozen(frozen)
    groups = group(results, _expected(chosen, runs, every=matrix is None), runs)
    return Found(tuple(groups), tuple(chosen), thawed, (*complaints, *torn, *broken))


def write(
    told: Report, out: Path, plugins: Plugins, formats: Sequence[str] = ("markdown", "csv")
) -> list[Path]:
    """Write ``leaderboard.md``, ``leaderboard.csv`` and return the files.

    Ranks and the paper's numbers have files of their own. All formats are rendered before the
    first file is touched, and each file is replaced whole.

    Args:
        told: what to write.
        out: the folder; it is made if need be.
        plugins: with the reporters.
        formats: names of reporters.

    Raises:
        UsageError: for an unknown format or a folder that cannot be written to.
    """
    specs = [plugins.get("reporters", name) for name in formats]
    parts = {"leaderboard": told.tables, "ranks": told.ranks, "paper": told.paper}
    texts = {
        f"{name}{spec.suffix}": spec.render(tables)
        for name, tables in parts.items()
        for spec in specs
        if tables or name == "leaderboard"
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            with writing(out / name) as file:
                file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{out}: cannot write there ({error.strerror})") from error
    return [out / name for name in texts]


def find_reference(part: Group, frozen: Mapping[str, Ranking]) -> Reference | None:
    """Return by which runs a recipe's classes are ranked: frozen, dedicated, local, or none."""
    key = part.cell.recipe_key
    if key in frozen:
        return groups.fixed("frozen", frozen[key])
    if part.ranking_runs:
        return groups.fixed("dedicated", from_runs(part.ranking_runs))
    return groups.local(part.baseline.runs) if part.baseline else None


def pick(asked: str | None, reference: Reference | None) -> RankingName:
    """Return the ranking that was asked for, or the default one."""
    if asked is not None:
        return cast("RankingName", asked)
    return "reference" if reference and reference.kind != "local" else "own"


def _choose(
    results: Path,
    matrices: Mapping[str, MatrixInfo],
    torn: Iterable[str],
    name: str | MatrixInfo | None,
) -> list[MatrixInfo]:
    if name is None:
        return list(matrices.values())
    if isinstance(name, MatrixInfo):
        return [name]
    if name in matrices:
        return [matrices[name]]
    path = results / "matrices" / f"{name}.json"
    for complaint in torn:
        if complaint.startswith(f"{path}:"):
            raise ClassfairError(complaint)
    raise UsageError(f"{results}: no matrix {name!r}{near(name, matrices)}")


def _expected(chosen: Sequence[MatrixInfo], runs: Sequence[Run], *, every: bool) -> list[CellInfo]:
    """Return the cells that the matrices expect, and what else is there if all are wanted."""
    cells = [cell for info in chosen for cell in info.cells]
    known = {cell.key for cell in cells}
    others = [run.record.cell for run in runs if every and run.record.cell.key not in known]
    return cells + sorted(others, key=lambda cell: (cell.recipe_name, cell.folder))


def _captions(part: Group, chosen: Sequence[MatrixInfo]) -> str:
    """Return what the matrices whose cells stand in a table say of themselves."""
    keys = {cell.key for row in part.rows for cell in row.cells}
    captions = (m.caption for m in chosen if any(cell.key in keys for cell in m.cells))
    return " ".join(dict.fromkeys(text for text in captions if text))
