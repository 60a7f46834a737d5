"""Rankings of the classes by dedicated ERM runs, and the files in which they are frozen.

A frozen ranking is ``rankings/RECIPE.json``: everybody who reports that recipe has the same hard
classes. It holds, for each test image, in how many of the runs the answer was right, so that the
classes can also be ranked on any part of the images.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair_leaderboard.load import Run
from classfair_registry.crossfit import half_accuracy
from classfair_registry.errors import ClassfairError
from classfair_registry.files import digest
from classfair_registry.predictions import Floats, membership
from classfair_registry.records import PROTOCOL, Stored, slug

FROZEN = Path(__file__).parent / "rankings"
"""The folder of the rankings that ship."""

Hits = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, eq=False)
class Ranking:
    """Classes ranked by the mean accuracy over some runs.

    Attributes:
        recipe_name: of the recipe.
        recipe_key: of the recipe and the data: it ranks the classes of no other.
        runs: ``seed``, ``key`` and ``result_digest`` of each run, sorted by seed.
        scores: [K] mean accuracies in [0, 1], best is easiest; NaN without test images.
        load_hits: returns [N] numbers of the runs that are right, by test image.
    """

    recipe_name: str
    recipe_key: str
    runs: tuple[Mapping[str, Any], ...]
    scores: Floats
    load_hits: Callable[[], Hits]

    @property
    def hash(self) -> str:
        """12 characters that stand for recipe, runs and scores."""
        scores = [None if np.isnan(score) else float(score) for score in self.scores]
        results = [run["result_digest"] for run in self.runs]
        return digest({"recipe": self.recipe_key, "results": results, "scores": scores})[:12]

    @functools.cached_property
    def hits(self) -> Hits:
        """[N] numbers of the runs that are right, by test image."""
        return self.load_hits()

    @functools.cached_property
    def shares(self) -> Floats:
        """[3, K] membership of each class in the easy, medium and hard third."""
        return membership(self.scores)

    def half_scores(
        self, label: npt.NDArray[np.int64], first: npt.NDArray[np.bool_], num_classes: int
    ) -> Floats:
        """Return [splits, 2, K] mean accuracies on the halves of the test images.

        Args:
            label: [N] true classes.
            first: [splits, N], see :func:`classfair_registry.crossfit.halves`.
            num_classes: K.

        Raises:
            ClassfairError: if the ranking was made on other test images.
        """
        if len(self.hits) != len(label):
            raise ClassfairError(
                f"ranking {self.hash} of {self.recipe_name}: made on {len(self.hits)} test images, "
                f"not on these {len(label)}"
            )
        return half_accuracy(self.hits / len(self.runs), label, first, num_classes)


def from_runs(runs: Sequence[Run]) -> Ranking:
    """Return the ranking by the mean class accuracy over runs of one recipe.

    Scores are quotients of whole numbers, so that classes which are equally often right are tied
    exactly.
    """
    runs = sorted(runs, key=lambda run: (run.seed, run.record.cell.key))
    right = sum(np.rint(np.nan_to_num(run.accuracy) * run.count) for run in runs)
    count = runs[0].count * len(runs)
    scores = np.divide(right, count, out=np.full(len(count), np.nan), where=count > 0)

    def load_hits() -> Hits:
        right: list[Hits] = [run.answers().correct.astype(np.int64) for run in runs]
        return np.asarray(sum(right))

    cell = runs[0].record.cell
    told = tuple(
        {
            "seed": run.seed,
            "key": run.record.cell.key,
            "result_digest": run.record.result_digest,
        }
        for run in runs
    )
    return Ranking(cell.recipe_name, cell.recipe_key, told, scores, load_hits)


class RankingFile(Stored):
    """A ranking as it is frozen."""

    protocol: int = PROTOCOL
    recipe_name: str
    recipe_key: str
    hash: str
    """As quoted under tables."""
    runs: list[dict[str, Any]]
    order: list[int]
    """Classes from the easiest to the hardest."""
    scores: list[float | None]
    hits: str
    """Numbers of right runs by test image, separated by spaces."""
    own_digest: str = ""
    """sha256 of the rest of the file: one that was edited is noticed."""

    def seal(self) -> str:
        """Return what ``own_digest`` must be."""
        return digest({k: v for k, v in self.to_json().items() if k != "own_digest"})


def freeze(ranking: Ranking, folder: Path = FROZEN) -> Path:
    """Write a ranking as ``RECIPE.json`` into a folder and return the file."""
    scores = ranking.scores
    order = np.argsort(-scores, kind="stable")
    file = RankingFile(
        recipe_name=ranking.recipe_name,
        recipe_key=ranking.recipe_key,
        hash=ranking.hash,
        runs=[dict(run) for run in ranking.runs],
        order=order[: np.isfinite(scores).sum()].tolist(),
        scores=[None if np.isnan(score) else float(score) for score in scores],
        hits=" ".join(str(number) for number in ranking.hits),
    )
    path = folder / f"{slug(ranking.recipe_name)}.json"
    file.model_copy(update={"own_digest": file.seal()}).save(path)
    return path


def load_frozen(folder: Path = FROZEN) -> tuple[dict[str, Ranking], list[str]]:
    """Return the frozen rankings of a folder by recipe key, and the complaints."""
    found: dict[str, Ranking] = {}
    complaints = []
    for path in sorted(folder.glob("*.json")):
        try:
            ranking = _thaw(path)
            if ranking.recipe_key in found:
                raise ClassfairError(f"{path}: a second ranking of the same recipe and data")
            found[ranking.recipe_key] = ranking
        except ClassfairError as error:
            complaints.append(f"{error}; the ranking is left out")
    return found, complaints


def _thaw(path: Path) -> Ranking:
    file = RankingFile.load(path)
    if file.protocol != PROTOCOL:
        raise ClassfairError(f"{path}: of protocol {file.protocol}, not {PROTOCOL}")
    if file.own_digest != file.seal():
        raise ClassfairError(f"{path}: the ranking was edited after it was frozen")
    scores = np.array(file.scores, float)

    def hits() -> Hits:
        return np.array(file.hits.split(), np.int64)

    return Ranking(file.recipe_name, file.recipe_key, tuple(file.runs), scores, hits)
