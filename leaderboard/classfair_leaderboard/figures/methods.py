"""Figures with one point a method: gains, sweeps, margins, hard against overall."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from classfair_leaderboard.effective import fit
from classfair_leaderboard.evidence import Measure
from classfair_leaderboard.figures.style import (
    ERM_COLOUR,
    METHOD_COLOUR,
    OTHER_COLOUR,
    THIRD_COLOURS,
    Drawing,
    Skip,
    chosen,
    drawing,
    legend_below,
    named,
    plain,
    short,
    some_rows,
)
from classfair_leaderboard.view import View
from classfair_registry.predictions import THIRDS, Floats
from classfair_registry.records import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_FEWEST = 3
"""Values of a setting that make a sweep."""


def gains(views: Sequence[View]) -> Iterator[Drawing]:
    """Fig. 4: gains over ERM on each data set, with their intervals."""
    metrics = ("overall", *THIRDS)
    bars = [(view, pair, _gains(view, *pair, metrics)) for view in views if (pair := _pair(view))]
    if not bars:
        raise Skip("no table has complete rows of ERM and of another method")
    title = f"Gains of {', '.join(sorted({v.name(m) for v, (m, _), _ in bars}))} over ERM"
    with drawing(max(5.2, 1.8 + 1.5 * len(bars)), 3.2) as (figure, (axes,)):
        colours = {"overall": "#7F7F7F", **THIRD_COLOURS}
        for offset, metric in enumerate(metrics):
            x = np.arange(len(bars)) + 0.2 * (offset - 1.5)
            mean, low, high = np.array([found[metric] for *_, found in bars]).T
            whiskers = np.abs(np.array([mean - low, high - mean]))
            axes.bar(x, mean, 0.18, color=colours[metric], label=metric)
            axes.errorbar(x, mean, whiskers, fmt="none", ecolor="#333333", lw=0.8, capsize=2)
        axes.axhline(0, color="black", lw=0.8)
        axes.set_xticks(range(len(bars)), [short(_wrapped(view.group.title)) for view, *_ in bars])
        axes.set(ylabel="gain over ERM, points")
        axes.set_title(plain(title, 60))
        legend_below(axes)
        yield Drawing(
            "gains",
            title,
            "Differences of means, with 95 % intervals where there are several seeds. Thirds are "
            "ranked by reference_crossfit where ERM runs can rank, else by each run itself.",
            figure,
        )


def _wrapped(title: str) -> str:
    return "\n".join(title.split("_"))


def _pair(view: View) -> tuple[int, int] | None:
    erm, method = chosen(view)
    return None if erm is None or method is None else (method, erm)


def _gains(
    view: View, method: int, erm: int, metrics: Sequence[str]
) -> Mapping[str, tuple[float, float, float]]:
    found = {}
    for metric in metrics:
        measure = view.measure(metric)
        assert measure is not None
        mean = float((measure.values[method] - measure.values[erm]).mean())
        found[metric] = view.bounds(measure, method, erm) or (mean, math.nan, math.nan)
    return found


def margins(view: View) -> Iterator[Drawing]:
    """Table 4 as a figure: output margins of the thirds."""
    found = {third: view.measure(f"margin_{third}") for third in THIRDS}
    if not some_rows(view) or any(measure is None for measure in found.values()):
        raise Skip("no recorded output margins")
    values = [
        [measure.values[i].mean() for measure in found.values() if measure is not None]
        for i in range(len(view.rows))
    ]
    with drawing(5.2, 1.2 + 0.24 * len(values)) as (figure, (axes,)):
        rows = np.arange(len(values))[::-1]
        axes.hlines(rows, np.min(values, 1), np.max(values, 1), color="#CCCCCC", lw=2, zorder=1)
        for third, column in zip(THIRDS, np.array(values).T, strict=True):
            axes.scatter(column, rows, 24, THIRD_COLOURS[third], label=third, zorder=2)
        axes.set_yticks(rows, [short(view.name(i)) for i in range(len(values))])
        axes.set(xlabel="p(label) minus the largest other p")
        axes.set_title(plain(f"Output margins by third, {view.group.title}"))
        legend_below(axes)
        yield Drawing(
            named(view, "margins"),
            f"Output margins of the thirds on {view.group.title}",
            f"Mean over {len(view.evidence.seeds)} seeds; thirds by each run's own accuracy.",
            figure,
        )


def hard_against_overall(view: View) -> Iterator[Drawing]:
    """Hard against overall, one point a run, with the line through the ERM runs."""
    some_rows(view, 2)
    overall, hard = view.measure("overall"), view.measure("hard")
    if overall is None or hard is None or not np.isfinite(hard.values).all():
        raise Skip("hard is not defined")
    erm, method = chosen(view)
    with drawing(5.8, max(3.6, 0.22 * len(view.rows))) as (figure, (axes,)):
        for i in range(len(view.rows)):
            colour = {erm: ERM_COLOUR, method: METHOD_COLOUR}.get(i, OTHER_COLOUR)
            axes.scatter(overall.values[i], hard.values[i], 9, colour, alpha=0.5, lw=0)
            x, y = overall.values[i].mean(), hard.values[i].mean()
            axes.scatter(x, y, 30, colour, zorder=3)
        note = _erm_line(axes, view, overall, hard, erm)
        _label(axes, view, overall, hard)
        axes.set(xlabel="overall, %", ylabel="hard, %")
        axes.set_title(plain(f"Hard against overall, {view.group.title}"))
        yield Drawing(
            named(view, "hard-against-overall"),
            f"Hard against overall accuracy on {view.group.title}",
            f"Small points are runs, large ones means. Ranking {view.ranking}.{note}",
            figure,
        )


def _label(axes: Axes, view: View, overall: Measure, hard: Measure) -> None:
    """Write the names in a column beside the axes, each with a line to its mean."""
    means = np.column_stack([overall.values.mean(1), hard.values.mean(1)])
    low, high = axes.get_ylim()
    wanted = (means[:, 1] - low) / (high - low)
    for i, height in enumerate(_spaced(wanted, 0.055)):
        axes.annotate(
            short(view.name(i)),
            tuple(means[i]),
            xytext=(1.03, height),
            textcoords="axes fraction",
            va="center",
            fontsize=7,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#CCCCCC", "lw": 0.5, "shrinkB": 3},
        )


def _spaced(wanted: Floats, least: float) -> Floats:
    """Return places near those wanted that are at least so far apart, in the same order."""
    order = np.argsort(wanted, kind="stable")
    placed = wanted[order].astype(float)
    for _ in range(200):
        overlap = np.maximum(least - np.diff(placed), 0) / 2
        if overlap.max(initial=0) < 1e-4:
            break
        placed[:-1] -= overlap
        placed[1:] += overlap
    result = np.empty(len(wanted))
    result[order] = placed
    return result


def _erm_line(axes: Axes, view: View, overall: Measure, hard: Measure, erm: int | None) -> str:
    """Draw the line through the ERM runs if there are enough; return what the caption says."""
    if erm is None:
        return ""
    points = list(zip(overall.values[erm].tolist(), hard.values[erm].tolist(), strict=True))
    line = fit(points, 1)
    if line is None:
        return " Fewer than four ERM runs, so no line through them."
    ends = np.array([overall.values.min(), overall.values.max()])
    axes.plot(ends, line.slope * ends + line.intercept, color=ERM_COLOUR, lw=0.8, ls="--", zorder=1)
    return f" Dashed: the line through {line.runs} ERM runs of {view.group.title}."


def sweeps(view: View) -> Iterator[Drawing]:
    """Figs. 5, 6, 8 and 9: overall and hard against a setting of a method."""
    found = list(_sweeps(view))
    if not found:
        raise Skip(f"no method has rows with {_FEWEST} values of a setting")
    for method, setting, points in found:
        yield _sweep(view, method, setting, points)


def _sweeps(view: View) -> Iterator[tuple[str, str, list[tuple[float, int]]]]:
    """Yield (method, setting, [(value, place)]) of rows that differ in one number alone."""
    groups: dict[tuple[str, str, str], dict[float, int]] = defaultdict(dict)
    for place, row in enumerate(view.rows):
        for setting, value in row.method.settings.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                rest = {k: v for k, v in row.method.settings.items() if k != setting}
                key = (row.method.name, setting, repr(sorted(rest.items())))
                groups[key].setdefault(float(value), place)
    for (method, setting, _), places in groups.items():
        if len(places) >= _FEWEST:
            yield method, setting, sorted(places.items())


def _sweep(view: View, method: str, setting: str, points: list[tuple[float, int]]) -> Drawing:
    erm, _ = chosen(view)
    values = [value for value, _ in points]
    with drawing(6.4, 2.9, 2) as (figure, both):
        for axes, metric in zip(both, ("overall", "hard"), strict=True):
            measure = view.measure(metric)
            assert measure is not None
            rows = np.array([measure.values[place] for _, place in points])
            spread = rows.std(1, ddof=1) if rows.shape[1] > 1 else np.zeros(len(rows))
            axes.errorbar(values, rows.mean(1), spread, fmt="o-", color=METHOD_COLOUR, capsize=2)
            if erm is not None:
                axes.axhline(measure.values[erm].mean(), color=ERM_COLOUR, lw=0.9, ls="--")
            axes.set(xlabel=short(setting), ylabel=f"{metric}, %")
        title = f"{setting} of {method} on {view.group.title}"
        figure.suptitle(plain(title), fontsize=10)
        return Drawing(
            named(view, "sweep", slug(method), slug(setting)),
            f"Sweep over {title}",
            f"Mean and standard deviation over {len(view.evidence.seeds)} seeds. Dashed: ERM.",
            figure,
        )
