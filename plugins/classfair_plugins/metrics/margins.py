"""How far right answers are from wrong ones: in probability, and between class vectors."""

from __future__ import annotations

from collections.abc import Iterable

from classfair_plugins.metrics._thirds import over_thirds
from classfair_registry import hookimpl
from classfair_registry.predictions import Floats, Predictions
from classfair_registry.specs import MetricSpec


def output_margin(predictions: Predictions) -> Floats:
    """Return [K] means of p(label) - largest other p over the images of each class."""
    return predictions.class_mean(predictions.p_label - predictions.p_other)


def scaled_output_margin(predictions: Predictions) -> Floats:
    """Return the same after temperature scaling, NaN without a validation split."""
    return predictions.class_mean(predictions.p_label_scaled - predictions.p_other_scaled)


def classifier_margin(predictions: Predictions) -> float:
    """Return the smallest angle between two class vectors in degrees, NaN for a head without."""
    return float(predictions.vector_angle.min())


@hookimpl
def classfair_metrics() -> Iterable[MetricSpec]:
    """Provide them."""
    yield from over_thirds(
        "margin",
        "output margin",
        output_margin,
        "higher",
        "",
        "p(label) minus the largest other probability.",
    )
    yield from over_thirds(
        "margin_scaled",
        "output margin, scaled",
        scaled_output_margin,
        "higher",
        "",
        "p(label) minus the largest other probability, after division of the logits by one "
        "temperature fitted on validation.",
    )
    yield MetricSpec(
        "classifier_margin",
        "classifier margin",
        classifier_margin,
        "higher",
        "degrees",
        "Smallest angle between two class vectors of the head.",
    )
