"""What each ranking does to numbers whose truth is known. Tolerances are in points of accuracy.

A run answers image i of class k rightly with probability logistic(a_k + b_i + c_i): a_k says how
hard the class is, b_i how hard the image is for everybody, c_i how hard it is for this *method*.
All seeds of a method share c_i, which is why ERM runs with other seeds still share ERM's luck.
"""

import numpy as np
import pytest

from classfair_leaderboard.groups import crossfit_thirds, thirds
from classfair_registry.crossfit import half_accuracy, halves
from classfair_registry.predictions import membership

CLASSES, IMAGES, WORLDS = 30, 20, 400
LABEL = np.repeat(np.arange(CLASSES), IMAGES)
FIRST = halves(LABEL, "simulated")
HARD = 2


def own_bias(true: np.ndarray, images: int) -> tuple[float, float]:
    """Return by how much own-ranked hard and gap differ from those of the true thirds, on average.

    Over 400 models with true class accuracies ``true`` [K] on so many images a class.
    """
    rng = np.random.default_rng(1)
    seen = rng.binomial(images, true, (WORLDS, len(true))) / images
    easy, _, hard = np.mean([thirds(accuracy, membership(accuracy)) for accuracy in seen], axis=0)
    true_easy, _, true_hard = thirds(true, membership(true))
    return 100 * (hard - true_hard), 100 * ((easy - hard) - (true_easy - true_hard))


def test_own_ranked_hard_is_too_low_and_the_gap_too_wide() -> None:
    """Standard error 0.1; the true hard third is at 64.7 %."""
    hard, gap = own_bias(np.linspace(0.6, 0.9, CLASSES), IMAGES)
    assert hard < -2
    assert gap > 4


def test_own_ranked_hard_is_worst_for_even_models_and_few_images() -> None:
    uneven, even = np.linspace(0.5, 0.9, CLASSES), np.full(CLASSES, 0.7)
    assert own_bias(even, IMAGES)[0] < own_bias(uneven, IMAGES)[0] - 4
    assert own_bias(even, IMAGES)[0] < own_bias(even, 20 * IMAGES)[0] - 4
    assert -1 < own_bias(uneven, 20 * IMAGES)[0] < 0


def gains() -> np.ndarray:
    """Return [worlds, 3] gains on hard of a method that is ERM's equal in every class.

    Its own c_i are drawn from the same distribution. Ranked by the compared three ERM runs, by five
    dedicated ones, and by these cross-fitted.
    """
    rng = np.random.default_rng(2)
    found = []
    for _ in range(WORLDS):
        difficulty = rng.normal(1.2, 0.6, CLASSES)[LABEL] + rng.normal(0, 1, LABEL.size)
        ability = difficulty + rng.normal(0, 1.5, (2, LABEL.size))  # of ERM and of the method
        share = 1 / (1 + np.exp(-ability))
        erm, method = (rng.random((3, LABEL.size)) < share[n] for n in (0, 1))
        dedicated = (rng.random((5, LABEL.size)) < share[0]).mean(0)
        compared = [gain(method, erm, scores) for scores in (erm.mean(0), dedicated)]
        found.append([*compared, crossfit_gain(method, erm, dedicated)])
    return 100 * np.array(found)


def gain(method: np.ndarray, erm: np.ndarray, ranking: np.ndarray) -> float:
    shares = membership(accuracy(ranking))
    hard = [
        np.mean([thirds(accuracy(run), shares)[HARD] for run in runs]) for runs in (method, erm)
    ]
    return hard[0] - hard[1]


def accuracy(right: np.ndarray) -> np.ndarray:
    return np.asarray(right, float).reshape(CLASSES, IMAGES).mean(1)


def crossfit_gain(method: np.ndarray, erm: np.ndarray, ranking: np.ndarray) -> float:
    scores = half_accuracy(ranking, LABEL, FIRST, CLASSES)
    # The thirds depend on the ranking alone, so the mean over seeds may be taken first.
    means = (half_accuracy(runs.mean(0), LABEL, FIRST, CLASSES) for runs in (method, erm))
    hard = [crossfit_thirds(mean, scores)[HARD] for mean in means]
    return hard[0] - hard[1]


@pytest.fixture(scope="module")
def compared() -> np.ndarray:
    return gains()


def test_ranking_by_the_compared_erm_runs_credits_a_mere_equal_with_a_gain(compared) -> None:
    """About 5 points here, standard error 0.2."""
    assert compared[:, 0].mean() > 4


def test_dedicated_runs_shrink_the_undeserved_gain(compared) -> None:
    """About 3 points are left: dedicated runs fail on the same images as the compared ones."""
    assert 0.3 * compared[:, 0].mean() < compared[:, 1].mean() < 0.8 * compared[:, 0].mean()


def test_reference_crossfit_removes_the_undeserved_gain(compared) -> None:
    """Expectation zero: within 0.5 points and three standard errors of it."""
    found = compared[:, 2]
    error = found.std(ddof=1) / np.sqrt(len(found))
    assert error < 0.25
    assert abs(found.mean()) < min(0.5, 3 * error)


def test_dedicated_runs_remove_it_where_methods_fail_on_the_same_images() -> None:
    """Without c_i all that ERM's runs share with one another they share with the method."""
    rng = np.random.default_rng(3)
    found = []
    for _ in range(WORLDS):
        ability = rng.normal(1.2, 0.6, CLASSES)[LABEL] + rng.normal(0, 1, LABEL.size)
        share = 1 / (1 + np.exp(-ability))
        runs = rng.random((11, LABEL.size)) < share
        method, erm, dedicated = runs[:3], runs[3:6], runs[6:].mean(0)
        found.append([gain(method, erm, scores) for scores in (erm.mean(0), dedicated)])
    by_compared, by_dedicated = 100 * np.mean(found, axis=0)
    assert by_compared > 1.5
    assert abs(by_dedicated) < 0.5
