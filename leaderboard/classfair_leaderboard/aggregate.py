"""From runs to rows: which cells belong together, and mean and spread over their seeds."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from classfair_leaderboard.load import Run, why_missing
from classfair_registry.records import CellInfo, MethodInfo
from classfair_registry.tables import Entry

BASELINE = "erm"
"""The method that the others are compared with, and whose runs rank the classes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One method with one choice of settings in one recipe: all of its seeds.

    Attributes:
        cells: those expected, sorted by seed.
        runs: those finished, sorted by seed.
        missing: why each other cell is not there, by seed.
    """

    cells: tuple[CellInfo, ...]
    runs: tuple[Run, ...]
    missing: Mapping[int, str]

    @property
    def cell(self) -> CellInfo:
        """The first cell, for everything but the seed."""
        return self.cells[0]

    @property
    def reduces_to(self) -> str | None:
        """The method that it is equal to on this task, which a run finds out and a plan cannot."""
        found = [run.record.cell.method.reduces_to for run in self.runs]
        return next(iter(found), self.cell.method.reduces_to)

    @property
    def method(self) -> MethodInfo:
        """The method with its settings."""
        return self.cell.method

    @property
    def is_baseline(self) -> bool:
        """Whether it is ERM."""
        return self.cell.method.name == BASELINE

    def summary(self, values: Sequence[float | None]) -> Entry:
        """Return mean and spread of one value a run; no mean while a run is missing."""
        entry = summarise(values)
        return entry if not self.missing else Entry(n=entry.n)


@dataclasses.dataclass(frozen=True, eq=False)
class Group:
    """What stands in one table: the rows of one recipe and track.

    Attributes:
        rows: ERM first, then in the order of the matrix.
        ranking_runs: the finished dedicated ERM runs of the recipe.
        ranking_cells: how many of them are expected.
    """

    rows: tuple[Row, ...]
    ranking_runs: tuple[Run, ...]
    ranking_cells: int

    @property
    def cell(self) -> CellInfo:
        """Any cell, for what all of them share."""
        return self.rows[0].cell

    @property
    def name(self) -> str:
        """Of its table, safe in a file name."""
        tuned = "--tuned" if self.cell.track == "tuned" else ""
        return f"{self.cell.recipe_name}--{self.cell.recipe_key[:8]}{tuned}"

    @property
    def title(self) -> str:
        """Of its table."""
        return f"{self.cell.recipe_name}{' (tuned)' if self.cell.track == 'tuned' else ''}"

    @property
    def runs(self) -> list[Run]:
        """The finished runs of all rows."""
        return [run for row in self.rows for run in row.runs]

    @property
    def baseline(self) -> Row | None:
        """The first row of ERM, if there is one."""
        return next((row for row in self.rows if row.is_baseline), None)


def summarise(values: Iterable[float | None]) -> Entry:
    """Return mean and sample standard deviation (ddof = 1) of one value a seed.

    One value has no deviation. Where one is not defined (None or NaN) there is no mean: that of the
    others would be a mean over other seeds than in the row above.
    """
    values = list(values)
    given = [value for value in values if value is not None and math.isfinite(value)]
    n = len(given)
    if not n or n < len(values):
        return Entry(n=n)
    mean = math.fsum(given) / n
    if n == 1:
        return Entry(mean, None, 1)
    return Entry(mean, math.sqrt(math.fsum((v - mean) ** 2 for v in given) / (n - 1)), n)


def group(results: Path, cells: Sequence[CellInfo], runs: Sequence[Run]) -> list[Group]:
    """Return the groups of the expected cells, in their order.

    Args:
        results: the folder, to say why a cell is missing.
        cells: those expected, in order; ranking runs among them stand in no row.
        runs: all that were found; those of other cells are not looked at, ranking runs excepted.
    """
    by_key = {run.record.cell.key: run for run in runs}
    tables: dict[tuple[str, str], dict[str, dict[int, CellInfo]]] = {}
    for cell in cells:
        if not cell.ranking_run:
            rows = tables.setdefault((cell.recipe_key, cell.track), {})
            rows.setdefault(variant(cell), {}).setdefault(cell.seed, cell)
    done, expected = _ranking(cells, runs)
    return [
        Group(
            _erm_first(_row(results, row, by_key) for row in rows.values()),
            tuple(done[recipe_key]),
            len(expected[recipe_key]),
        )
        for (recipe_key, _), rows in tables.items()
    ]


def variant(cell: CellInfo) -> str:
    """Return what the cells of a row share within a recipe: method, revision, settings, code."""
    method = cell.method
    return json.dumps([method.name, method.revision, method.settings, method.code], sort_keys=True)


def cost_ratio(row: Row, baseline: Row | None) -> float | None:
    """Return the images that a row passed through networks, in those of ERM; None without ERM.

    A backward pass counts twice as much as a forward one: (forward + 2 backward) / 3.
    """
    if baseline is None or not row.runs or not baseline.runs:
        return None
    of_erm = _mean_passes(baseline)
    return _mean_passes(row) / of_erm if of_erm else None


def _mean_passes(row: Row) -> float:
    costs = [run.record.cost for run in row.runs]
    return sum(cost.images_forward + 2 * cost.images_backward for cost in costs) / 3 / len(costs)


def _row(results: Path, cells: Mapping[int, CellInfo], by_key: Mapping[str, Run]) -> Row:
    ordered = [cell for _, cell in sorted(cells.items())]
    runs = tuple(by_key[cell.key] for cell in ordered if cell.key in by_key)
    missing = {c.seed: why_missing(results, c) for c in ordered if c.key not in by_key}
    return Row(tuple(ordered), runs, missing)


def _erm_first(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return ERM's rows, then the others in their order."""
    return tuple(sorted(rows, key=lambda row: not row.is_baseline))


def _ranking(
    cells: Iterable[CellInfo], runs: Iterable[Run]
) -> tuple[dict[str, list[Run]], dict[str, set[str]]]:
    """Return the finished ranking runs, and the keys of those expected or finished, by recipe."""
    done, expected = defaultdict(list), defaultdict(set)
    for run in runs:
        if run.record.cell.ranking_run:
            done[run.record.cell.recipe_key].append(run)
    for cell in [*cells, *(run.record.cell for found in done.values() for run in found)]:
        if cell.ranking_run:
            expected[cell.recipe_key].add(cell.key)
    return done, expected
