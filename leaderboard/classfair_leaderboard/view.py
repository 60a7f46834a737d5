"""One table's runs, asked by name: what claims and figures are made from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import stdtrit

from classfair_leaderboard import notes
from classfair_leaderboard.aggregate import Group, Row
from classfair_leaderboard.evidence import Evidence, Measure, common_seeds
from classfair_leaderboard.groups import RankingName
from classfair_leaderboard.intervals import LEVEL
from classfair_leaderboard.ranking import Ranking
from classfair_leaderboard.reporting import find_reference
from classfair_registry.errors import ClassfairError
from classfair_registry.manager import Plugins
from classfair_registry.predictions import Floats

_STORED = {
    "spread": "feature_spread",
    "norm": "vector_norm",
    "angle": "vector_angle",
    "collapse": "feature_collapse",
}


class View:
    """The complete rows of one table, ready to be asked.

    Args:
        group: the rows.
        plugins: to spell methods and to know default settings.
        frozen: rankings by recipe key.

    Attributes:
        group: the rows.
        reference: by which runs its classes are ranked, or None.
        ranking: of the thirds: ``reference_crossfit`` if there is a reference, else ``own``.
        evidence: the answers of the complete rows.
    """

    def __init__(self, group: Group, plugins: Plugins, frozen: Mapping[str, Ranking]) -> None:
        self.group, self._plugins = group, plugins
        self.reference = find_reference(group, frozen)
        self.ranking: RankingName = "reference_crossfit" if self.reference else "own"
        seeds = common_seeds(group.rows)
        self.evidence = Evidence(group, seeds, self.reference)

    @property
    def rows(self) -> list[Row]:
        """Those that take part."""
        return self.evidence.rows

    def name(self, place: int) -> str:
        """Return what a row is called."""
        return notes.row_name(self.rows[place], self._plugins)

    def row(self, method: str, settings: Mapping[str, Any] | None) -> int | None:
        """Return the place of a method's row: with these settings, else with the default ones."""
        defaults = self.defaults(method)
        found = [place for place, row in enumerate(self.rows) if row.method.name == method]
        if settings is None:
            plain = [i for i in found if self.rows[i].method.settings == defaults]
            named = [i for i in found if self.rows[i].method.label == method]
            return next(iter(plain or named), None)
        wanted = {**defaults, **settings}
        exact = [i for i in found if self.rows[i].method.settings == wanted]
        return next(iter(exact or self._with(found, settings)), None)

    def _with(self, places: Sequence[int], settings: Mapping[str, Any]) -> list[int]:
        return [
            i
            for i in places
            if all(self.rows[i].method.settings.get(key) == v for key, v in settings.items())
        ]

    def defaults(self, method: str) -> dict[str, Any]:
        """Return the default settings of a method, nothing if it is not installed."""
        card = notes.find_card(self._plugins, "methods", method)
        return {setting.name: setting.default for setting in card.settings} if card else {}

    def measure(self, metric: str) -> Measure | None:
        """Return a metric of all rows; recorded ones vary with seeds alone."""
        try:
            return self.evidence.measure(metric, self.ranking)
        except KeyError:
            values = [[run.record.metrics.get(metric) for run in row.runs] for row in self.rows]
        if any(value is None for row in values for value in row):
            return None
        return Measure(np.array(values, float))

    def bounds(
        self, measure: Measure, place: int, baseline: int
    ) -> tuple[float, float, float] | None:
        """Return mean, lower and upper bound of a difference, or None without an interval."""
        found = self.evidence.differences(measure, baseline)
        if found.kind:
            return found.mean[place], found.low[place], found.high[place]
        return interval(found.by_seed[place])

    def accuracy(self, place: int) -> Floats:
        """Return [K] class accuracies of a row in [0, 1], mean over seeds."""
        return np.asarray(np.mean([run.accuracy for run in self.rows[place].runs], axis=0))

    def per_class(self, place: int, of: str) -> Floats | None:
        """Return [K] means over seeds of a stored quantity of a row, or None if it has none.

        Args:
            place: of the row.
            of: ``norm`` or ``angle`` of the head's class vectors, ``collapse``, or ``spread``,
                which is ||s||, the root of what is stored.
        """
        try:
            values = np.array([run.per_class(_STORED[of]) for run in self.rows[place].runs])
        except ClassfairError:
            return None
        found = (np.sqrt(values) if of == "spread" else values).mean(0)
        return None if np.isnan(found).all() else np.asarray(found)

    def difficulty(self) -> Floats:
        """Return [K] scores by which classes are ranked, best first.

        Of the reference runs; for want of them, the accuracy of the first row.
        """
        found = self.reference.of(self.rows[0].runs[0].seed) if self.reference else None
        return self.accuracy(0) if found is None else found.scores

    def class_names(self) -> list[str]:
        """Return the names of the classes, their numbers where they have none."""
        names = self.rows[0].runs[0].record.dataset.get("classes") or []
        count = len(self.accuracy(0))
        return (
            [str(name) for name in names] if len(names) == count else list(map(str, range(count)))
        )


def interval(values: Floats) -> tuple[float, float, float] | None:
    """Return mean and bounds by t of one value a seed, or None below two finite ones."""
    if len(values) < 2 or not np.isfinite(values).all():
        return None
    mean = float(values.mean())
    half = float(stdtrit(len(values) - 1, (1 + LEVEL) / 2)) * float(values.std(ddof=1))
    half /= math.sqrt(len(values))
    return mean, mean - half, mean + half
