"""What a run wrote down while it trained, by third of the classes."""

from __future__ import annotations

import dataclasses

import numpy as np

from classfair_leaderboard.groups import Reference
from classfair_leaderboard.load import Run
from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import Floats, load_arrays, membership

TRACE = "trace.npz"


@dataclasses.dataclass(frozen=True, eq=False)
class Curves:
    """A quantity of the thirds during training.

    Attributes:
        done: [P] shares of the run.
        values: [3, P] means over the easy, medium and hard third's classes.
    """

    done: Floats
    values: Floats


def third_curves(run: Run, name: str, reference: Reference | None) -> Curves | None:
    """Return a curve by third, or None if the run has none.

    Classes are ranked by the reference runs, or by the run's own test accuracy for want of them.

    Args:
        run: whose trace.
        name: ``spread`` is ||s||, the root of what is stored; others are taken as they are.
        reference: by which runs classes are ranked.
    """
    try:
        arrays = load_arrays(run.folder / TRACE)
    except ClassfairError:
        return None
    curve, done = arrays.get(f"curve_{name}"), arrays.get("curve_done")
    if curve is None or done is None or curve.shape != (len(done), len(run.accuracy)):
        return None
    ranking = reference.of(run.seed) if reference else None
    shares = membership(run.accuracy) if ranking is None else ranking.shares
    values = np.sqrt(curve) if name == "spread" else curve
    present = np.isfinite(values).all(0) & (shares.sum(0) > 0)
    weights = shares[:, present] / shares[:, present].sum(1, keepdims=True)
    return Curves(done, weights @ values[:, present].T)
