"""Figures with one point a class: sorted accuracy, spread, norms, method against ERM."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from classfair_leaderboard.figures.style import (
    ERM_COLOUR,
    METHOD_COLOUR,
    Drawing,
    Skip,
    chosen,
    drawing,
    legend_below,
    lines,
    named,
    plain,
    short,
    some_rows,
)
from classfair_leaderboard.view import View
from classfair_registry.predictions import Floats

MOST_CLASSES = 40
"""Of a dumbbell plot; of more, those that differ most and the hardest are shown."""


def sorted_accuracy(view: View) -> Iterator[Drawing]:
    """Fig. 1(a): accuracy of the classes, each method's own sorted from the best."""
    places = some_rows(view)
    values = [(place, -np.sort(-100 * _present(view.accuracy(place)))) for place in places]
    with drawing(5.2, 3.2) as (figure, (axes,)):
        lines(view, axes, values)
        axes.set(xlabel="classes, each method's own order", ylabel="accuracy, %")
        axes.set_title(plain(f"Accuracy by class, {view.group.title}"))
        yield Drawing(
            named(view, "sorted-accuracy"),
            f"Sorted accuracy of the classes on {view.group.title}",
            f"Mean over {len(view.evidence.seeds)} seeds, then sorted for each method.",
            figure,
        )


def _present(values: Floats) -> Floats:
    return np.asarray(values[np.isfinite(values)])


def spread(view: View) -> Iterator[Drawing]:
    """Fig. 1(b): how far the features of a class spread, classes by difficulty."""
    yield _by_difficulty(
        view,
        "spread",
        "||s||",
        "Feature spread",
        "Root of the mean squared distance of test features to their class's mean.",
    )


def norms(view: View) -> Iterator[Drawing]:
    """Fig. 3: norms of the head's class vectors, classes by difficulty."""
    yield _by_difficulty(
        view,
        "norm",
        "||w||",
        "Norms of the head's class vectors",
        "Divided by their mean, as methods differ in scale.",
        relative=True,
    )


def _by_difficulty(
    view: View, of: str, label: str, title: str, note: str, *, relative: bool = False
) -> Drawing:
    places = some_rows(view)
    order = np.argsort(-view.difficulty(), kind="stable")
    values = []
    for place in places:
        found = view.per_class(place, of)
        if found is not None:
            scaled = found / np.nanmean(found) if relative else found
            values.append((place, scaled[order]))
    if not values:
        raise Skip(f"no run has {label}")
    with drawing(5.2, 3.2) as (figure, (axes,)):
        lines(view, axes, values)
        if len(order) > MOST_CLASSES:
            for line in axes.get_lines():
                line.set_ydata(_smoothed(np.asarray(line.get_ydata(), float)))
            axes.relim()
            axes.autoscale_view()
        axes.set(xlabel="classes, easy to hard", ylabel=f"{label}, relative" if relative else label)
        axes.set_title(plain(f"{title}, {view.group.title}"))
        smooth = " Running mean over a tenth of the classes." if len(order) > MOST_CLASSES else ""
        ranked = "the reference ERM runs" if view.reference else "the accuracy of the first row"
        return Drawing(
            named(view, of),
            f"{title} against difficulty on {view.group.title}",
            f"{note} Classes ranked by {ranked}.{smooth}",
            figure,
        )


def _smoothed(values: Floats) -> Floats:
    """Return the running mean over a tenth of the values, narrower at both ends."""
    half = max(1, len(values) // 20)
    padded = [values[max(0, i - half) : i + half + 1] for i in range(len(values))]
    return np.array([np.nanmean(part) for part in padded])


def dumbbell(view: View) -> Iterator[Drawing]:
    """Accuracy of each class with a method and with ERM, classes from the hardest."""
    erm, method = chosen(view)
    if erm is None or method is None:
        raise Skip("needs complete rows of ERM and of another method")
    base, mine = 100 * view.accuracy(erm), 100 * view.accuracy(method)
    names, shown = view.class_names(), _shown(base, mine)
    with drawing(5.6, 1.2 + 0.19 * len(shown)) as (figure, (axes,)):
        rows = np.arange(len(shown))
        axes.hlines(rows, base[shown], mine[shown], color="#BBBBBB", lw=2.2, zorder=1)
        axes.scatter(base[shown], rows, 26, ERM_COLOUR, label=short(view.name(erm)), zorder=2)
        axes.scatter(
            mine[shown],
            rows,
            26,
            METHOD_COLOUR,
            marker="D",
            label=short(view.name(method)),
            zorder=2,
        )
        axes.set_yticks(rows, [short(names[k]) for k in shown])
        axes.set_ylim(-0.7, len(shown) - 0.3)
        axes.set(xlabel="accuracy, %")
        axes.set_title(
            plain(f"{view.name(method)} against {view.name(erm)}, {view.group.title}", 60)
        )
        legend_below(axes)
        left = len(base) - len(shown)
        note = f" {left} classes that differ less are left out." if left else ""
        yield Drawing(
            named(view, "per-class"),
            f"Accuracy by class of {view.name(method)} against {view.name(erm)} on "
            f"{view.group.title}",
            f"Mean over {len(view.evidence.seeds)} seeds; the hardest class for ERM on top.{note}",
            figure,
        )


def _shown(base: Floats, mine: Floats) -> list[int]:
    """Return the classes of a dumbbell plot, easiest for ERM first (so the hardest is on top)."""
    usable = np.flatnonzero(np.isfinite(base) & np.isfinite(mine))
    if len(usable) > MOST_CLASSES:
        by_change = usable[np.argsort(-np.abs(mine - base)[usable], kind="stable")]
        by_hardness = usable[np.argsort(base[usable], kind="stable")]
        half = MOST_CLASSES // 2
        kept = dict.fromkeys([*by_hardness[:half].tolist(), *by_change.tolist()])
        usable = np.array(list(kept)[:MOST_CLASSES])
    return [int(k) for k in usable[np.argsort(-base[usable], kind="stable")]]
