"""Metrics that are the mean of a per-class value over the easy, medium or hard third."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

from classfair_registry.predictions import THIRDS, Floats, Predictions
from classfair_registry.specs import MetricSpec


def over_thirds(
    name: str,
    title: str,
    per_class: Callable[[Predictions], Floats],
    better: Literal["higher", "lower", "neither"],
    unit: str,
    definition: str,
) -> Iterator[MetricSpec]:
    """Yield the metrics ``NAME_easy``, ``NAME_medium`` and ``NAME_hard``.

    Args:
        name: first part of their names; empty for the bare names of the thirds.
        title: first part of their titles.
        per_class: maps predictions to [K] values.
        better: which direction is better.
        unit: of the values.
        definition: of the value of one class.
    """
    for third in THIRDS:
        yield MetricSpec(
            name=f"{name}_{third}" if name else third,
            title=f"{title}, {third}" if title else third,
            compute=_third(per_class, third),
            better=better,
            unit=unit,
            definition=f"{definition} Mean over the classes of the {third} third.",
            ranked=True,
        )


def _third(
    per_class: Callable[[Predictions], Floats], third: str
) -> Callable[[Predictions], float]:
    def compute(predictions: Predictions) -> float:
        return predictions.third_mean(per_class(predictions), third)

    return compute
