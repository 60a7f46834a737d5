"""Accuracies and how evenly they are spread over the classes.

Accuracies are in percent, differences of them in points. A class without test images counts in none
of them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable

import numpy as np

from classfair_plugins.metrics._thirds import over_thirds
from classfair_registry import hookimpl
from classfair_registry.crossfit import half_accuracy, halves
from classfair_registry.predictions import Floats, Predictions
from classfair_registry.specs import MetricSpec


def class_accuracy(predictions: Predictions) -> Floats:
    """Return [K] accuracies in percent, NaN for a class without test images."""
    return 100 * predictions.class_accuracy


def overall(predictions: Predictions) -> float:
    """Return the share of right answers among all test images."""
    return 100 * float(predictions.correct.mean())


def mean_class(predictions: Predictions) -> float:
    """Return the mean of the classes' accuracies."""
    return float(_present(predictions).mean())


def gap(predictions: Predictions) -> float:
    """Return the accuracy of the easy third minus that of the hard one."""
    accuracy = class_accuracy(predictions)
    return predictions.third_mean(accuracy, "easy") - predictions.third_mean(accuracy, "hard")


def worst(predictions: Predictions) -> float:
    """Return the accuracy of the worst class."""
    return float(_present(predictions).min())


def worst10(predictions: Predictions) -> float:
    """Return the mean accuracy of the worst tenth of the classes, rounded up."""
    ranked = np.sort(_present(predictions))
    return float(ranked[: math.ceil(len(ranked) / 10)].mean())


def worst_crossfit(predictions: Predictions) -> float:
    """Return the accuracy, on the other half of the images, of the class that is worst on one.

    The splits are seeded by the test labels, so they are the same for all models of a data set.
    Several worst classes count equally; a class with a single image is never looked at.
    """
    seed = hashlib.sha256(predictions.label.astype("<i8").tobytes()).hexdigest()
    first = halves(predictions.label, seed)
    chosen = half_accuracy(predictions.correct, predictions.label, first, predictions.num_classes)
    measured = chosen[:, ::-1]
    usable = ~np.isnan(chosen + measured)
    if not usable.any():
        return math.nan
    lowest = np.where(usable, chosen, np.inf).min(-1, keepdims=True)
    worst_classes = usable & (chosen == lowest)
    total = np.where(worst_classes, measured, 0).sum(-1)
    return 100 * float((total / worst_classes.sum(-1)).mean())


def class_std(predictions: Predictions) -> float:
    """Return the population standard deviation over the classes' accuracies."""
    return float(_present(predictions).std())


def class_std_adj(predictions: Predictions) -> float:
    """Return :func:`class_std` without what few images a class add to it."""
    count = predictions.count[predictions.count > 0]
    if count.min() < 2:
        return math.nan
    share = predictions.class_accuracy[predictions.count > 0]
    noise = (share * (1 - share) / (count - 1)).mean()
    return 100 * math.sqrt(max(0.0, float(share.var() - noise)))


def harmonic(predictions: Predictions) -> float:
    """Return the harmonic mean of the classes' accuracies: 0 if one of them is."""
    accuracy = _present(predictions)
    return float(len(accuracy) / (1 / accuracy).sum()) if accuracy.min() > 0 else 0.0


def geometric(predictions: Predictions) -> float:
    """Return the geometric mean of the classes' accuracies: 0 if one of them is."""
    accuracy = _present(predictions)
    return float(np.exp(np.log(accuracy).mean())) if accuracy.min() > 0 else 0.0


def _present(predictions: Predictions) -> Floats:
    """Return the accuracies in percent of the classes that have test images."""
    return class_accuracy(predictions)[predictions.count > 0]


@hookimpl
def classfair_metrics() -> Iterable[MetricSpec]:
    """Provide them."""
    yield MetricSpec(
        "overall", "overall", overall, "higher", "%", "Top-1 accuracy over all test images."
    )
    yield MetricSpec(
        "mean_class", "mean class", mean_class, "higher", "%", "Mean of the per-class accuracies."
    )
    yield from over_thirds(
        "", "", class_accuracy, "higher", "%", "Accuracy per class; classes ranked, best first."
    )
    yield MetricSpec(
        "gap", "gap", gap, "lower", "points", "Accuracy of the easy third minus the hard's.", True
    )
    yield MetricSpec("worst", "worst", worst, "higher", "%", "Accuracy of the worst class.")
    yield MetricSpec(
        "worst10",
        "worst tenth",
        worst10,
        "higher",
        "%",
        "Mean accuracy of the worst tenth of the classes (rounded up).",
    )
    yield MetricSpec(
        "worst_crossfit",
        "worst, cross-fitted",
        worst_crossfit,
        "higher",
        "%",
        "Accuracy of the class that is worst on one half of each class's test images, measured on "
        "the other half, both ways, over 10 fixed splits.",
    )
    yield MetricSpec(
        "class_std",
        "class std",
        class_std,
        "lower",
        "points",
        "Population standard deviation over the per-class accuracies.",
    )
    yield MetricSpec(
        "class_std_adj",
        "class std, adjusted",
        class_std_adj,
        "lower",
        "points",
        "Square root of the variance over the per-class accuracies p minus the mean of "
        "p(1-p)/(n-1), which n images a class add to it; not below 0.",
    )
    yield MetricSpec(
        "harmonic", "harmonic", harmonic, "higher", "%", "Harmonic mean of per-class accuracies."
    )
    yield MetricSpec(
        "geometric",
        "geometric",
        geometric,
        "higher",
        "%",
        "Geometric mean of the per-class accuracies.",
    )
