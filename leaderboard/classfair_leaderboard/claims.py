"""What the MR2 paper claims, checked against results: holds, fails or undecided.

A claim about a number holds if its 95 % interval is on the claimed side, fails if it is on the
other, and is undecided if the interval says neither.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from classfair_leaderboard.aggregate import BASELINE, Group
from classfair_leaderboard.intervals import LEVEL
from classfair_leaderboard.published import matches
from classfair_leaderboard.ranking import Ranking
from classfair_leaderboard.traces import third_curves
from classfair_leaderboard.view import View, interval
from classfair_registry.errors import ClassfairError
from classfair_registry.manager import Plugins
from classfair_registry.predictions import Floats
from classfair_registry.tables import Column, Entry, Table

FILE = Path(__file__).with_name("claims.yaml")
Answer = Literal["holds", "fails", "undecided"]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A claim as it is written down; see the head of ``claims.yaml``."""

    id: str
    text: str
    place: str
    kind: str
    method: str
    metric: str = ""
    sign: int = 1
    above: float = 0.0
    margin: float = 0.0
    settings: Mapping[str, Any] | None = None
    against: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"method": BASELINE})
    setting: str = ""
    near: float = 0.0
    within: float = 0.0
    values: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    of: str = ""
    where: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one table says of a claim.

    Attributes:
        claim: which.
        table: title of the table.
        answer: whether it holds.
        evidence: the numbers in words.
    """

    claim: Claim
    table: str
    answer: Answer
    evidence: str


def load_claims(path: Path = FILE) -> list[Claim]:
    """Return the claims that ship.

    Raises:
        ClassfairError: naming a claim of an unknown kind or key.
    """
    claims = []
    for values in yaml.safe_load(path.read_text(encoding="utf-8")):
        tuples = {k: tuple(v) for k, v in values.items() if isinstance(v, list)}
        try:
            claim = Claim(**{**values, **tuples})
        except TypeError as error:
            raise ClassfairError(f"{path}: {values.get('id')}: {error}") from error
        if claim.kind not in _KINDS:
            raise ClassfairError(f"{path}: {claim.id}: no kind {claim.kind!r}")
        claims.append(claim)
    return claims


def check(
    groups: Sequence[Group],
    plugins: Plugins,
    frozen: Mapping[str, Ranking],
    claims: Sequence[Claim] | None = None,
) -> list[Finding]:
    """Return what each table says of each claim that it has the rows for, by claim."""
    views = [View(group, plugins, frozen) for group in groups if group.cell.track == "default"]
    found = []
    for claim in load_claims() if claims is None else claims:
        where = ";".join(f"{key}={value}" for key, value in claim.where.items())
        for view in views:
            if where and not matches(view.group.cell.recipe, where):
                continue
            answer = _KINDS[claim.kind](view, claim)
            if answer is not None:
                found.append(Finding(claim, view.group.title, *answer))
    return found


Answered = tuple[Answer, str] | None


def _said(bounds: tuple[float, float, float]) -> str:
    return "{:+.3g} [{:+.3g}, {:+.3g}]".format(*bounds)


def _side(bounds: tuple[float, float, float], sign: int = 1, above: float = 0.0) -> Answer:
    """Whether an interval is above (below, for sign -1) a value."""
    low, high = (bounds[1], bounds[2]) if sign > 0 else (-bounds[2], -bounds[1])
    return "holds" if low > above else "fails" if high < above else "undecided"


def _pair(view: View, claim: Claim) -> tuple[int, int] | None:
    place = view.row(claim.method, claim.settings)
    baseline = view.row(str(claim.against["method"]), claim.against.get("settings"))
    return None if place is None or baseline is None or place == baseline else (place, baseline)


def _difference(view: View, claim: Claim) -> tuple[float, float, float] | None:
    pair, measure = _pair(view, claim), view.measure(claim.metric) if view.rows else None
    return view.bounds(measure, *pair) if pair and measure is not None else None


def _gain(view: View, claim: Claim) -> Answered:
    bounds = _difference(view, claim)
    return bounds and (_side(bounds, claim.sign, claim.above), _said(bounds))


def _equal(view: View, claim: Claim) -> Answered:
    bounds = _difference(view, claim)
    if bounds is None:
        return None
    if -claim.margin <= bounds[1] and bounds[2] <= claim.margin:
        return "holds", _said(bounds)
    outside = bounds[1] > claim.margin or bounds[2] < -claim.margin
    return "fails" if outside else "undecided", _said(bounds)


def _best(view: View, claim: Claim) -> Answered:
    place = view.row(claim.method, claim.settings)
    measure = view.measure(claim.metric) if view.rows else None
    if place is None or measure is None or len({row.method.name for row in view.rows}) < 3:
        return None
    others = [i for i, row in enumerate(view.rows) if row.method.name != claim.method]
    found = {i: view.bounds(measure, place, i) for i in others}
    if any(bounds is None for bounds in found.values()):
        return None
    answers = {i: _side(bounds) for i, bounds in found.items() if bounds}
    better = [view.name(i) for i in others if answers[i] == "fails"]
    if better:
        return "fails", f"better: {', '.join(better)}"
    close = sum(answer == "undecided" for answer in answers.values())
    if close:
        return "undecided", f"cannot be told from {close} of {len(others)} methods"
    return "holds", f"better than all {len(others)}"


def _sweep(view: View, claim: Claim) -> list[tuple[float, int]]:
    """Return (value, place) of the method's rows that differ from each other in one setting."""
    rows: dict[str, list[tuple[float, int]]] = {}
    for place, row in enumerate(view.rows):
        value = row.method.settings.get(claim.setting)
        value = float(value) if isinstance(value, int | float | str) and value != "" else None
        if row.method.name == claim.method and value is not None:
            rest = {k: v for k, v in row.method.settings.items() if k != claim.setting}
            rows.setdefault(repr(sorted(rest.items())), []).append((value, place))
    longest = sorted(rows.values(), key=len)[-1:]
    return sorted(longest[0]) if longest else []


def _setting(view: View, claim: Claim) -> Answered:
    sweep = _sweep(view, claim)
    measure = view.measure(claim.metric) if len(sweep) > 2 else None
    if measure is None:
        return None
    means = {value: float(measure.values[place].mean()) for value, place in sweep}
    best = max(means, key=means.__getitem__)
    near = {v: i for v, i in sweep if abs(v - claim.near) <= claim.within}
    far = {v: i for v, i in sweep if v not in near}
    if not near or not far:
        return None
    inside = best in near
    top = dict(sweep)[best]
    bounds = [view.bounds(measure, top, i) for i in (far if inside else near).values()]
    apart = all(b is not None and b[1] > 0 for b in bounds)
    answer: Answer = ("holds" if inside else "fails") if apart else "undecided"
    values = ", ".join(f"{v:g}: {mean:.2f}" for v, mean in means.items())
    return answer, f"best {best:g} ({values})"


def _every(view: View, claim: Claim) -> Answered:
    baseline = view.row(BASELINE, None)
    sweep = [(v, i) for v, i in _sweep(view, claim) if v in claim.values]
    measure = view.measure(claim.metric) if len(sweep) > 1 and baseline is not None else None
    if measure is None or baseline is None:
        return None
    found = {value: view.bounds(measure, i, baseline) for value, i in sweep}
    answers = [_side(bounds) for bounds in found.values() if bounds]
    said = ", ".join(f"{value:g}: {_said(b)}" for value, b in found.items() if b)
    if "fails" in answers:
        return "fails", said
    return "holds" if all(a == "holds" for a in answers) else "undecided", said


def _classes(view: View, claim: Claim) -> Answered:
    pair = _pair(view, claim)
    if pair is None:
        return None
    names = [str(n).casefold() for n in view.rows[0].runs[0].record.dataset.get("classes") or []]
    if not set(claim.classes) <= set(names):
        return None
    chosen = np.array([name in claim.classes for name in names], float)
    weight = view.evidence.class_weight(chosen) - view.evidence.class_weight(1 - chosen)
    bounds = view.bounds(view.evidence.linear(weight), *pair)
    return bounds and (_side(bounds), f"more than the others by {_said(bounds)}")


def _rank(view: View, claim: Claim) -> Answered:
    from scipy.stats import spearmanr  # Takes most of a second, which a report does not need.

    values = _per_class(view, claim)
    if values is None:
        return None
    place = view.row(claim.method, claim.settings)
    assert place is not None
    accuracy = view.accuracy(place)
    usable = np.isfinite(values) & np.isfinite(accuracy)
    if usable.sum() < 4:
        return None
    found = spearmanr(values[usable], accuracy[usable])
    rho, p = float(found.statistic), float(found.pvalue)
    said = f"Spearman {rho:+.2f} with accuracy over {usable.sum()} classes, p = {p:.2g}"
    if p >= 1 - LEVEL or not math.isfinite(p):
        return "undecided", said
    return "holds" if rho * claim.sign > 0 else "fails", said


def _even(view: View, claim: Claim) -> Answered:
    values = _per_class(view, claim)
    if values is None or not np.isfinite(values).all():
        return None
    variation = float(values.std() / values.mean())
    return "holds" if variation < claim.margin else "fails", f"varies by {variation:.1%}"


def _per_class(view: View, claim: Claim) -> Floats | None:
    """Return [K] means over seeds of a quantity of the classes, NaN where it is not defined."""
    place = view.row(claim.method, claim.settings)
    if place is None:
        return None
    return view.per_class(place, claim.of)


def _widens(view: View, claim: Claim) -> Answered:
    place = view.row(claim.method, claim.settings)
    curves = _curves(view, place, claim.of) if place is not None else None
    if curves is None:
        return None
    quarter = max(1, curves.shape[1] // 4)
    bounds = interval(curves[:, -quarter:].mean(1) - curves[:, :quarter].mean(1))
    return bounds and (_side(bounds), f"last quarter minus first: {_said(bounds)}")


def _narrower(view: View, claim: Claim) -> Answered:
    pair = _pair(view, claim)
    curves = [_curves(view, place, claim.of) for place in pair] if pair else []
    if len(curves) < 2 or curves[0] is None or curves[1] is None:
        return None
    bounds = interval(curves[0][:, -1] - curves[1][:, -1])
    return bounds and (_side(bounds, -1), f"difference of the gaps at the end: {_said(bounds)}")


def _curves(view: View, place: int, of: str) -> Floats | None:
    """Return [seeds, points] of the hard third's minus the easy third's."""
    found = [third_curves(run, of, view.reference) for run in view.rows[place].runs]
    if any(each is None for each in found):
        return None
    return np.array([each.values[2] - each.values[0] for each in found if each is not None])


_KINDS: Mapping[str, Callable[[View, Claim], Answered]] = {
    "gain": _gain,
    "equal": _equal,
    "best": _best,
    "setting": _setting,
    "every": _every,
    "classes": _classes,
    "rank": _rank,
    "even": _even,
    "widens": _widens,
    "narrower": _narrower,
}


_KEYS = ("answer", "claim", "table", "evidence", "place")


def to_table(findings: Sequence[Finding], claims: Sequence[Claim]) -> Table:
    """Return a table of all claims; those that no table has the rows for are ``not run``."""
    rows = []
    for claim in claims:
        told = [finding for finding in findings if finding.claim is claim]
        rows += [
            _entries(claim, finding.table, finding.answer, finding.evidence) for finding in told
        ] or [_entries(claim, "", "not run", "")]
    return Table(
        name="claims",
        title="The paper's claims",
        columns=tuple(Column(key, key, text=True) for key in _KEYS),
        rows=tuple(rows),
        caption=(
            "Claims of the MR2 paper in each table that has the rows for them. Holds or fails: the "
            "95 % interval is on that side. Thirds are ranked by reference_crossfit where ERM runs "
            "can rank. A claim about one setting is not refuted by another one."
        ),
    )


def _entries(claim: Claim, table: str, answer: str, evidence: str) -> Mapping[str, Entry]:
    texts = (answer, claim.text, table, evidence, claim.place)
    return {key: Entry(text=text) for key, text in zip(_KEYS, texts, strict=True)}
