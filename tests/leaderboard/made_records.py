"""Records and predictions made from known answers, for tests of what is read from them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from classfair_plugins.metrics import accuracy, calibration, features, margins
from classfair_registry.files import digest, file_digest
from classfair_registry.predictions import Predictions
from classfair_registry.records import CellInfo, Cost, MatrixInfo, MethodInfo, Record, Skipped

RECIPE = {
    "caption": "Made images.",
    "data": {"name": "digits", "seed": 0},
    "backbone": {"name": "resnet8", "weights": None},
    "regime": "scratch",
    "augmentation": {"name": "none"},
}


def predictions(label: npt.ArrayLike, right: npt.ArrayLike) -> Predictions:
    """Return predictions that are right where ``right`` [N] says; else the next class is answered.

    Confidence is 0.8 where right and 0.6 where wrong.
    """
    label, right = np.asarray(label), np.asarray(right, bool)
    classes, images = int(label.max()) + 1, len(label)
    other = (label + 1) % classes
    sure = np.where(right, 0.8, 0.6)
    arrays = {
        "index": np.arange(images),
        "label": label,
        "top5": np.column_stack([np.where(right, label, other), np.where(right, other, label)]),
        "p_label": np.where(right, 0.8, 0.2),
        "p_other": np.where(right, 0.1, 0.6),
        "p_max": sure,
        "names": np.array([""] * images),
        "temperature": np.array([np.nan]),
        "mean_probability": np.full((classes, classes), 1 / classes),
    }
    for field in dataclasses.fields(Predictions):
        per_class = field.name.startswith(("vector", "feature"))
        arrays.setdefault(field.name, np.full(classes if per_class else images, np.nan))
    made = Predictions(**arrays | {"ranking": None})
    made.check("made")
    return made


def exactly(label: npt.ArrayLike, accuracy: npt.ArrayLike) -> Predictions:
    """Return predictions whose class accuracies are ``accuracy`` [K], rounded to whole images."""
    label = np.asarray(label)
    right = np.zeros(len(label), bool)
    for k, share in enumerate(np.asarray(accuracy, float)):
        members = np.flatnonzero(label == k)
        right[members[: round(share * len(members))]] = True
    return predictions(label, right)


def method(name: str = "erm", **given: Any) -> MethodInfo:
    """Return a method of revision 1 without settings."""
    values: dict[str, Any] = {
        "name": name,
        "label": name,
        "title": name.upper(),
        "plugin": f"classfair_plugins.methods.{name}",
        "version": "0.1",
        "revision": 1,
        "settings": {},
        "source": "",
    }
    return MethodInfo(**values | given)


def cell(name: str = "erm", seed: int = 0, *, recipe: str = "made", **given: Any) -> CellInfo:
    """Return a cell; what is given beyond method, seed and recipe replaces the default."""
    values: dict[str, Any] = {
        "method": method(name),
        "recipe": {**RECIPE, "name": recipe},
        "recipe_name": recipe,
        "recipe_key": digest(recipe),
        "fingerprint": digest("images"),
        "seed": seed,
    } | given
    told = values["method"]
    parts = (told.name, told.settings, told.revision, values["recipe_key"], seed)
    return CellInfo(**{"key": digest([*parts, values.get("track", "default")])} | values)


def metrics_of(made: Predictions) -> dict[str, float | None]:
    """Return the metrics as the engine writes them."""
    modules = (accuracy, margins, features, calibration)
    specs = (spec for module in modules for spec in module.classfair_metrics())
    values = ((spec.name, float(spec.compute(made))) for spec in specs)
    return {name: value if np.isfinite(value) else None for name, value in values}


def record(of: CellInfo, made: Predictions, digests: dict[str, str], **given: Any) -> Record:
    """Return a sealed record of a cell."""
    values: dict[str, Any] = {
        "cell": of,
        "dataset": {
            "name": "digits",
            "title": "Digits",
            "headline": "overall",
            "test": len(made.label),
        },
        "metrics": metrics_of(made),
        "class_accuracy": made.class_accuracy.tolist(),
        "class_count": made.count.tolist(),
        "selection": {"rule": "last"},
        "cost": Cost(images_forward=300, images_backward=300, steps=3, seconds={}, peak_memory=1),
        "machine": {"device": "cpu", "device_name": "a CPU", "packages": {"torch": "2.14.1"}},
        "provenance": {"finished": "2026-01-01T00:00:00+00:00"},
        "digests": digests,
        "result_digest": made.digest(),
    }
    return Record(**values | given).sealed()


def write(results: Path, of: CellInfo, made: Predictions, folder: str = "", **given: Any) -> Path:
    """Write a finished cell into a results folder and return its folder."""
    place = results / (folder or of.folder)
    place.mkdir(parents=True, exist_ok=True)
    of.save(place / "cell.json")
    made.save(place / "predictions.npz")
    digests = {"predictions.npz": file_digest(place / "predictions.npz")}
    record(of, made, digests, **given).save(place / "record.json")
    return place


def expect(
    results: Path, cells: list[CellInfo], name: str = "quick", caption: str = "", **given: Any
) -> None:
    """Write what a matrix expects."""
    (results / "matrices").mkdir(parents=True, exist_ok=True)
    skipped: list[Skipped] = given.get("skipped", [])
    info = MatrixInfo(name=name, caption=caption, cells=cells, skipped=skipped)
    info.save(results / "matrices" / f"{name}.json")
