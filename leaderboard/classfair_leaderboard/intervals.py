"""How far a difference of two methods may be off: seeds crossed with test images.

All runs answer the same test images, and run s of every method has seed s. So the difference of two
methods varies with the images (they might have been others) and with the seeds, crossed::

    variance = image part + seed part

The seed part is what is left of the values [methods, seeds] without method means and seed means,
pooled over the methods of a table: three seeds alone say little. It holds the noise of single
answers (image x seed) already, so the image part is the variance over images without it, as in
multiway clustering (Cameron, Gelbach and Miller, Robust Inference With Multiway Clustering, 2011).
Images are those of fixed classes: only the spread within a class counts.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from scipy.special import fdtrc, stdtr, stdtrit

from classfair_leaderboard.answers import Labels, Right
from classfair_registry.predictions import Floats

LEVEL = 0.95
"""Of every interval."""
_OUTLIER = 0.01
"""Chance that one method of a table without outliers is called one."""
_CHUNK = 5_000_000
"""Class accuracies that are held at a time."""


@dataclasses.dataclass(frozen=True, eq=False)
class Paired:
    """Right answers of M methods with the same S seeds, images sorted by class.

    Attributes:
        correct: [M, S, N] in float32, 1 where right.
        count: [K'] images of each class that has any.
    """

    correct: npt.NDArray[np.float32]
    count: npt.NDArray[np.int64]

    @property
    def starts(self) -> npt.NDArray[np.int64]:
        """[K'] place of each class's first image."""
        return np.cumsum(self.count) - self.count

    @functools.cached_property
    def class_accuracy(self) -> Floats:
        """[M, S, K'] in [0, 1]."""
        return self.class_sum(self.correct) / self.count

    def class_sum(self, values: npt.ArrayLike) -> Floats:
        """Return [..., K'] sums of [..., N] values over the images of each class."""
        return np.add.reduceat(np.asarray(values, float), self.starts, axis=-1)


def paired(right: Right, label: Labels) -> tuple[Paired, npt.NDArray[np.int64]]:
    """Return the answers sorted by class, and the [N] order that sorts them.

    Args:
        right: [M, S, N] whether an answer is right.
        label: [N] true classes.
    """
    order = np.argsort(label, kind="stable")
    count = np.bincount(label)
    return Paired(right[..., order].astype(np.float32), count[count > 0]), order


def image_noise(answers: Paired, baseline: int) -> Floats:
    """Return [M, K'] variances over the images of a class, of the difference to ``baseline``.

    Without the noise of single answers, so an entry may be below 0. A class with one image has the
    mean of the others'.
    """
    differences = answers.correct - answers.correct[baseline]
    seeds, n = differences.shape[1], answers.count
    mean = differences.mean(1, dtype=float)
    mean_sum, square_sum = answers.class_sum(mean), answers.class_sum(mean**2)
    by_seed = answers.class_sum(differences)
    within = answers.class_sum((differences**2).sum(1)) - seeds * square_sum
    between = ((by_seed**2).sum(1) - seeds * mean_sum**2) / n
    with np.errstate(divide="ignore", invalid="ignore"):
        over_images = (square_sum - mean_sum**2 / n) / (n - 1)
        single = (within - between) / ((seeds - 1) * (n - 1))
    net = over_images - single / seeds
    usable = n > 1
    fill = net[:, usable].mean(1, keepdims=True) if usable.any() else np.nan
    return np.asarray(np.where(usable, net, fill))


@dataclasses.dataclass(frozen=True, eq=False)
class SeedNoise:
    """What seeds do to one metric, pooled over methods.

    Attributes:
        values: [M, S] of the metric.
        pooled: variance of a value without method and seed means, outliers left out.
        degrees: of freedom of ``pooled``.
        outlier: [M] methods that vary so much more than the others that they stand alone.
    """

    values: Floats
    pooled: float
    degrees: int
    outlier: npt.NDArray[np.bool_]

    def of_difference(self, baseline: int) -> tuple[Floats, npt.NDArray[np.int64]]:
        """Return [M] variances of the mean difference to ``baseline``, and degrees of freedom.

        Pooled, but for a pair with an outlier, whose own paired differences count.
        """
        seeds = self.values.shape[1]
        alone = self.outlier | self.outlier[baseline]
        own = (self.values - self.values[baseline]).var(1, ddof=1) / seeds
        variance = np.where(alone, own, 2 * self.pooled / seeds)
        return variance, np.where(alone, seeds - 1, self.degrees)


def seed_noise(values: Floats) -> SeedNoise:
    """Pool the seeds' variance of [M >= 2, S >= 2] values; look for outliers from three methods on.

    A method is an outlier if an F test of its residuals against those of the others says so at 1 %,
    divided by the number of methods; the largest is taken out first, and two always stay.
    """
    outlier = np.zeros(len(values), bool)
    while (~outlier).sum() > 2:
        kept = np.flatnonzero(~outlier)
        largest = _largest(values[kept])
        if largest is None:
            break
        outlier[kept[largest]] = True
    residual = _residuals(values[~outlier])
    degrees = (len(residual) - 1) * (residual.shape[1] - 1)
    return SeedNoise(values, float((residual**2).sum() / degrees), degrees, outlier)


def _residuals(values: Floats) -> Floats:
    means = values.mean(0, keepdims=True) + values.mean(1, keepdims=True) - values.mean()
    return np.asarray(values - means)


def _largest(values: Floats) -> int | None:
    """Return the method that varies most if it is an outlier."""
    methods, seeds = values.shape
    # The method's values against the mean of the others, and the others among themselves.
    squares = (_residuals(values) ** 2).sum(1)
    chosen = int(squares.argmax())
    others = np.delete(values, chosen, 0)
    against = values[chosen] - others.mean(0)
    own = ((against - against.mean()) ** 2).sum() / (seeds - 1)
    degrees = (methods - 2) * (seeds - 1)
    rest = (_residuals(others) ** 2).sum() / degrees * methods / (methods - 1)
    if own <= 1e-12 * max(1.0, float(np.abs(values).max())) ** 2:
        return None
    chance = fdtrc(seeds - 1, degrees, own / rest) if rest > 0 else 0.0
    return chosen if chance < _OUTLIER / methods else None


def crossed_t(
    difference: Floats, image: Floats, seed: Floats, degrees: npt.NDArray[np.int64], images: int
) -> tuple[Floats, Floats]:
    """Return half widths of the intervals, and two-sided p values of no difference.

    Degrees of freedom of the summed variance are Satterthwaite's, for a seed part that is larger by
    1 + 2/f: estimated from few seeds it is often too small by luck, and would then count as if it
    were known (coverage at two methods and three seeds 0.91 without, 0.94 with; simulated).

    Args:
        difference: [M] observed.
        image: [M] image parts of the variance, not negative.
        seed: [M] seed parts.
        degrees: [M] of freedom of the seed parts.
        images: degrees of freedom of the image parts.
    """
    variance = image + seed
    with np.errstate(divide="ignore", invalid="ignore"):
        larger = seed * (1 + 2 / degrees)
        freedom = (larger + image) ** 2 / (larger**2 / degrees + image**2 / images)
        freedom = np.where(variance > 0, freedom, degrees)
        distance = np.abs(difference) / np.sqrt(variance)
    half = stdtrit(freedom, (1 + LEVEL) / 2) * np.sqrt(variance)
    p = 2 * stdtr(freedom, -np.where(np.isnan(distance), 0, distance))
    return np.asarray(half), np.asarray(p)


# -- metrics that are no weighted sums -----------------------------------------------------------


def class_draws(
    answers: Paired, draws: int, rng: np.random.Generator
) -> Iterator[npt.NDArray[np.float32]]:
    """Yield [B, M, S, K'] class accuracies on resampled images, ``draws`` in all.

    Every draw gives the images of a class random weights, the same for all methods and seeds: the
    Bayesian bootstrap (Rubin 1981). Deviations are widened from a variance over n + 1 to n - 1.
    """
    methods, seeds, _ = answers.correct.shape
    runs, n = methods * seeds, answers.count
    flat = answers.correct.reshape(runs, -1)
    seen = (answers.class_accuracy.reshape(runs, -1)).astype(np.float32)
    wider = np.sqrt((n + 1) / np.maximum(n - 1, 1)).astype(np.float32)
    largest = max(1, _CHUNK // max(runs * len(n), int(n.max())))
    for begin in range(0, draws, largest):
        size = min(largest, draws - begin)
        drawn = np.empty((size, runs, len(n)), np.float32)
        for k, (start, count) in enumerate(zip(answers.starts, n, strict=True)):
            weight = rng.standard_exponential((size, count), dtype=np.float32)
            weight /= weight.sum(1, keepdims=True)
            drawn[:, :, k] = weight @ flat[:, start : start + count].T
        drawn -= seen
        drawn *= wider
        drawn += seen
        yield drawn.clip(0, 1, out=drawn).reshape(size, methods, seeds, len(n))


def crossed_bootstrap(
    difference: Floats,
    drawn: Floats,
    seed: Floats,
    degrees: npt.NDArray[np.int64],
    rng: np.random.Generator,
) -> tuple[Floats, Floats]:
    """Return lower and upper bounds from draws of images crossed with draws of seeds.

    Resampling three seeds says little about seeds, so theirs are drawn from a t distribution with
    the pooled variance. Draws of images lose the noise of single answers, which the seed part has.

    Args:
        difference: [M] observed.
        drawn: [draws, M, S] differences of each seed on resampled images.
        seed: [M] seed parts of the variance.
        degrees: [M] of freedom of the seed parts.
        rng: for the seeds.
    """
    mean = drawn.mean(2)
    net, over_images = image_variance(drawn)
    shrunk = np.sqrt(net / np.where(over_images > 0, over_images, 1))
    noise = (mean - mean.mean(0)) * shrunk
    noise = noise + rng.standard_t(degrees, mean.shape) * np.sqrt(seed)
    low, high = np.quantile(noise, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return difference + low, difference + high


def image_variance(drawn: Floats) -> tuple[Floats, Floats]:
    """Return [M] variances over draws [draws, M, S] of images: without and with single answers."""
    seeds = drawn.shape[2]
    over_images = drawn.mean(2).var(0)
    single = np.maximum(drawn.var(0).mean(1) - over_images, 0) / max(seeds - 1, 1)
    return np.maximum(over_images - single, 0), over_images
