"""How much more even a model is than its accuracy alone explains.

Better models have better hard classes, whatever they were trained with. ``effective_hard`` is hard
minus the line hard = a x overall + b through the ERM runs of a data set, in the spirit of effective
robustness (Taori et al., Measuring Robustness to Natural Distribution Shifts, 2020).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

NAME = "effective_hard"
FEWEST = 4
"""ERM runs that a line needs."""


@dataclasses.dataclass(frozen=True)
class Line:
    """A least-squares line through ERM runs.

    Attributes:
        slope: a, points of hard for a point of overall.
        intercept: b.
        runs: that it was fitted to.
        recipes: that these runs are of.
    """

    slope: float
    intercept: float
    runs: int
    recipes: int

    def above(self, overall: float, hard: float) -> float:
        """Return by how many points a run's hard is above the line."""
        return hard - (self.slope * overall + self.intercept)

    @property
    def sentence(self) -> str:
        """What a table says of it."""
        return (
            f"Effective hard: hard minus {self.slope:.2f} x overall {self.intercept:+.1f}, the "
            f"line through {self.runs} ERM runs of {self.recipes} "
            f"recipe{'s' if self.recipes > 1 else ''} on this data set."
        )


def fit(points: Sequence[tuple[float, float]], recipes: int) -> Line | None:
    """Return the line through (overall, hard) points; None for fewer than four or equal overalls.

    Args:
        points: in percent.
        recipes: that they are of.
    """
    if len(points) < FEWEST:
        return None
    overall, hard = np.array(points).T
    if not np.isfinite(points).all() or np.ptp(overall) < 1e-9:
        return None
    slope, intercept = np.polyfit(overall, hard, 1)
    return Line(float(slope), float(intercept), len(points), recipes)
