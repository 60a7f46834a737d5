"""Accuracies of the easy, medium and hard thirds of the classes under the four rankings.

``own`` ranks the classes by the very accuracies that are then averaged, as papers do: what is
unlucky is called hard, so hard comes out too low. ``reference`` ranks them by other ERM runs. The
two cross-fitted rankings also use other images: classes are ranked on one half of each class's test
images and measured on the other half, both ways.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from classfair_leaderboard.answers import Answers
from classfair_leaderboard.load import Run
from classfair_leaderboard.ranking import Ranking, from_runs
from classfair_registry.crossfit import half_accuracy, halves
from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import Floats, Predictions, membership, weighted_mean

RankingName = Literal["own", "reference", "own_crossfit", "reference_crossfit"]
RANKINGS: tuple[RankingName, ...] = ("own", "reference", "own_crossfit", "reference_crossfit")
GROUPS = ("easy", "medium", "hard", "gap")
"""What :func:`measure` returns, in this order."""


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """By which runs the classes of a recipe are ranked, whatever the method.

    Attributes:
        kind: ``frozen`` in a file, ``dedicated`` runs in the results folder, or the ``local`` ERM
            runs of other seeds.
        of: maps the seed of an evaluated run to its ranking, or None if there is none.
        hash: of the ranking, empty where it depends on the seed.
        runs: number of runs that rank.
    """

    kind: Literal["frozen", "dedicated", "local"]
    of: Callable[[int], Ranking | None]
    hash: str
    runs: int


def fixed(kind: Literal["frozen", "dedicated"], ranking: Ranking) -> Reference:
    """Return the reference that ranks by one ranking, whatever the seed."""
    return Reference(kind, lambda _seed: ranking, ranking.hash, len(ranking.runs))


def local(erm: Sequence[Run]) -> Reference | None:
    """Return the reference that ranks by ERM runs of other seeds than the evaluated one's.

    It is for want of dedicated runs: the rankings differ from seed to seed, and change when a run
    is added.
    """
    if len({run.seed for run in erm}) < 2:
        return None

    @functools.cache
    def of(seed: int) -> Ranking | None:
        others = [run for run in erm if run.seed != seed]
        return from_runs(others) if others else None

    return Reference("local", of, "", len(erm))


def thirds(accuracy: Floats, shares: Floats) -> tuple[float, float, float]:
    """Return the means of ``accuracy`` [K] over the thirds with memberships ``shares`` [3, K]."""
    easy, medium, hard = (weighted_mean(accuracy, share) for share in shares)
    return easy, medium, hard


def crossfit_thirds(accuracy: Floats, scores: Floats) -> tuple[float, float, float]:
    """Return the cross-fitted means over the thirds.

    Args:
        accuracy: [splits, 2, K] of the evaluated model on the halves.
        scores: [splits, 2, K] by which classes are ranked; those of a half rank the classes whose
            accuracy is taken from the other half. A class that is missing in a half counts not.
    """
    measured = accuracy[:, ::-1]
    missing = np.isnan(measured) | np.isnan(scores)
    shares = membership(np.where(missing, np.nan, scores))
    totals = (shares * np.nan_to_num(measured)[:, :, None]).sum(-1)
    weights = shares.sum(-1)
    means = np.divide(totals, weights, out=np.full(totals.shape, np.nan), where=weights > 0)
    easy, medium, hard = means.mean((0, 1)).tolist()
    return easy, medium, hard


class Splits:
    """The fixed splits of one data set's test images, made once for all of its runs.

    Args:
        fingerprint: of the data set's content; it seeds them.
    """

    def __init__(self, fingerprint: str) -> None:
        self._seed = fingerprint
        self._label: npt.NDArray[np.int64] | None = None
        self._first: npt.NDArray[np.bool_] = np.empty((0, 0), bool)

    def of(self, label: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return [splits, N] whether an image is in the first half.

        Raises:
            ClassfairError: if the labels [N] differ from those of an earlier call.
        """
        if self._label is None:
            self._label, self._first = label, halves(label, self._seed)
        elif not np.array_equal(label, self._label):
            raise ClassfairError("its test labels differ from those of other runs in its table")
        return self._first


def measure(
    run: Run, name: RankingName, reference: Reference | None, splits: Splits
) -> tuple[float, float, float, float]:
    """Return easy, medium, hard (in percent) and gap (in points) of a run; NaN without a ranking.

    Args:
        run: the evaluated one.
        name: of the ranking.
        reference: by which runs to rank, for the two reference rankings.
        splits: of its test images, for the two cross-fitted rankings.

    Raises:
        ClassfairError: naming the run, if its predictions are needed and cannot be used.
    """
    ranking = reference.of(run.seed) if reference and name.startswith("reference") else None
    if ranking is None and name.startswith("reference"):
        return (np.nan,) * 4
    if name.endswith("crossfit"):
        easy, medium, hard = _crossfit(run, ranking, splits)
    else:
        shares = membership(run.accuracy) if ranking is None else ranking.shares
        classes = shares.shape[1]
        if classes != len(run.accuracy):
            raise ClassfairError(f"{run.folder}: not of the {classes} classes that are ranked")
        easy, medium, hard = thirds(100 * run.accuracy, shares)
    return easy, medium, hard, easy - hard


def views(
    run: Run, name: RankingName, reference: Reference | None, splits: Splits
) -> list[Predictions]:
    """Return the predictions on which any ranked metric is to be computed and then averaged.

    One view for ``own`` and ``reference``; one for each half of each split when cross-fitted; none
    without a ranking. Values that are stored per class are those of all images in every view.

    Args, raises: see :func:`measure`.
    """
    ranking = reference.of(run.seed) if reference and name.startswith("reference") else None
    if ranking is None and name.startswith("reference"):
        return []
    predictions = run.predictions()
    if not name.endswith("crossfit"):
        return [predictions if ranking is None else predictions.ranked_by(ranking.scores)]
    first, accuracy, scores = _halved(run, predictions, ranking, splits)
    scores = np.where(np.isnan(accuracy[:, ::-1]), np.nan, scores)
    return [
        predictions.only(measured).ranked_by(scores[split, side])
        for split, chosen in enumerate(first)
        for side, measured in enumerate((~chosen, chosen))
    ]


def _crossfit(run: Run, ranking: Ranking | None, splits: Splits) -> tuple[float, float, float]:
    _, accuracy, scores = _halved(run, run.answers(), ranking, splits)
    return crossfit_thirds(100 * accuracy, scores)


def _halved(
    run: Run, answers: Answers | Predictions, ranking: Ranking | None, splits: Splits
) -> tuple[npt.NDArray[np.bool_], Floats, Floats]:
    """Return the splits, and accuracies and ranking scores [splits, 2, K] on the halves."""
    label, classes = answers.label, answers.num_classes
    try:
        first = splits.of(label)
        accuracy = half_accuracy(answers.correct, label, first, classes)
        scores = accuracy if ranking is None else ranking.half_scores(label, first, classes)
    except ClassfairError as error:
        raise ClassfairError(f"{run.folder}: {error}") from error
    return first, accuracy, scores
