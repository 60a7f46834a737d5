"""ImageNet's answers against the ReaL labels: what people see in each validation image.

L. Beyer, O. J. Henaff, A. Kolesnikov, X. Zhai and A. van den Oord. Are we done with ImageNet?
arXiv:2006.07159, 2020. An image may have several right answers, or none: then it does not count.

The labels come with the package timm, which is not imported; without it, or on another data set,
the metric is not defined.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections.abc import Iterable
from pathlib import Path

from classfair_registry import hookimpl
from classfair_registry.predictions import Predictions
from classfair_registry.specs import MetricSpec

_FILE = Path("data", "_info", "imagenet_real_labels.json")
_NAME = re.compile(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.[A-Za-z]+")
_IMAGES = 50_000


def real(predictions: Predictions) -> float:
    """Return the share in per cent of images with ReaL labels whose answer is one of theirs."""
    matches = [_NAME.fullmatch(name) for name in predictions.names.tolist()]
    if not matches or None in matches:
        return float("nan")
    labels = _labels()
    if labels is None:
        return float("nan")
    right = counted = 0
    for match, answer in zip(matches, predictions.top5[:, 0].tolist(), strict=True):
        number = int(match[1]) if match else 0
        known = labels[number - 1] if 1 <= number <= len(labels) else ()
        counted += bool(known)
        right += answer in known
    return 100 * right / counted if counted else float("nan")


@functools.cache
def _labels() -> tuple[frozenset[int], ...] | None:
    """Return the labels of each validation image in order, or None without timm's file."""
    found = importlib.util.find_spec("timm")
    if found is None or found.origin is None:
        return None
    try:
        read = json.loads((Path(found.origin).parent / _FILE).read_text())
    except (OSError, ValueError):
        return None
    whole = isinstance(read, list) and len(read) == _IMAGES
    return tuple(map(frozenset, read)) if whole else None


@hookimpl
def classfair_metrics() -> Iterable[MetricSpec]:
    """Provide the metric."""
    yield MetricSpec(
        name="real",
        title="ReaL",
        compute=real,
        better="higher",
        unit="%",
        definition=(
            "Accuracy on ImageNet against the ReaL labels of Beyer et al. (2020), over the images "
            "that have any."
        ),
    )
