"""From a group of rows to one table as plain values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np

from classfair_leaderboard import effective, groups, marks, notes
from classfair_leaderboard.aggregate import Group, Row, cost_ratio, summarise
from classfair_leaderboard.effective import Line
from classfair_leaderboard.groups import GROUPS, RankingName, Reference, Splits
from classfair_leaderboard.load import Run
from classfair_leaderboard.notes import HEADLINES
from classfair_registry.errors import ClassfairError
from classfair_registry.manager import Plugins
from classfair_registry.predictions import Predictions
from classfair_registry.records import Skipped
from classfair_registry.specs import MetricSpec
from classfair_registry.tables import Column, Entry, Table

Values = Mapping[str, float | None]

_FIRST = (
    Column("method", "method", text=True),
    Column("name", "name", text=True, only="data"),
    Column("revision", "revision", text=True, only="data"),
    Column("settings", "settings", text=True, only="data"),
    Column("recipe", "recipe", text=True, only="data"),
    Column("recipe_key", "recipe key", text=True, only="data"),
    Column("track", "track", text=True, only="data"),
    Column("protocol", "protocol", text=True, only="data"),
    Column("trust", "trust", text=True, only="data"),
    Column("ranking", "ranking", text=True, only="data"),
    Column("ranking_hash", "ranking hash", text=True, only="data"),
)
_LAST = (
    Column("seeds", "n", text=True, only="reading"),
    Column("n", "n", text=True, only="data"),
    Column("expected", "expected", text=True, only="data"),
    Column("cost", "cost", "", "lower"),
)


class TableMaker:
    """Makes the table of one group.

    Args:
        group: the rows.
        plugins: for metrics, and to spell methods.
        ranking: by which classes are ranked.
        reference: by which runs, for the reference rankings; None if there are none.
        extra: names of further metrics to show.

    Attributes:
        line: by which effective hard is measured; None while there is none.
        complaints: about runs whose predictions were needed and could not be used.
    """

    def __init__(
        self,
        group: Group,
        plugins: Plugins,
        ranking: RankingName,
        reference: Reference | None,
        extra: Sequence[str] = (),
    ) -> None:
        self.group, self._plugins = group, plugins
        self._ranking, self._reference = ranking, reference
        self._extra = tuple(extra)
        self._splits = Splits(group.cell.fingerprint)
        self._cards = {card.name: card.values for card in plugins.cards("metrics")}
        self._ranked = {*GROUPS, *(name for name, card in self._cards.items() if card["ranked"])}
        self._per_class: set[str] = set()
        self._known: dict[str, Values] = {}
        self.line: Line | None = None
        self.complaints: list[str] = []

    @property
    def ranking(self) -> RankingName:
        """By which classes are ranked."""
        return self._ranking

    def erm_points(self) -> list[tuple[float, float]]:
        """Return (overall, hard) in percent of each ERM run of the table that has both."""
        runs = [run for row in self.group.rows if row.is_baseline for run in row.runs]
        values = [self._values(run, self._numbers(self._columns())) for run in runs]
        points = [(value["overall"], value["hard"]) for value in values]
        return [(x, y) for x, y in points if x is not None and y is not None and np.isfinite(y)]

    def table(self, caption: str = "", skipped: Sequence[Skipped] = ()) -> Table:
        """Return the table.

        Args:
            caption: what the matrix says of itself.
            skipped: what the matrices leave out.
        """
        rows = self.group.rows
        reference = self._reference if self._ranking.startswith("reference") else None
        names = [notes.row_name(row, self._plugins) for row in rows]
        columns = self._columns()
        table = Table(
            name=self.group.name,
            title=self.group.title,
            columns=columns,
            rows=tuple(
                self._row(name, row, columns) for name, row in zip(names, rows, strict=True)
            ),
            caption=notes.caption(self.group, self._ranking, reference, caption),
            footnotes=(
                *notes.footnotes(self.group, names, reference, skipped, self._plugins),
                *([self.line.sentence] if self.line and effective.NAME in self._extra else []),
            ),
        )
        headline = notes.headline(self.group, self._plugins)
        made, complaints = marks.marked(table, self.group, self._reference, self._ranking, headline)
        self.complaints += complaints
        return made

    # -- columns -------------------------------------------------------------------------------

    def _columns(self) -> tuple[Column, ...]:
        """Return the columns. Those for data depend on the installed metrics alone, not on runs."""
        headline = notes.headline(self.group, self._plugins)
        shown = dict.fromkeys((*HEADLINES, *GROUPS, "worst", *self._extra))
        data = {*self._cards, effective.NAME} - set(shown)
        hidden = (set(HEADLINES) - {headline}) - set(self._extra)
        return (
            *_FIRST,
            *(self._column(name, hidden=name in hidden) for name in shown),
            *(self._column(name, hidden=True) for name in sorted(data)),
            *_LAST,
        )

    def _reranked(self, name: str) -> bool:
        """Whether a metric differs from the recorded one, which is ranked by the model itself."""
        return self._ranking != "own" and name in self._ranked

    @staticmethod
    def _numbers(columns: Sequence[Column]) -> list[str]:
        """Return the keys of the columns that hold values of runs."""
        return [c.key for c in columns if not c.text and c.key not in ("cost", effective.NAME)]

    def _column(self, name: str, *, hidden: bool = False) -> Column:
        card: Mapping[str, str] = self._cards.get(name, {})
        if name == effective.NAME:
            card = {"title": "effective hard", "unit": "points", "better": "higher"}
        return Column(
            key=name,
            title=card.get("title", name),
            unit=card.get("unit", ""),
            better=card.get("better", "neither"),
            only="data" if hidden else "",
        )

    # -- rows ----------------------------------------------------------------------------------

    def _row(self, name: str, row: Row, columns: Sequence[Column]) -> dict[str, Entry]:
        keys = self._numbers(columns)
        values = [self._values(run, keys) for run in row.runs]
        entries = {key: row.summary([value[key] for value in values]) for key in keys}
        entries[effective.NAME] = row.summary([self._effective(value) for value in values])
        texts = {**self._identity(row), **_count(row), "method": name}
        ratio = None if row.missing else cost_ratio(row, self.group.baseline)
        cost = summarise([] if ratio is None else [ratio])
        return {key: Entry(text=text) for key, text in texts.items()} | entries | {"cost": cost}

    def _identity(self, row: Row) -> dict[str, str]:
        cell = row.cell
        reference = self._reference if self._ranking.startswith("reference") else None
        return {
            "name": cell.method.name,
            "revision": str(cell.method.revision),
            "settings": json.dumps(cell.method.settings, sort_keys=True),
            "recipe": cell.recipe_name,
            "recipe_key": cell.recipe_key,
            "track": cell.track,
            "protocol": str(cell.protocol),
            "trust": next((run.about.trust for run in row.runs if run.about), ""),
            "ranking": self._ranking,
            "ranking_hash": reference.hash if reference else "",
        }

    # -- values --------------------------------------------------------------------------------

    def _effective(self, values: Values) -> float | None:
        overall, hard = values["overall"], values["hard"]
        if self.line is None or overall is None or hard is None:
            return None
        return self.line.above(overall, hard)

    def _values(self, run: Run, keys: Sequence[str]) -> Values:
        """Return one run's values, computed once."""
        key = run.record.cell.key
        if key not in self._known:
            self._known[key] = self._new_values(run, keys)
        return self._known[key]

    def _new_values(self, run: Run, keys: Sequence[str]) -> Values:
        """Return one run's values; None where one is not defined or cannot be had."""
        stored = run.record.metrics
        known = {key: value for key, value in stored.items() if not self._reranked(key)}
        values: dict[str, float | None] = dict.fromkeys(keys) | known
        try:
            if not known.keys() >= set(GROUPS):
                values |= zip(GROUPS, self._measured(run), strict=True)
            values |= self._computed(
                run, [k for k in keys if k not in known and self._wanted(k, run)]
            )
        except ClassfairError as error:
            place = "" if str(error).startswith(str(run.folder)) else f"{run.folder}: "
            self.complaints.append(f"{place}{error}")
        return values

    def _wanted(self, name: str, run: Run) -> bool:
        """Whether a metric that the record does not hold is worth reading predictions for.

        Ranked metrics that nobody asked for are given under ``own`` alone, where records hold them.
        An archive has no predictions.
        """
        if name in GROUPS or name not in self._cards or name in self._per_class:
            return False
        return name in self._extra or (run.kept is None and not self._reranked(name))

    def _measured(self, run: Run) -> tuple[float, float, float, float]:
        return groups.measure(run, self._ranking, self._reference, self._splits)

    def _computed(self, run: Run, names: Sequence[str]) -> dict[str, float]:
        """Compute metrics that the record does not hold, from its predictions."""
        specs = [self._plugins.get("metrics", name) for name in names]
        parts: dict[bool, list[Predictions]] = {}
        if any(not spec.ranked for spec in specs):
            parts[False] = [run.predictions()]
        if any(spec.ranked for spec in specs):
            parts[True] = groups.views(run, self._ranking, self._reference, self._splits)
        return {spec.name: self._compute(spec, parts[spec.ranked]) for spec in specs}

    def _compute(self, spec: MetricSpec, parts: Sequence[Predictions]) -> float:
        """Return the mean of a metric over views; NaN without any, or if it is one a class.

        Raises:
            ClassfairError: naming the metric, if it fails.
        """
        try:
            values = [np.asarray(spec.compute(part), float) for part in parts]
        except Exception as error:
            raise ClassfairError(f"metric {spec.name}: {type(error).__name__}: {error}") from error
        if any(value.ndim for value in values):
            self._per_class.add(spec.name)
            return np.nan
        return float(np.mean(values)) if values else np.nan


def _count(row: Row) -> dict[str, str]:
    n, expected = len(row.runs), len(row.cells)
    shown = str(n) if n == expected else f"{n}/{expected}"
    return {"seeds": shown, "n": str(n), "expected": str(expected)}
