"""A matrix: recipes x methods x seeds, as written in YAML and as cells."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import Field

from classfair.recipe import Strict
from classfair_registry.errors import UsageError
from classfair_registry.records import CellInfo, MatrixInfo, Skipped

RANKING_SEED = 10_000
"""First of the seeds that are reserved for ranking runs; those of tables are smaller."""
Seed = Annotated[int, Field(ge=0, lt=RANKING_SEED)]


class Skip(Strict):
    """Cells to leave out on purpose.

    Attributes:
        method: name or label, or a pattern such as ``*``.
        recipe: name or a pattern.
        why: one sentence, printed with the plan.
    """

    method: str
    recipe: str = "*"
    why: str


class Matrix(Strict):
    """A matrix as written.

    Attributes:
        name: of the file under ``matrices/`` in the results.
        caption: a sentence under its tables.
        recipes: names, paths, or mappings with ``base`` and ``name``.
        methods: ``all`` (those that ship), or names and mappings with ``name``, ``label`` and
            settings.
        seeds: of every method on every recipe.
        overrides: settings by recipe and method.
        ranking_runs: ERM runs a recipe that rank its classes and stand in no table.
        skip: cells to leave out.
    """

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
    caption: str = ""
    recipes: Annotated[list[Any], Field(min_length=1)]
    methods: Any
    seeds: Annotated[list[Seed], Field(min_length=1)]
    overrides: dict[str, dict[str, dict[str, Any]]] = Field(default={})
    ranking_runs: Annotated[int, Field(ge=0)] = 0
    skip: list[Skip] = Field(default=[])

    @pydantic.field_validator("seeds")
    @classmethod
    def _once(cls, value: list[int]) -> list[int]:
        if len(set(value)) < len(value):
            raise ValueError("a seed is listed twice")
        return value


@dataclasses.dataclass(frozen=True)
class Expansion:
    """The cells of a matrix, in the order of recipes, methods and seeds.

    Attributes:
        name, caption: of the matrix.
        cells: all of them; after those of a recipe's table come its ranking runs.
        skipped: those that cannot or shall not run.
        chosen: keys of the cells that ``--only`` leaves.
        missing: what is missing of its data, by recipe.
    """

    name: str
    caption: str
    cells: tuple[CellInfo, ...]
    skipped: tuple[Skipped, ...]
    chosen: frozenset[str]
    missing: Mapping[str, str]

    @property
    def info(self) -> MatrixInfo:
        """What ``matrices/NAME.json`` holds: all cells, so that it says what is missing."""
        cells, skipped = list(self.cells), list(self.skipped)
        return MatrixInfo(name=self.name, caption=self.caption, cells=cells, skipped=skipped)

    @property
    def asked(self) -> MatrixInfo:
        """The same with the chosen cells alone: what a run of them should fill."""
        cells = [cell for cell in self.cells if cell.key in self.chosen]
        return self.info.model_copy(update={"cells": cells})

    def runnable(self) -> Expansion:
        """Return the same matrix with the cells whose data are missing skipped.

        Raises:
            UsageError: if none of the chosen cells is left.
        """
        gone = [cell for cell in self.cells if cell.recipe_name in self.missing]
        left = tuple(cell for cell in self.cells if cell not in gone)
        if not self.chosen & {cell.key for cell in left}:
            causes = [*self.missing.values(), *(skip.why for skip in self.skipped)]
            raise UsageError(f"{self.name}: nothing to run: {'; '.join(dict.fromkeys(causes))}")
        why = [skipped_cell(cell, f"data: {self.missing[cell.recipe_name]}") for cell in gone]
        return dataclasses.replace(self, cells=left, skipped=(*self.skipped, *why))


def skipped_cell(cell: CellInfo, why: str, *, asked: bool = False) -> Skipped:
    """Return what is written down of a cell that does not run."""
    label, recipe = cell.method.label, cell.recipe_name
    return Skipped(method=label, recipe=recipe, seed=cell.seed, why=why, asked=asked)
