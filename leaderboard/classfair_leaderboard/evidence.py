"""What the runs of a table say about differences between its methods."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair_leaderboard import groups, weights
from classfair_leaderboard.aggregate import Group, Row
from classfair_leaderboard.answers import Labels
from classfair_leaderboard.groups import GROUPS, RankingName, Reference, Splits
from classfair_leaderboard.intervals import (
    class_draws,
    crossed_bootstrap,
    crossed_t,
    image_noise,
    image_variance,
    paired,
    seed_noise,
)
from classfair_leaderboard.load import Run
from classfair_leaderboard.ranking import Ranking
from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import Floats

DRAWS = 10_000
"""Draws of the crossed bootstrap."""
ENOUGH = 1_000
"""Draws from which on their quantiles bound an interval; below, their variance and t do."""
MEANS = ("overall", "mean_class")
Statistic = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


def _third(third: int) -> Statistic:
    """Return the mean accuracy of a third of the classes, ranked by these very accuracies.

    Cut as :func:`classfair_registry.predictions.membership` cuts; ties do not matter, as tied
    classes are equally accurate.
    """

    def mean(ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
        places = np.array_split(np.arange(ascending.shape[-1])[::-1], 3)[third]
        chosen = ascending[..., places]
        empty = np.full(ascending.shape[:-1], np.nan, ascending.dtype)
        return np.asarray(chosen.mean(-1)) if len(places) else empty

    return mean


def _worst10(ascending: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(ascending[..., : math.ceil(ascending.shape[-1] / 10)].mean(-1))


_EASY, _MEDIUM, _HARD = (_third(third) for third in range(3))
STATISTICS: Mapping[str, Statistic] = {
    "worst": lambda ascending: ascending[..., 0],
    "worst10": _worst10,
    "class_std": lambda ascending: ascending.std(-1),
}
"""Metrics of the class accuracies [..., K] that are no weighted sums of right answers.

They take the accuracies in [0, 1], sorted from the worst class.
"""
_OWN: Mapping[str, Statistic] = {
    "easy": _EASY,
    "medium": _MEDIUM,
    "hard": _HARD,
    "gap": lambda ascending: _EASY(ascending) - _HARD(ascending),
}


@dataclasses.dataclass(frozen=True, eq=False)
class Measure:
    """One metric of all rows.

    Attributes:
        values: [M, S] in percent or points.
        weight: [N] of the images sorted by class, if it is a weighted sum of right answers.
        statistic: of the class accuracies, if it is one; neither has no interval.
    """

    values: Floats
    weight: Floats | None = None
    statistic: Statistic | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Differences:
    """One metric of all rows minus that of a baseline.

    Attributes:
        by_seed: [M, S].
        low, high: [M] bounds of the interval, NaN without one.
        p: [M] two-sided p values of no difference, NaN where there is none.
        kind: how the interval was made.
        seed_part, image_part: [M] standard errors; NaN where they are not computed.
        degrees: [M] of freedom of the seed part.
        outlier: [M] methods whose seeds vary more than the others'.
    """

    by_seed: Floats
    low: Floats
    high: Floats
    p: Floats
    kind: str
    seed_part: Floats
    image_part: Floats
    degrees: npt.NDArray[np.int64]
    outlier: npt.NDArray[np.bool_]

    @property
    def mean(self) -> Floats:
        """[M] means over seeds."""
        return np.asarray(self.by_seed.mean(1))


class Evidence:
    """The answers of the complete rows of a group, by row, seed and image.

    Args:
        group: the rows.
        seeds: the paired ones; a row that lacks one is left out.
        reference: by which runs classes are ranked, or None.
        draws: of the bootstrap.

    Attributes:
        rows: those that take part, in the order of the group.
        complaints: about rows whose predictions could not be used.
    """

    def __init__(
        self, group: Group, seeds: Sequence[int], reference: Reference | None, draws: int = DRAWS
    ) -> None:
        self.seeds, self._reference, self._draws = tuple(seeds), reference, draws
        self._splits = Splits(group.cell.fingerprint)
        self.complaints: list[str] = []
        self.rows: list[Row] = []
        self._runs: list[list[Run]] = []
        self._label: Labels = np.empty(0, np.int64)
        right = [answers for row in group.rows if (answers := self._right(row)) is not None]
        self._seed = hashlib.sha256(group.cell.fingerprint.encode()).digest()
        self._noise: dict[int, Floats] = {}
        self._measures: dict[str, Measure] = {}
        self._thirds: dict[tuple[str, str], Floats] = {}
        if right:
            self.answers, self._order = paired(np.array(right), self._label)

    def _right(self, row: Row) -> list[npt.NDArray[np.bool_]] | None:
        """Return a row's [S][N] right answers, or None if it does not take part."""
        runs = {run.seed: run for run in row.runs}
        if row.missing or not runs.keys() >= set(self.seeds):
            return None
        chosen = [runs[seed] for seed in self.seeds]
        try:
            answers = [run.answers() for run in chosen]
            for run, each in zip(chosen, answers, strict=True):
                self._fits(run, each.label)
        except ClassfairError as error:
            self.complaints.append(str(error))
            return None
        self.rows.append(row)
        self._runs.append(chosen)
        self._classes = answers[0].num_classes
        return [each.correct for each in answers]

    def _fits(self, run: Run, label: Labels) -> None:
        if not len(self._label):
            self._label = label
        if not np.array_equal(self._label, label):
            raise ClassfairError(
                f"{run.folder}: its test labels differ from those of other runs in its table"
            )

    # -- metrics -------------------------------------------------------------------------------

    def measure(self, name: str, ranking: RankingName = "own") -> Measure:
        """Return a metric; one of the thirds or the gap under a ranking.

        Raises:
            KeyError: for a metric that has no interval at all.
        """
        key = f"{name}/{ranking}" if name in GROUPS else name
        if key not in self._measures:
            self._measures[key] = self._measure(name, ranking)
        return self._measures[key]

    def _measure(self, name: str, ranking: RankingName) -> Measure:
        if name in MEANS:
            classes = np.ones(self._classes)
            weight = weights.of_images if name == "overall" else None
            found = weight(self._label) if weight else weights.of_classes(self._label, classes)
            return self._linear(np.array([found] * len(self.seeds)))
        if name in STATISTICS:
            return self._statistic(STATISTICS[name])
        if name not in GROUPS:
            raise KeyError(name)
        if ranking == "own":
            return self._statistic(_OWN[name])
        if ranking == "own_crossfit":
            return Measure(self._crossfit(GROUPS.index(name)))
        thirds = [self._third_weights(seed, ranking) for seed in self.seeds]
        place = {"easy": [1, 0, 0], "medium": [0, 1, 0], "hard": [0, 0, 1], "gap": [1, 0, -1]}
        return self._linear(np.array([place[name] @ third for third in thirds]))

    def _linear(self, by_seed: Floats) -> Measure:
        """Return the measure with weights [S, N] of the images in their own order."""
        by_seed = by_seed[:, self._order]
        values = 100 * np.einsum("msn,sn->ms", self.answers.correct, by_seed)
        return Measure(values, by_seed.mean(0))

    def class_weight(self, chosen: Floats) -> Floats:
        """Return [N] image weights of the mean accuracy of classes with weights [K]."""
        return weights.of_classes(self._label, chosen)

    def linear(self, weight: Floats) -> Measure:
        """Return the measure of weights [N] of the images in their own order."""
        return self._linear(np.array([weight] * len(self.seeds)))

    def _statistic(self, statistic: Statistic) -> Measure:
        ascending = np.sort(self.answers.class_accuracy, axis=-1)
        return Measure(100 * statistic(ascending), statistic=statistic)

    def _crossfit(self, place: int) -> Floats:
        return np.array(
            [
                [groups.measure(run, "own_crossfit", None, self._splits)[place] for run in runs]
                for runs in self._runs
            ]
        )

    def _third_weights(self, seed: int, ranking: RankingName) -> Floats:
        """Return [3, N] weights of the thirds; NaN without a ranking."""
        found = self._reference.of(seed) if self._reference else None
        if found is None:
            return np.full((3, len(self._label)), np.nan)
        key = (found.hash, ranking)
        if key not in self._thirds:
            self._thirds[key] = self._made_weights(found, ranking)
        return self._thirds[key]

    def _made_weights(self, found: Ranking, ranking: RankingName) -> Floats:
        if ranking == "reference":
            return weights.of_classes(self._label, found.shares)
        first = self._splits.of(self._label)
        scores = found.half_scores(self._label, first, self._classes)
        return weights.of_crossfit(self._label, first, scores)

    # -- differences ---------------------------------------------------------------------------

    def differences(self, measure: Measure, baseline: int) -> Differences:
        """Return a metric of all rows minus that of one of them, with intervals.

        There is none with one seed or one row, nor where the metric is not defined.
        """
        values = measure.values
        by_seed = values - values[baseline]
        blank = np.full(len(values), np.nan)
        flags = np.zeros(len(values), bool)
        none = Differences(
            by_seed, blank, blank, blank, "", blank, blank, flags.astype(np.int64), flags
        )
        interval = measure.weight is not None or measure.statistic is not None
        if min(values.shape) < 2 or not interval or not np.isfinite(values).all():
            return none
        noise = seed_noise(values)
        seed, degrees = noise.of_difference(baseline)
        # What answers every image alike in every run does not differ by chance.
        alike = (self.answers.correct == self.answers.correct[baseline]).all((1, 2))
        seed = np.where(alike, 0, seed)
        made = dataclasses.replace(
            none, seed_part=np.sqrt(seed), degrees=degrees, outlier=noise.outlier
        )
        if measure.weight is not None:
            return self._by_t(made, measure.weight, baseline)
        assert measure.statistic is not None
        return self._by_bootstrap(made, measure.statistic, baseline)

    def _by_t(self, made: Differences, weight: Floats, baseline: int) -> Differences:
        if baseline not in self._noise:
            self._noise[baseline] = image_noise(self.answers, baseline)
        squares = self.answers.class_sum(weight**2)
        image = np.maximum(1e4 * (self._noise[baseline] @ squares), 0)
        half, p = crossed_t(made.mean, image, made.seed_part**2, made.degrees, self._free_images)
        return dataclasses.replace(
            made,
            low=made.mean - half,
            high=made.mean + half,
            p=p,
            kind="t",
            image_part=np.sqrt(image),
        )

    def _by_bootstrap(self, made: Differences, statistic: Statistic, baseline: int) -> Differences:
        drawn = 100 * self._drawn[statistic].astype(float)
        drawn -= drawn[:, [baseline]]
        seed = made.seed_part**2
        if self._draws < ENOUGH:
            image, _ = image_variance(drawn)
            half, _ = crossed_t(made.mean, image, seed, made.degrees, self._free_images)
            low, high = made.mean - half, made.mean + half
        else:
            low, high = crossed_bootstrap(made.mean, drawn, seed, made.degrees, self._rng())
        return dataclasses.replace(made, low=low, high=high, kind="bootstrap")

    @property
    def _free_images(self) -> int:
        return max(1, int(self.answers.count.sum()) - len(self.answers.count))

    def _rng(self) -> np.random.Generator:
        return np.random.Generator(np.random.PCG64(np.frombuffer(self._seed, "<u4")))

    @functools.cached_property
    def _drawn(self) -> dict[Statistic, npt.NDArray[np.float32]]:
        """[draws, M, S] of every statistic, from the same draws."""
        statistics = [*STATISTICS.values(), *_OWN.values()]
        parts: dict[Statistic, list[npt.NDArray[np.float32]]] = {each: [] for each in statistics}
        for accuracy in class_draws(self.answers, self._draws, self._rng()):
            accuracy.sort(axis=-1)
            for each, found in parts.items():
                found.append(each(accuracy))
        return {each: np.concatenate(found) for each, found in parts.items()}


def common_seeds(rows: Sequence[Row]) -> tuple[int, ...]:
    """Return the seeds that the first complete row has, ascending; empty without one."""
    complete = next((row for row in rows if not row.missing), None)
    return tuple(run.seed for run in complete.runs) if complete else ()
