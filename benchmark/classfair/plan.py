"""What a run would do: its cells, what is done already or why not, and how much work is left.

Neither data nor accelerator is touched. As JSON (:meth:`Plan.to_json`)::

    {"name": ..., "caption": ...,
     "cells": [{"method", "label", "recipe", "seed", "key", "folder", "settings",
                "cached": true | false | null, "why", "steps", "images"}, ...],
     "ranking_runs": [the same],
     "skipped": [{"method", "recipe", "seed", "why", "asked"}, ...],
     "total": cells of the table, "cached": those of them that are done,
     "steps": and "images": of the cells that are not, "seconds": estimate or null}

``cached`` is null where the data set's fingerprint is not known, so that nothing can be said.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from classfair.keys import differences
from classfair.matrix import Expansion
from classfair.recipe import Recipe
from classfair.resolve import counts_of
from classfair.results import RECORD, CellState, Results
from classfair.split import class_sizes
from classfair_registry.errors import ClassfairError
from classfair_registry.manager import Plugins
from classfair_registry.records import CellInfo, Record, slug


@dataclasses.dataclass(frozen=True)
class Planned:
    """A cell of a plan.

    Attributes:
        cell: which.
        cached: whether its record is there; None if that cannot be known.
        why: why it is not cached, or not known to be.
        steps: of training, as the recipe's passes give them.
        images: that training reads, forward passes of one epoch counted once.
        cost: of the method, in times the recipe's plain training.
        seconds: that it took, if it is done.
    """

    cell: CellInfo
    cached: bool | None
    why: str
    steps: int
    images: int
    cost: float
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        cell = self.cell
        return {
            "method": cell.method.name,
            "label": cell.method.label,
            "recipe": cell.recipe_name,
            "seed": cell.seed,
            "key": cell.key,
            "folder": cell.folder,
            "settings": cell.method.settings,
            "cached": self.cached,
            "why": self.why,
            "steps": self.steps,
            "images": self.images,
        }


@dataclasses.dataclass(frozen=True)
class Plan:
    """A matrix with what is known of each chosen cell."""

    matrix: Expansion
    cells: tuple[Planned, ...]

    @property
    def table(self) -> list[Planned]:
        """The cells that stand in tables."""
        return [planned for planned in self.cells if not planned.cell.ranking_run]

    @property
    def ranking_runs(self) -> list[Planned]:
        """The cells that rank classes."""
        return [planned for planned in self.cells if planned.cell.ranking_run]

    @property
    def left(self) -> list[Planned]:
        """The cells that would be trained."""
        return [planned for planned in self.cells if not planned.cached]

    @property
    def seconds(self) -> float | None:
        """Computing time left, from the cells of the same recipe that are done; None without."""
        total = 0.0
        for recipe in {planned.cell.recipe_key for planned in self.left}:
            done = [p for p in self.cells if p.seconds and p.cell.recipe_key == recipe]
            if not done:
                return None
            rate = sum(p.seconds or 0.0 for p in done) / sum(p.images * p.cost for p in done)
            left = [p for p in self.left if p.cell.recipe_key == recipe]
            total += rate * sum(p.images * p.cost for p in left)
        return total

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the module's docstring shows the shape."""
        return {
            "name": self.matrix.name,
            "caption": self.matrix.caption,
            "cells": [planned.to_json() for planned in self.table],
            "ranking_runs": [planned.to_json() for planned in self.ranking_runs],
            "skipped": [skipped.to_json() for skipped in self.matrix.skipped],
            "total": len(self.table),
            "cached": sum(planned.cached is True for planned in self.table),
            "steps": sum(planned.steps for planned in self.left),
            "images": sum(planned.images for planned in self.left),
            "seconds": self.seconds,
        }


def plan(matrix: Expansion, results: Results, plugins: Plugins) -> Plan:
    """Return the plan of a matrix's chosen cells over a results folder, which need not exist."""
    chosen = [cell for cell in matrix.cells if cell.key in matrix.chosen]
    return Plan(matrix, tuple(_planned(cell, matrix, results, plugins) for cell in chosen))


def _planned(cell: CellInfo, matrix: Expansion, results: Results, plugins: Plugins) -> Planned:
    images = train_images(cell, plugins)
    passes, batch_size = cell.recipe["epochs"], cell.recipe["batch_size"]
    cost = plugins.card("methods", cell.method.name).values["cost"]
    work = (passes * steps_of_pass(images, batch_size), passes * images, cost)
    if not cell.fingerprint:
        unread = "the data set was not read yet, so its fingerprint is not known"
        return Planned(cell, None, matrix.missing.get(cell.recipe_name, unread), *work)
    state = results.state(cell)
    if state.record is not None:
        return Planned(cell, True, "", *work, seconds=sum(state.record.cost.seconds.values()))
    return Planned(cell, False, _why(cell, state, results), *work)


def _why(cell: CellInfo, state: CellState, results: Results) -> str:
    """Return why a cell is not done."""
    if state.complaint:
        return state.complaint
    if state.reason:
        return f"{state.kind}: {state.reason}: {state.message}"
    if state.kind == "queued":
        return _nearest(cell, results) or "not run yet"
    return {"preempted": "was stopped; goes on from its checkpoint"}.get(state.kind, state.kind)


def train_images(cell: CellInfo, plugins: Plugins) -> int:
    """Return the number of training images; a fraction of them as if classes were of one size."""
    recipe = Recipe.model_validate(cell.recipe)
    data, card = recipe.data, plugins.card("datasets", recipe.data.name)
    total, classes = counts_of(card, data.split)["train"], len(card.values["manifest"]["classes"])
    if data.fraction == 1 and not data.validation and data.counts is None:
        return total
    alike = [round(total / classes)] * classes
    return sum(kept for kept, _ in class_sizes(alike, data.fraction, data.validation, data.counts))


def steps_of_pass(images: int, batch_size: int) -> int:
    """Return the steps of one pass: the last batch is kept, one of a single image is merged."""
    alone = images > 1 and (images - 1) % batch_size == 0
    return math.ceil(images / batch_size) - alone


def _nearest(cell: CellInfo, results: Results) -> str:
    """Return how a cell differs from the most similar one that is done, if there is any."""
    found = [differences(record.cell, cell) for record in _relatives(cell, results)]
    if not found:
        return ""
    closest: list[str] = min(found, key=len)
    return f"another one is done: {', '.join(closest)}"


def _relatives(cell: CellInfo, results: Results) -> Iterator[Record]:
    """Yield the records of the same method, recipe name and seed under other keys."""
    alike = "--".join(slug(part) for part in (cell.method.label, cell.recipe_name, f"s{cell.seed}"))
    for path in _files(results.root, f"{alike}--*/{RECORD}"):
        try:
            yield Record.load(path)
        except ClassfairError:
            continue  # It is named where it counts: where its own cell is asked for.


def _files(root: Path, pattern: str) -> Iterable[Path]:
    return sorted(root.glob(pattern)) if root.is_dir() else []
