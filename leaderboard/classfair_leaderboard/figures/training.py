"""Figures of what happens during training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from classfair_leaderboard.figures.style import (
    THIRD_COLOURS,
    Drawing,
    Skip,
    chosen,
    drawing,
    legend_below,
    named,
    plain,
    short,
)
from classfair_leaderboard.traces import third_curves
from classfair_leaderboard.view import View
from classfair_registry.predictions import THIRDS, Floats


def evolution(view: View) -> Iterator[Drawing]:
    """Fig. 7: spread of the features by third during training, ERM beside another method."""
    found = {}
    for place in dict.fromkeys(chosen(view)):
        curves = _mean_curves(view, place) if place is not None else None
        if place is not None and curves is not None:
            found[place] = curves
    if not found:
        raise Skip("no traces with the spread of ERM or the method set against it")
    with drawing(3.4 * len(found) + 0.4, 3.2, len(found)) as (figure, every):
        for axes, (place, (done, values)) in zip(every, found.items(), strict=True):
            for third, line in zip(THIRDS, values, strict=True):
                axes.plot(100 * done, line, color=THIRD_COLOURS[third], label=third)
            axes.set(xlabel="training done, %", title=short(view.name(place)))
            axes.set_ylim(0, 1.05 * max(float(v.max()) for _, v in found.values()))
        every[0].set(ylabel="||s||")
        legend_below(every[0])
        figure.suptitle(plain(f"Feature spread during training, {view.group.title}"), fontsize=10)
        seeds = len(view.evidence.seeds)
        yield Drawing(
            named(view, "evolution"),
            f"Feature spread by third during training on {view.group.title}",
            f"Mean over {seeds} seeds, on the images that the trace is taken on; classes ranked by "
            f"{'the reference ERM runs' if view.reference else 'each run itself'}.",
            figure,
        )


def _mean_curves(view: View, place: int) -> tuple[Floats, Floats] | None:
    """Return shares of the run [P] and means over seeds [3, P], None if a run has no curve."""
    curves = [third_curves(run, "spread", view.reference) for run in view.rows[place].runs]
    whole = [curve for curve in curves if curve is not None]
    if len(whole) < len(curves) or len({curve.values.shape for curve in whole}) != 1:
        return None
    return whole[0].done, np.asarray(np.mean([curve.values for curve in whole], axis=0))
