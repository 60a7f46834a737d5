"""Which classes attract the answers, and whether confidence can be believed.

Prediction bias and false positives follow the question of Cui et al., Classes Are Not Equal: An
Empirical Study on Image Recognition Fairness, CVPR 2024; the formulas are stated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair_plugins.metrics._thirds import over_thirds
from classfair_registry import hookimpl
from classfair_registry.predictions import THIRDS, Floats, Predictions
from classfair_registry.specs import MetricSpec

BINS = 15
"""Bins of equal width for the calibration error. Part of the protocol."""


def prediction_bias(predictions: Predictions) -> Floats:
    """Return [K] values: by how many percent a class is answered more often than it occurs."""
    answers = np.bincount(predictions.top5[:, 0], minlength=predictions.num_classes)
    return _percent(answers - predictions.count, predictions)


def false_positives(predictions: Predictions) -> Floats:
    """Return [K] values: wrong answers of a class, in percent of the images it has."""
    answered = predictions.top5[~predictions.correct, 0]
    return _percent(np.bincount(answered, minlength=predictions.num_classes), predictions)


def false_mass(predictions: Predictions) -> Floats:
    """Return [K] values: probability that other classes' images give, in percent of its images."""
    mass = predictions.count[:, None] * np.nan_to_num(predictions.mean_probability)
    np.fill_diagonal(mass, 0)
    return _percent(mass.sum(0), predictions)


def ece(predictions: Predictions) -> float:
    """Return the expected calibration error of the answers, in percent."""
    return calibration_error(
        predictions.p_max, predictions.correct, np.ones(len(predictions.p_max))
    )


def ece_scaled(predictions: Predictions) -> float:
    """Return the same after temperature scaling, NaN without a validation split."""
    confidence = predictions.p_max_scaled
    return calibration_error(confidence, predictions.correct, np.ones(len(confidence)))


def calibration_error(confidence: Floats, correct: npt.NDArray[np.bool_], weight: Floats) -> float:
    """Return sum over bins of |weighted (confidence - correct)| over the total weight, in percent.

    Bins are (i/15, (i+1)/15]. NaN if nothing has weight or a weighted confidence is NaN.

    Args:
        confidence: [N] probabilities of the answers.
        correct: [N] whether they are right.
        weight: [N] not negative.
    """
    kept = weight > 0
    confidence, correct, weight = confidence[kept], correct[kept], weight[kept]
    if not len(weight) or np.isnan(confidence).any():
        return float("nan")
    bins = np.clip(np.ceil(confidence * BINS) - 1, 0, BINS - 1).astype(int)
    excess = np.bincount(bins, weight * (confidence - correct))
    return 100 * float(np.abs(excess).sum() / weight.sum())


def _ece_of(third: str, confidence: str) -> Callable[[Predictions], float]:
    def compute(predictions: Predictions) -> float:
        weight = predictions.thirds[THIRDS.index(third)][predictions.label]
        return calibration_error(getattr(predictions, confidence), predictions.correct, weight)

    return compute


def _percent(amount: npt.NDArray[Any], predictions: Predictions) -> Floats:
    """Return [K] amounts in percent of the class's test images, NaN without any."""
    count = predictions.count
    empty = np.full(len(count), np.nan)
    return np.asarray(np.divide(100.0 * amount, count, out=empty, where=count > 0))


@hookimpl
def classfair_metrics() -> Iterable[MetricSpec]:
    """Provide them."""
    yield from over_thirds(
        "bias",
        "prediction bias",
        prediction_bias,
        "neither",
        "%",
        "Answers of the class minus its images, in percent of its images: 0 is unbiased.",
    )
    yield from over_thirds(
        "false_positives",
        "false positives",
        false_positives,
        "lower",
        "%",
        "Images of other classes that are answered with the class, in percent of its images.",
    )
    yield from over_thirds(
        "false_mass",
        "false mass",
        false_mass,
        "lower",
        "%",
        "Probability that images of other classes give to the class, summed, in percent of its "
        "images: false positives without the cut at the largest.",
    )
    for suffix, title, confidence, compute in (
        ("", "ECE", "p_max", ece),
        ("_scaled", "ECE, scaled", "p_max_scaled", ece_scaled),
    ):
        how = ", after temperature scaling" if suffix else ""
        definition = (
            f"Expected calibration error of the answers{how}: 15 bins of equal width over "
            "confidence, |mean confidence - accuracy| weighted by their shares of the images."
        )
        yield MetricSpec(f"ece{suffix}", title, compute, "lower", "%", definition)
        for third in THIRDS:
            yield MetricSpec(
                f"ece{suffix}_{third}",
                f"{title}, {third}",
                _ece_of(third, confidence),
                "lower",
                "%",
                f"{definition} Over the images of the {third} third's classes.",
                ranked=True,
            )
