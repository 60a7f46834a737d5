"""What the rankings do to gains whose truth is known, as one figure for the documents.

``python -m classfair_leaderboard.figures.explained FILE.svg`` draws it. The world is that of the
tests: a run answers image i of class k rightly with probability logistic(class + image + method x
image), the last of which all seeds of a method share.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from classfair_leaderboard.answers import Right
from classfair_leaderboard.figures import Drawing, rendered
from classfair_leaderboard.figures.style import drawing, legend_below, needs_matplotlib
from classfair_leaderboard.groups import crossfit_thirds, thirds
from classfair_registry.crossfit import half_accuracy, halves
from classfair_registry.predictions import Floats, membership

CLASSES, IMAGES, WORLDS, SEEDS, RANKING_RUNS = 30, 20, 150, 3, 5
LABEL = np.repeat(np.arange(CLASSES), IMAGES)
TRUE_GAINS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0)
"""Points by which the method is better than ERM in every class."""
_LABELS = {
    "own": ("own: each by itself", "#999999", "s-"),
    "compared": ("the ERM runs it is compared with", "#D55E00", "^-"),
    "reference": ("reference: five other ERM runs", "#0072B2", "o-"),
    "crossfit": ("reference_crossfit: other images", "#009E73", "D-"),
}
_HARD = 2


def measured_gains(true: float, seed: int = 0) -> Mapping[str, float]:
    """Return the mean gain on hard, in points, that each ranking measures.

    Args:
        true: points by which the method is better in every class.
        seed: of the worlds.
    """
    rng = np.random.default_rng(seed)
    first = halves(LABEL, "explained")
    found = [_one_world(rng, true, first) for _ in range(WORLDS)]
    return {name: float(np.mean([gain[name] for gain in found])) for name in _LABELS}


def _one_world(rng: np.random.Generator, true: float, first: Right) -> dict[str, float]:
    ability = rng.normal(1.2, 0.6, CLASSES)[LABEL] + rng.normal(0, 1, LABEL.size)
    own = ability + rng.normal(0, 1.5, (2, LABEL.size))
    share = 1 / (1 + np.exp(-own))
    share[1] = np.minimum(1, share[1] + true / 100)
    erm, method = (rng.random((SEEDS, LABEL.size)) < share[n] for n in (0, 1))
    other = (rng.random((RANKING_RUNS, LABEL.size)) < share[0]).mean(0)
    return {
        "own": _hard_by_itself(method) - _hard_by_itself(erm),
        "compared": _gain(method, erm, erm.mean(0)),
        "reference": _gain(method, erm, other),
        "crossfit": _crossfit_hard(method, other, first) - _crossfit_hard(erm, other, first),
    }


def _classes(right: npt.ArrayLike) -> Floats:
    return np.asarray(100 * np.asarray(right, float).reshape(CLASSES, IMAGES).mean(1))


def _hard_by_itself(runs: Right) -> float:
    accuracies = [_classes(run) for run in runs]
    return float(np.mean([thirds(each, membership(each))[_HARD] for each in accuracies]))


def _gain(method: Right, erm: Right, ranking: Floats) -> float:
    shares = membership(_classes(ranking))
    hard = [
        np.mean([thirds(_classes(run), shares)[_HARD] for run in runs]) for runs in (method, erm)
    ]
    return float(hard[0] - hard[1])


def _crossfit_hard(runs: Right, ranking: Floats, first: Right) -> float:
    scores = half_accuracy(ranking, LABEL, first, CLASSES)
    accuracy = half_accuracy(runs.mean(0), LABEL, first, CLASSES)
    return crossfit_thirds(100 * accuracy, scores)[_HARD]


def rankings_explained() -> Drawing:
    """Draw measured against true gains on hard under the rankings."""
    needs_matplotlib()
    found = [measured_gains(true) for true in TRUE_GAINS]
    with drawing(5.6, 4.2) as (figure, (axes,)):
        axes.plot(TRUE_GAINS, TRUE_GAINS, color="black", lw=0.8, ls="--", label="the truth")
        for name, (label, colour, style) in _LABELS.items():
            axes.plot(TRUE_GAINS, [g[name] for g in found], style, color=colour, label=label, ms=4)
        axes.axhline(0, color="#CCCCCC", lw=0.6, zorder=0)
        axes.set(xlabel="true gain in every class, points", ylabel="measured gain on hard, points")
        axes.set_title("Who ranks the classes, and what that does to gains")
        legend_below(axes, columns=2)
        return Drawing(
            "rankings",
            "Measured against true gains on hard under the rankings",
            f"Simulated: {CLASSES} classes of {IMAGES} images, {SEEDS} seeds, {WORLDS} worlds. "
            "Levels of own are too low for both methods alike here, so its gain is right by luck.",
            figure,
        )


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_bytes(rendered(rankings_explained(), path.suffix[1:]))
