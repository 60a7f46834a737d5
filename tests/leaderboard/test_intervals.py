"""Intervals of differences: by hand, against slow versions, and how often they hold the truth.

In the simulations a run answers an image of class k rightly with probability
logistic(class + image + method x image + method x seed + method x seed x class); all methods are
equally good on average, so that the true difference of every metric is zero.
"""

import numpy as np
import pytest
from scipy import stats

from classfair_leaderboard.intervals import (
    class_draws,
    crossed_bootstrap,
    crossed_t,
    image_noise,
    paired,
    seed_noise,
)

CLASSES, IMAGES, SEEDS = 10, 60, 3
LABEL = np.repeat(np.arange(CLASSES), IMAGES)
MIXES = {
    "images alone": (1.5, 1.0, 0.0, 0.0),
    "single answers": (0.0, 0.0, 0.0, 0.0),
    "some of each": (1.5, 1.0, 0.1, 0.1),
    "seeds as images": (1.5, 1.0, 0.3, 0.3),
    "classes by seed": (1.0, 0.5, 0.0, 0.4),
    "seeds alone": (1.0, 0.0, 0.5, 0.2),
}
OVERALL = np.full(len(LABEL), 1 / len(LABEL))
HARD = np.where(LABEL >= 7, 1 / (3 * IMAGES), 0.0)


def world(rng, methods: int, mix: tuple[float, float, float, float]) -> np.ndarray:
    """Return [methods, seeds, images] right answers."""
    image, method_image, seed, seed_class = mix
    ability = np.linspace(2.2, 0.2, CLASSES)[LABEL] + rng.normal(0, image, LABEL.size)
    ability = ability + rng.normal(0, method_image, (methods, 1, LABEL.size))
    ability = ability + rng.normal(0, seed, (methods, SEEDS, 1))
    ability = ability + rng.normal(0, seed_class, (methods, SEEDS, CLASSES))[..., LABEL]
    return rng.random(ability.shape) < 1 / (1 + np.exp(-ability))


def t_holds(right: np.ndarray, weight: np.ndarray) -> list[bool]:
    """Return for each method but the first whether its interval holds zero."""
    answers, order = paired(right, LABEL)
    values = answers.correct @ weight[order]
    noise = seed_noise(values)
    seed, degrees = noise.of_difference(0)
    squares = answers.class_sum(weight[order] ** 2)
    image = np.maximum(image_noise(answers, 0) @ squares, 0)
    difference = (values - values[0]).mean(1)
    half, p = crossed_t(difference, image, seed, degrees, LABEL.size - CLASSES)
    assert ((np.abs(difference) <= half) == (p >= 0.05))[1:].all()
    return (np.abs(difference) <= half)[1:].tolist()


@pytest.mark.parametrize("methods", [2, 4])
@pytest.mark.parametrize("mix", MIXES)
def test_t_intervals_hold_the_truth_as_often_as_they_say(methods: int, mix: str) -> None:
    """400 worlds: the standard error of a coverage of 0.95 is at most 0.011."""
    rng = np.random.default_rng([methods, *map(ord, mix)])
    held = [
        [t_holds(right, weight) for weight in (OVERALL, HARD)]
        for right in (world(rng, methods, MIXES[mix]) for _ in range(400))
    ]
    coverage = np.mean(held, axis=(0, 2))
    assert (coverage > 0.915).all(), coverage
    assert (coverage < 0.985).all(), coverage


def bootstrap_holds(right: np.ndarray, rng: np.random.Generator, draws: int) -> list[list[bool]]:
    """Return for worst and own-ranked gap, for each method, whether the interval holds zero."""
    answers, _ = paired(right, LABEL)
    drawn = np.concatenate(list(class_draws(answers, draws, rng)))
    held = []
    for statistic in (lambda a: a.min(-1), gap):
        values = statistic(answers.class_accuracy)
        seed, degrees = seed_noise(values).of_difference(0)
        simulated = statistic(drawn)
        low, high = crossed_bootstrap(
            (values - values[0]).mean(1), simulated - simulated[:, [0]], seed, degrees, rng
        )
        held.append(((low <= 1e-9) & (high >= -1e-9))[1:].tolist())
    return held


def gap(accuracy: np.ndarray) -> np.ndarray:
    ranked = -np.sort(-accuracy, axis=-1)
    return ranked[..., :4].mean(-1) - ranked[..., 7:].mean(-1)


@pytest.mark.parametrize("mix", ["images alone", "some of each", "classes by seed", "seeds alone"])
def test_bootstrap_intervals_hold_the_truth_as_often_as_they_say(mix: str) -> None:
    """150 worlds of three methods: the standard error is at most 0.018."""
    rng = np.random.default_rng([1, *map(ord, mix)])
    held = [bootstrap_holds(world(rng, 3, MIXES[mix]), rng, 300) for _ in range(150)]
    coverage = np.mean(held, axis=(0, 2))
    assert (coverage > 0.9).all(), coverage
    assert (coverage < 0.99).all(), coverage


@pytest.mark.slow
@pytest.mark.parametrize("methods", [2, 5, 15])
@pytest.mark.parametrize("mix", MIXES)
def test_coverage_is_between_92_and_98_percent(methods: int, mix: str) -> None:
    """2,000 worlds by t (600 for fifteen methods), 400 by bootstrap (100 for fifteen)."""
    rng = np.random.default_rng([2, methods, *map(ord, mix)])
    worlds = 600 if methods == 15 else 2000
    held = []
    for _ in range(worlds):
        right = world(rng, methods, MIXES[mix])
        held.append([t_holds(right, weight) for weight in (OVERALL, HARD)])
    coverage = np.mean(held, axis=(0, 2))
    drawn = [
        bootstrap_holds(world(rng, methods, MIXES[mix]), rng, 500)
        for _ in range(100 if methods == 15 else 400)
    ]
    coverage = np.concatenate([coverage, np.mean(drawn, axis=(0, 2))])
    print(methods, mix, coverage.round(3))
    assert (coverage[:2] > 0.92).all(), coverage
    assert (coverage[2:] > 0.905).all(), coverage  # 400 worlds: two standard errors below 0.92.
    assert (coverage < 0.98).all(), coverage


# -- the parts -----------------------------------------------------------------------------------


def test_two_methods_without_image_noise_give_the_paired_t_test() -> None:
    values = np.array([[70.0, 71.0, 69.5], [72.0, 72.5, 72.0]])
    seed, degrees = seed_noise(values).of_difference(0)
    half, p = crossed_t(np.diff(values, axis=0).mean(1), np.zeros(2), seed, degrees, 100)
    expected = stats.ttest_rel(values[1], values[0])
    assert degrees.tolist() == [2, 2]
    assert p[1] == pytest.approx(expected.pvalue)
    low, high = expected.confidence_interval(0.95)
    assert half[1] == pytest.approx((high - low) / 2)


def test_the_seed_part_is_pooled_over_methods() -> None:
    rng = np.random.default_rng(0)
    noise = seed_noise(rng.normal(70, 1, (15, 3)))
    assert noise.degrees == 28
    assert noise.pooled == pytest.approx(1, abs=0.4)
    assert not noise.outlier.any()
    shift = np.array([5.0, -3.0, 2.0])
    assert seed_noise(noise.values + shift).pooled == pytest.approx(noise.pooled)


def test_a_method_that_varies_much_more_stands_alone() -> None:
    values = np.random.default_rng(0).normal(70, 0.2, (8, 3))
    values[5] = [60, 75, 71]
    noise = seed_noise(values)
    assert noise.outlier.tolist() == [i == 5 for i in range(8)]
    assert noise.pooled < 0.1
    variance, degrees = noise.of_difference(0)
    assert degrees.tolist() == [12] * 5 + [2] + [12] * 2
    assert variance[5] == pytest.approx((values[5] - values[0]).var(ddof=1) / 3)
    variance, degrees = noise.of_difference(5)
    assert degrees.tolist() == [2] * 8
    assert variance[0] == pytest.approx((values[5] - values[0]).var(ddof=1) / 3)


def test_outliers_are_rarely_seen_where_there_are_none() -> None:
    rng = np.random.default_rng(0)
    found = [seed_noise(rng.normal(0, 1, (15, 3))).outlier.any() for _ in range(400)]
    assert np.mean(found) < 0.03


def test_equal_values_are_no_outliers_and_have_no_noise() -> None:
    noise = seed_noise(np.full((5, 3), 1 / 3))
    assert noise.pooled < 1e-30
    assert not noise.outlier.any()


def test_image_noise_is_the_variance_between_images_without_that_of_single_answers() -> None:
    """d = image + answer, so the variance of the mean over seeds is that plus this over S."""
    rng = np.random.default_rng(0)
    label = np.repeat(np.arange(2), 4000)
    share = rng.uniform(0.2, 0.8, label.size)
    first = rng.random((SEEDS, label.size)) < 0.5
    second = rng.random((SEEDS, label.size)) < share
    answers, _ = paired(np.array([first, second]), label)
    noise = image_noise(answers, 0)
    assert noise[0] == pytest.approx([0, 0])
    assert noise[1] == pytest.approx([0.36 / 12] * 2, abs=0.012)


def test_image_noise_equals_a_slow_version() -> None:
    rng = np.random.default_rng(0)
    label = rng.permutation(np.repeat(np.arange(3), [4, 5, 6]))
    right = rng.random((3, SEEDS, label.size)) < 0.6
    answers, _ = paired(right, label)
    fast = image_noise(answers, 1)
    for m in range(3):
        for k in range(3):
            d = right[m][:, label == k] * 1.0 - right[1][:, label == k]
            single = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
            free = (SEEDS - 1) * (d.shape[1] - 1)
            slow = d.mean(0).var(ddof=1) - (single**2).sum() / free / SEEDS
            assert fast[m, k] == pytest.approx(slow)


def test_a_class_of_one_image_has_the_noise_of_the_others() -> None:
    label = np.array([0, 0, 0, 0, 1])
    right = np.random.default_rng(0).random((2, 3, 5)) < 0.5
    noise = image_noise(paired(right, label)[0], 0)
    assert noise[1, 1] == noise[1, 0]


def test_methods_that_agree_everywhere_have_no_width_and_p_one() -> None:
    half, p = crossed_t(np.zeros(1), np.zeros(1), np.zeros(1), np.array([2]), 10)
    assert (half[0], p[0]) == (0, 1)
    half, p = crossed_t(np.ones(1), np.zeros(1), np.zeros(1), np.array([2]), 10)
    assert (half[0], p[0]) == (0, 0)


def test_draws_vary_as_a_mean_of_resampled_images_does_alike_for_all_runs() -> None:
    label = np.repeat(np.arange(2), 30)
    right = np.random.default_rng(0).random((2, 2, 60)) < [[[0.5], [0.5]], [[0.8], [0.8]]]
    right[1, 1] = right[1, 0]
    answers, _ = paired(right, label)
    drawn = np.concatenate(list(class_draws(answers, 4000, np.random.default_rng(1))))
    assert drawn.shape == (4000, 2, 2, 2)
    assert drawn.mean(0) == pytest.approx(answers.class_accuracy, abs=0.01)
    share = answers.class_accuracy
    assert drawn.std(0) == pytest.approx(np.sqrt(share * (1 - share) / 29), rel=0.06)
    assert np.array_equal(drawn[:, 1, 0], drawn[:, 1, 1])


def test_draws_in_parts_equal_draws_at_once_in_number(monkeypatch) -> None:
    answers, _ = paired(np.ones((2, 2, 12), bool), np.repeat(np.arange(3), 4))
    monkeypatch.setattr("classfair_leaderboard.intervals._CHUNK", 100)
    parts = list(class_draws(answers, 50, np.random.default_rng(0)))
    assert len(parts) > 5
    assert sum(len(part) for part in parts) == 50
