"""Is a method better than another one, and by how much: differences with intervals.

Two endpoints are primary, the headline metric and hard under ``reference_crossfit``; their p values
are corrected over both endpoints and all methods of a table (Holm 1979). The rest is exploratory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from classfair_leaderboard import notes
from classfair_leaderboard.aggregate import BASELINE, Group, Row
from classfair_leaderboard.evidence import DRAWS, Differences, Evidence, Measure
from classfair_leaderboard.groups import GROUPS, RankingName, Reference
from classfair_leaderboard.ranking import FROZEN
from classfair_leaderboard.reporting import Found, check_ranking, find_reference, read
from classfair_registry.errors import UsageError, near
from classfair_registry.manager import Plugins
from classfair_registry.predictions import Floats
from classfair_registry.records import MatrixInfo

MARGIN = 0.3
"""Points that easy may lose and still be called no worse."""
PRIMARY: RankingName = "reference_crossfit"
"""The ranking of the second primary endpoint."""
OTHERS = ("worst", "worst10", "class_std")


@dataclasses.dataclass(frozen=True)
class Difference:
    """One metric of a method minus that of the baseline.

    Attributes:
        metric: its name.
        ranking: by which classes are ranked, empty where they are not.
        mean: over seeds, in percent points; None where it is not defined.
        low, high: of the 95 % interval, or None without one.
        by_seed: the difference of each seed, in the order of the seeds.
        correlation: of the two methods' values over seeds; None below three seeds or without
            spread.
        kind: how the interval was made: ``t``, ``bootstrap`` or empty.
        p: two-sided, of no difference; for the primary endpoints alone.
        p_holm: corrected over both endpoints and all methods of the table.
        seed_error, image_error: standard errors due to seeds and images.
        degrees: of freedom of the seeds' part.
        outlier: whether the method's seeds vary much more than the others', so that it is compared
            with its own variance alone.
    """

    metric: str
    ranking: str
    mean: float | None
    low: float | None
    high: float | None
    by_seed: tuple[float, ...]
    correlation: float | None
    kind: str = ""
    p: float | None = None
    p_holm: float | None = None
    seed_error: float | None = None
    image_error: float | None = None
    degrees: int | None = None
    outlier: bool = False

    @property
    def signs(self) -> str:
        """``+``, ``-`` or ``0`` for each seed."""
        return "".join("0" if x == 0 else "+" if x > 0 else "-" for x in self.by_seed)

    @property
    def primary(self) -> bool:
        """Whether it is one of the two primary endpoints."""
        return self.p is not None


@dataclasses.dataclass(frozen=True)
class Compared:
    """A method against the baseline.

    Attributes:
        name: of the row.
        method: its method's name.
        settings: of the method.
        n: paired seeds; 0 for a row that is not complete.
        differences: by key: a metric's name, and ``hard_primary``.
        no_trade_off: whether easy is no worse: the lower bound of its difference is above
            -:data:`MARGIN`. None without an interval.
        why: why it is not compared, else empty.
    """

    name: str
    method: str
    settings: Mapping[str, Any]
    n: int
    differences: Mapping[str, Difference]
    no_trade_off: bool | None = None
    why: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """All methods of one table against a baseline.

    Attributes:
        name: of the table, safe in a file name.
        title: of the recipe.
        baseline: name of the baseline's row.
        headline: metric that is the first primary endpoint.
        ranking: by which the exploratory thirds are ranked.
        seeds: the paired ones.
        rows: all other rows of the table.
        caption: sentences over it.
        footnotes: sentences under it.
    """

    name: str
    title: str
    baseline: str
    headline: str
    ranking: str
    seeds: tuple[int, ...]
    rows: tuple[Compared, ...]
    caption: str
    footnotes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, with the signs of the seeds."""
        plain: dict[str, Any] = dataclasses.asdict(self)
        for row, told in zip(self.rows, plain["rows"], strict=True):
            for key, difference in row.differences.items():
                told["differences"][key]["signs"] = difference.signs
        return plain


def compare(
    results: Path,
    plugins: Plugins,
    baseline: str = BASELINE,
    matrix: str | MatrixInfo | None = None,
    ranking: str | None = None,
    *,
    frozen: Path = FROZEN,
    draws: int = DRAWS,
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Compare every method of every table with a baseline; return that and the complaints.

    Args:
        results: the folder.
        plugins: to spell methods.
        baseline: name or label of a method; the first row of that name counts.
        matrix: only the cells of this one.
        ranking: of the exploratory thirds. None is ``reference_crossfit`` where there are ERM runs
            to rank by, else ``own``.
        frozen: the folder of the frozen rankings.
        draws: of the bootstrap.

    Raises:
        UsageError: for a ranking, matrix or folder that there is not, or a baseline in no table.
    """
    check_ranking(ranking)
    found = read(results, matrix, frozen)
    told, complaints = compare_of(found, plugins, baseline, ranking, draws)
    rows = [row for group in found.groups for row in group.rows]
    if not told and rows:
        names = {name for row in rows for name in (row.method.name, row.method.label)}
        raise UsageError(f"--baseline: no row of {baseline!r}{near(baseline, names)}")
    return told, tuple(dict.fromkeys((*found.complaints, *complaints)))


def compare_of(
    found: Found,
    plugins: Plugins,
    baseline: str = BASELINE,
    ranking: str | None = None,
    draws: int = DRAWS,
) -> tuple[tuple[Comparison, ...], tuple[str, ...]]:
    """Compare what was read; a table without the baseline is passed over.

    Args: see :func:`compare`.
    """
    told: list[Comparison] = []
    complaints: list[str] = []
    for group in found.groups:
        place = find_row(group, baseline)
        if place is not None:
            reference = find_reference(group, found.frozen)
            picked = cast("RankingName", ranking or (PRIMARY if reference else "own"))
            one = Comparer(group, plugins, place, reference, picked, draws)
            told.append(one.comparison())
            complaints += one.complaints
    return tuple(told), tuple(complaints)


def find_row(group: Group, name: str) -> int | None:
    """Return the place of the first row whose method has this name or label."""
    for place, row in enumerate(group.rows):
        if name in (row.method.name, row.method.label):
            return place
    return None


class Comparer:
    """Compares the rows of one group with one of them.

    Args:
        group: the rows.
        plugins: to spell methods.
        baseline: place of the row that the others are compared with.
        reference: by which runs classes are ranked, or None.
        ranking: of the exploratory thirds.
        draws: of the bootstrap.

    Attributes:
        complaints: about runs that could not be used.
    """

    def __init__(
        self,
        group: Group,
        plugins: Plugins,
        baseline: int,
        reference: Reference | None,
        ranking: RankingName,
        draws: int = DRAWS,
    ) -> None:
        self._group, self._plugins, self._ranking = group, plugins, ranking
        self._reference, self._baseline = reference, group.rows[baseline]
        self._names = [notes.row_name(row, plugins) for row in group.rows]
        seeds = () if self._baseline.missing else [run.seed for run in self._baseline.runs]
        self._evidence = Evidence(group, seeds, reference, draws)
        self.complaints = self._evidence.complaints
        self._headline = notes.headline(group, plugins)

    def comparison(self) -> Comparison:
        """Return it."""
        rows = self._evidence.rows
        measured: dict[str, tuple[Measure, Differences]] = {}
        if self._baseline in rows:
            start = rows.index(self._baseline)
            for key, measure in self._measures().items():
                measured[key] = measure, self._evidence.differences(measure, start)
        compared = [
            self._compared(name, row, rows.index(row) if row in rows else None, measured)
            for name, row in zip(self._names, self._group.rows, strict=True)
            if row is not self._baseline
        ]
        return self._told(_corrected(compared))

    def _measures(self) -> dict[str, Measure]:
        evidence = self._evidence
        found = {name: evidence.measure(name) for name in (*notes.HEADLINES, *OTHERS)}
        found |= {name: evidence.measure(name, self._ranking) for name in GROUPS}
        if self._reference is not None:
            found["hard_primary"] = evidence.measure("hard", PRIMARY)
        return found

    def _compared(
        self,
        name: str,
        row: Row,
        place: int | None,
        measured: Mapping[str, tuple[Measure, Differences]],
    ) -> Compared:
        method = row.method
        if place is None or not measured:
            why = self._why(row)
            return Compared(name, method.name, method.settings, 0, {}, None, why)
        start = self._evidence.rows.index(self._baseline)
        differences = {
            key: self._difference(key, measure.values[[place, start]], found, place)
            for key, (measure, found) in measured.items()
        }
        low = differences["easy"].low
        no_trade_off = None if low is None else low > -MARGIN
        n = len(self._evidence.seeds)
        return Compared(name, method.name, method.settings, n, differences, no_trade_off)

    def _difference(self, key: str, pair: Floats, found: Differences, place: int) -> Difference:
        by_seed = found.by_seed[place]
        primary = key in (self._headline, "hard_primary")
        ranked = "hard" if key == "hard_primary" else key
        ranking = PRIMARY if key == "hard_primary" else self._ranking
        return Difference(
            metric=ranked,
            ranking=ranking if ranked in GROUPS else "",
            mean=_number(by_seed.mean()),
            low=_number(found.low[place]),
            high=_number(found.high[place]),
            by_seed=tuple(float(x) for x in by_seed) if np.isfinite(by_seed).all() else (),
            correlation=_correlation(pair),
            kind=found.kind,
            p=_number(found.p[place]) if primary else None,
            seed_error=_number(found.seed_part[place]),
            image_error=_number(found.image_part[place]),
            degrees=int(found.degrees[place]) or None,
            outlier=bool(found.outlier[place]),
        )

    def _why(self, row: Row) -> str:
        if self._baseline.missing:
            return "the baseline is not complete"
        if row.missing:
            return f"{len(row.runs)} of {len(row.cells)} seeds"
        return "not the baseline's seeds or test images"

    def _told(self, rows: Sequence[Compared]) -> Comparison:
        baseline = self._names[self._group.rows.index(self._baseline)]
        return Comparison(
            name=self._group.name,
            title=f"{self._group.title} against {baseline}",
            baseline=baseline,
            headline=self._headline,
            ranking=self._ranking,
            seeds=self._evidence.seeds,
            rows=tuple(rows),
            caption=self._caption(baseline),
            footnotes=tuple(self._footnotes(rows)),
        )

    def _caption(self, baseline: str) -> str:
        n = len(self._evidence.seeds)
        return (
            f"Differences to {baseline} in points, on the same {n} seeds and test images: mean, "
            "95 % interval (seeds crossed with images, the seeds' part pooled over the methods), "
            f"and the sign of each seed. Primary: {self._headline}, and hard under {PRIMARY}; p is "
            "corrected over both and all methods (Holm). The rest is exploratory. No trade-off: "
            f"the lower bound of easy is above -{MARGIN}. "
            f"{notes.ranking_sentence(self._ranking, self._reference)}"
        )

    def _footnotes(self, rows: Sequence[Compared]) -> Iterable[str]:
        if len(self._evidence.seeds) == 1:
            yield "One seed says nothing about seeds, so there are no intervals."
        if self._reference is None:
            yield "No ERM runs to rank the classes, so hard is no primary endpoint."
        else:
            yield from notes.reference_notes(self._group, self._reference)
        if self._ranking == "own_crossfit":
            yield "No interval for thirds that each model ranks by itself, cross-fitted."
        for row in rows:
            if row.why:
                yield f"{row.name}: not compared: {row.why}."
            odd = [key for key, found in row.differences.items() if found.outlier]
            if odd:
                yield (
                    f"{row.name}: its seeds vary more than the others' in {', '.join(odd)}, so "
                    "there it is compared with its own variance alone."
                )


def holm(p: Sequence[float]) -> list[float]:
    """Return p values corrected for all being looked at (Holm 1979), in their order."""
    order = sorted(range(len(p)), key=lambda i: p[i])
    corrected, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        corrected[i] = largest
    return corrected


def _corrected(rows: Sequence[Compared]) -> list[Compared]:
    """Fill in the corrected p values of the primary endpoints."""
    places = [
        (i, key)
        for i, row in enumerate(rows)
        for key, found in row.differences.items()
        if found.p is not None
    ]
    values = holm([rows[i].differences[key].p or 0.0 for i, key in places])
    made = [dict(row.differences) for row in rows]
    for (i, key), value in zip(places, values, strict=True):
        made[i][key] = dataclasses.replace(made[i][key], p_holm=value)
    return [
        dataclasses.replace(row, differences=found) for row, found in zip(rows, made, strict=True)
    ]


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _correlation(pair: Floats) -> float | None:
    """Return Pearson's correlation of two rows [2, S], None below three seeds or without spread."""
    if pair.shape[1] < 3 or not np.isfinite(pair).all() or (np.ptp(pair, axis=1) < 1e-9).any():
        return None
    return float(np.corrcoef(pair[0], pair[1])[0, 1])
