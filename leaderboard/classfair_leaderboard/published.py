"""Numbers that the MR2 paper prints, beside ours, and whether they agree.

They are never averaged in. A number is compared only with runs whose recipe is the paper's, as far
as the paper says what that is, under ``own``, which is how papers rank.
"""

from __future__ import annotations

import csv
import dataclasses
import fnmatch
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import stdtrit

from classfair_leaderboard import notes
from classfair_leaderboard.aggregate import Group, Row
from classfair_leaderboard.evidence import common_seeds
from classfair_leaderboard.intervals import LEVEL, seed_noise
from classfair_leaderboard.load import Run
from classfair_registry.manager import Plugins
from classfair_registry.predictions import Floats
from classfair_registry.tables import Column, Entry, Table

PAPER = Path(__file__).parent / "paper"
ROUNDING = 0.05
"""Half of the last printed digit, in points."""
WIDEST = 1.0
"""Half width in points beyond which agreement says nothing."""

Answer = Literal["agrees", "differs", "inconclusive", "not run"]


@dataclasses.dataclass(frozen=True)
class Published:
    """One printed number.

    Attributes:
        place: table or figure.
        recipe: conditions on a recipe, see :func:`matches`; empty if none is told.
        dataset, network, setting: as the paper says it.
        method: our name of it.
        kind: ``value``, the ``gain`` over ERM, or the best value of a ``setting``.
        metric: our name of it.
        mean: the number.
        std: over runs, None where none was found.
        n: runs, None where it is not known.
        source: where it was read.
        note: what is odd about it.
    """

    place: str
    recipe: str
    dataset: str
    network: str
    setting: str
    method: str
    kind: Literal["value", "gain", "setting"]
    metric: str
    mean: float
    std: float | None
    n: int | None
    source: str
    note: str


@dataclasses.dataclass(frozen=True)
class Verdict:
    """A printed number beside ours.

    Attributes:
        published: the number.
        kind: ``value``, or ``gain`` over ERM, printed or the difference of two printed values.
        theirs: the number, or the gain.
        ours: mean over seeds, None if not run.
        n: our seeds.
        within: half width in which the two agree, None without an estimate of the seeds' noise.
        answer: the verdict.
    """

    published: Published
    kind: Literal["value", "gain"]
    theirs: float
    ours: float | None = None
    n: int = 0
    within: float | None = None
    answer: Answer = "not run"

    @property
    def text(self) -> str:
        """The verdict, with by how much it differs."""
        if self.answer != "differs" or self.ours is None:
            return self.answer
        return f"differs by {self.ours - self.theirs:+.1f}"


def load(folder: Path = PAPER) -> list[Published]:
    """Read the numbers that ship, sorted by file and line."""
    found = []
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            found += [_parsed(row) for row in csv.DictReader(file)]
    return found


def _parsed(row: dict[str, str]) -> Published:
    values: dict[str, Any] = dict(row)
    values["mean"] = float(row["mean"])
    values["std"] = float(row["std"]) if row["std"] else None
    values["n"] = int(row["n"]) if row["n"] else None
    return Published(**values)


def matches(recipe: Mapping[str, Any], conditions: str) -> bool:
    """Whether a recipe meets ``key.key=value;...``; a value may have wildcards.

    Numbers are compared as numbers. No conditions are met by nothing.
    """
    parts = [part.partition("=") for part in conditions.split(";") if part]
    return bool(parts) and all(_meets(_lookup(recipe, key), value) for key, _, value in parts)


def _lookup(recipe: Mapping[str, Any], path: str) -> Any:
    value: Any = recipe
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def _meets(value: Any, wanted: str) -> bool:
    if value is None or isinstance(value, str | bool):
        text = "null" if value is None else str(value).lower()
        # A condition on a key that a recipe does not have is one on the default, which is none.
        return fnmatch.fnmatchcase(text, wanted) or (value is None and wanted in ("none", "1"))
    try:
        return float(value) == float(wanted)
    except (TypeError, ValueError):
        return False


def judge(
    ours: Sequence[float],
    theirs: float,
    spread: float,
    degrees: int,
    n: int,
    std: float | None = None,
) -> tuple[float | None, Answer]:
    """Return the half width t s sqrt(1/n + 1/n_paper) + 0.05 and the verdict.

    Args:
        ours: one value a seed.
        theirs: the printed value.
        spread: s of a single value, from our seeds.
        degrees: of freedom of ``spread``; 0 without an estimate.
        n: runs behind the printed value.
        std: what the paper gives for s, pooled with ours; or None.
    """
    if std is not None and n > 1:
        total = degrees + n - 1
        spread = math.sqrt((degrees * spread**2 + (n - 1) * std**2) / total)
        degrees = total
    if degrees < 1:
        return None, "inconclusive"
    t = float(stdtrit(degrees, (1 + LEVEL) / 2))
    half = t * spread * math.sqrt(1 / len(ours) + 1 / n) + ROUNDING
    if abs(float(np.mean(ours)) - theirs) > half:
        return half, "differs"
    return half, "inconclusive" if half > WIDEST else "agrees"


class Judge:
    """Judges printed numbers by the runs of one table.

    Args:
        group: the rows.
        plugins: to know default settings.
    """

    def __init__(self, group: Group, plugins: Plugins) -> None:
        self._group, self._plugins = group, plugins
        self._seeds = common_seeds(group.rows)
        complete = [row for row in group.rows if not row.missing and len(row.runs) > 1]
        self._rows = [
            row for row in complete if [run.seed for run in row.runs] == list(self._seeds)
        ]

    def verdicts(self, published: Sequence[Published]) -> Iterator[Verdict]:
        """Yield a verdict for each number, and one for each gain over ERM that follows."""
        erm = {(p.place, p.metric): p for p in published if p.method == "erm"}
        for number in published:
            if number.kind == "setting":
                continue
            if number.kind == "value":
                yield self._value(number)
            baseline = erm.get((number.place, number.metric))
            if number.kind == "gain":
                yield self._gain(number, number.mean)
            elif baseline is not None and baseline is not number:
                yield self._gain(number, round(number.mean - baseline.mean, 6))

    def _value(self, number: Published) -> Verdict:
        row = self._row(number.method)
        values = self._values(row, number.metric) if row else None
        blank = Verdict(number, "value", number.mean)
        if row is None or values is None:
            return blank
        spread, degrees = self._value_noise(number.metric)
        within, answer = judge(values, number.mean, spread, degrees, number.n or 1, number.std)
        return dataclasses.replace(
            blank, ours=float(np.mean(values)), n=len(values), within=within, answer=answer
        )

    def _gain(self, number: Published, theirs: float) -> Verdict:
        row, baseline = self._row(number.method), self._row("erm")
        blank = Verdict(number, "gain", theirs)
        if row is None or baseline is None:
            return blank
        mine = self._by_seed(row, number.metric)
        base = self._by_seed(baseline, number.metric)
        common = sorted(mine.keys() & base.keys())
        if not common:
            return blank
        gains = [mine[seed] - base[seed] for seed in common]
        spread, degrees = self._gain_noise(row, baseline, number.metric)
        within, answer = judge(gains, theirs, spread, degrees, number.n or 1)
        return dataclasses.replace(
            blank, ours=float(np.mean(gains)), n=len(gains), within=within, answer=answer
        )

    # -- values --------------------------------------------------------------------------------

    def _row(self, method: str) -> Row | None:
        """Return the complete row of a method: that without a label and with default settings."""
        rows = [row for row in self._group.rows if row.method.name == method and not row.missing]
        rows = [row for row in rows if row.method.label == method] or rows[:1]
        card = notes.find_card(self._plugins, "methods", method)
        defaults = {setting.name: setting.default for setting in card.settings} if card else {}
        plain = [row for row in rows if row.method.settings == defaults]
        return next(iter(plain or rows), None)

    def _values(self, row: Row, metric: str) -> list[float] | None:
        by_seed = self._by_seed(row, metric)
        return [by_seed[seed] for seed in sorted(by_seed)] or None

    @staticmethod
    def _by_seed(row: Row, metric: str) -> dict[int, float]:
        found = {run.seed: value_of(run, metric) for run in row.runs}
        return {seed: value for seed, value in found.items() if value is not None}

    def _table(self, metric: str) -> tuple[Floats, list[Row]] | None:
        """Return the values [rows, seeds] of the complete rows that have the metric."""
        kept = [row for row in self._rows if len(self._by_seed(row, metric)) == len(self._seeds)]
        if not kept:
            return None
        return np.array([self._values(row, metric) for row in kept]), kept

    def _value_noise(self, metric: str) -> tuple[float, int]:
        """Return the pooled deviation over seeds and its degrees of freedom, (0, 0) without one."""
        found = self._table(metric)
        if found is None:
            return 0.0, 0
        values, _ = found
        kept = values[~seed_noise(values).outlier] if len(values) > 1 else values
        return float(np.sqrt(kept.var(1, ddof=1).mean())), len(kept) * (kept.shape[1] - 1)

    def _gain_noise(self, row: Row, baseline: Row, metric: str) -> tuple[float, int]:
        """Return the deviation of a paired difference and its degrees of freedom."""
        found = self._table(metric)
        if found is None or row not in found[1] or baseline not in found[1] or row is baseline:
            return 0.0, 0
        values, rows = found
        variance, degrees = seed_noise(values).of_difference(rows.index(baseline))
        place = rows.index(row)
        return float(np.sqrt(variance[place] * values.shape[1])), int(degrees[place])


def value_of(run: Run, metric: str) -> float | None:
    """Return what a run's record says of a printed metric, or None.

    Beside recorded metrics there are ``best``, the best class, and ``class NAME``.
    """
    if metric == "best":
        return 100 * float(np.nanmax(run.accuracy))
    if metric.startswith("class "):
        names = [str(name).casefold() for name in run.record.dataset.get("classes") or []]
        name = metric.removeprefix("class ")
        return 100 * float(run.accuracy[names.index(name)]) if name in names else None
    return run.record.metrics.get(metric)


def beside(groups: Iterable[Group], plugins: Plugins, folder: Path = PAPER) -> list[Verdict]:
    """Return verdicts on all printed numbers, in their order; those without runs are ``not run``.

    Of several tables with the paper's recipe the first counts that has a verdict.
    """
    groups = [group for group in groups if group.cell.track == "default"]
    by_recipe: dict[str, list[Published]] = {}
    for number in load(folder):
        by_recipe.setdefault(number.recipe, []).append(number)
    found: list[Verdict] = []
    for conditions, numbers in by_recipe.items():
        fitting = [group for group in groups if matches(group.cell.recipe, conditions)]
        judged = [list(Judge(group, plugins).verdicts(numbers)) for group in fitting]
        best = max(judged, key=lambda told: sum(v.answer != "not run" for v in told), default=None)
        found += best if best is not None else list(_unjudged(numbers))
    return found


def _unjudged(numbers: Sequence[Published]) -> Iterator[Verdict]:
    for number in numbers:
        if number.kind != "setting":
            yield Verdict(number, number.kind, number.mean)


_COLUMNS = (
    Column("place", "place", text=True),
    Column("method", "method", text=True),
    Column("metric", "metric", text=True),
    Column("theirs", "paper"),
    Column("ours", "ours"),
    Column("within", "± agrees"),
    Column("verdict", "verdict", text=True),
    Column("n", "n", text=True),
    Column("source", "source", text=True, only="data"),
    Column("note", "note", text=True, only="data"),
)


def to_tables(verdicts: Sequence[Verdict], plugins: Plugins, *, run: bool = True) -> list[Table]:
    """Return a table for each data set and network of the paper.

    Args:
        verdicts: of all numbers.
        plugins: to spell methods.
        run: leave out tables of which nothing was run.
    """
    places: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        number = verdict.published
        name = f"{number.dataset}, {number.network}, {number.setting}"
        places.setdefault(name, []).append(verdict)
    return [
        _to_table(name, told, plugins)
        for name, told in places.items()
        if not run or any(verdict.answer != "not run" for verdict in told)
    ]


def _to_table(name: str, verdicts: Sequence[Verdict], plugins: Plugins) -> Table:
    notes_ = [
        f"{v.published.place}, {v.published.method}, {v.published.metric}: {v.published.note}."
        for v in verdicts
        if v.published.note and v.kind == v.published.kind
    ]
    return Table(
        name=f"paper--{''.join(c if c.isalnum() else '-' for c in name.lower())}",
        title=f"The paper's numbers: {name}",
        columns=_COLUMNS,
        rows=tuple(_entries(verdict, plugins) for verdict in verdicts),
        caption=(
            "Printed numbers beside ours, thirds ranked by each run's own accuracy. They agree "
            "within t s sqrt(1/n + 1/n paper) + 0.05 points, s being the deviation over our seeds, "
            f"pooled over methods; inconclusive where that is more than {WIDEST:g} point."
        ),
        footnotes=tuple(dict.fromkeys(notes_)),
    )


def _entries(verdict: Verdict, plugins: Plugins) -> Mapping[str, Entry]:
    number = verdict.published
    card = notes.find_card(plugins, "methods", number.method)
    gain = " over ERM" if verdict.kind == "gain" else ""
    return {
        "place": Entry(text=number.place),
        "method": Entry(text=str(card.values["title"]) if card else number.method),
        "metric": Entry(text=f"{number.metric.replace('_', ' ')}{gain}"),
        "theirs": Entry(verdict.theirs, number.std if not gain else None, number.n or 0),
        "ours": Entry(verdict.ours, n=verdict.n),
        "within": Entry(verdict.within),
        "verdict": Entry(text=verdict.text),
        "n": Entry(text=str(verdict.n) if verdict.n else ""),
        "source": Entry(text=number.source),
        "note": Entry(text=number.note),
    }
