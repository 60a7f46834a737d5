"""How the features of the test images spread about their class means.

mu_k is the mean of class k's features, ||s_k||^2 their mean squared distance to it.
"""

from __future__ import annotations

from collections.abc import Iterable

from classfair_plugins.metrics._thirds import over_thirds
from classfair_registry import hookimpl
from classfair_registry.predictions import Floats, Predictions
from classfair_registry.specs import MetricSpec


def mean_square(predictions: Predictions) -> Floats:
    """Return [K] values ||mu_k||^2."""
    return predictions.feature_mean_square


def spread(predictions: Predictions) -> Floats:
    """Return [K] values ||s_k||^2."""
    return predictions.feature_spread


def collapse(predictions: Predictions) -> Floats:
    """Return [K] values ||s_k||^2 / ||mu_k - mean of all mu||^2."""
    return predictions.feature_collapse


@hookimpl
def classfair_metrics() -> Iterable[MetricSpec]:
    """Provide them."""
    yield from over_thirds(
        "mean_square",
        "feature mean",
        mean_square,
        "neither",
        "",
        "||mu||^2, the squared norm of the class's mean test feature.",
    )
    yield from over_thirds(
        "spread",
        "feature spread",
        spread,
        "lower",
        "",
        "||s||^2, the mean squared distance of test features to their class's mean.",
    )
    yield from over_thirds(
        "collapse",
        "feature collapse",
        collapse,
        "lower",
        "",
        "||s||^2 over the squared distance of the class's mean to the mean of all class means: "
        "free of scale, like NC1 of neural collapse.",
    )
