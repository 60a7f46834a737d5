"""From a matrix as written to its cells, before anything runs.

All names, keys, types and ranges are checked here, with the place of each mistake, and without
importing torch: what is known of methods and backbones comes from their cards.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from classfair import library
from classfair.changes import NO_CHANGES, Changes, check_values
from classfair.keys import plugin_code, recipe_key, run_key
from classfair.matrix import RANKING_SEED, Expansion, Matrix, skipped_cell
from classfair.recipe import Data, Recipe
from classfair.resolve import (
    MethodEntry,
    added_entry,
    checked,
    counts_of,
    method_entries,
    resolve_recipe,
)
from classfair.yaml_strict import Document
from classfair_registry.errors import DataBad, DataMissing, UsageError, near
from classfair_registry.manager import Plugins
from classfair_registry.records import CellInfo, MethodInfo, Skipped
from classfair_registry.specs import DatasetSpec

RANKING_METHOD = "erm"
"""Its accuracies rank the classes in ranking runs."""

Fingerprint = Callable[[DatasetSpec, Data, Path | None], str | None]
"""Returns the fingerprint of a data set under a folder, None if it is not known."""


def read(
    name: str,
    plugins: Plugins,
    fingerprint: Fingerprint,
    changes: Changes = NO_CHANGES,
    data: Path | None = None,
) -> Expansion:
    """Return the cells of an experiment that ships or of a YAML file.

    Args:
        name: of the experiment, or a path that ends with ``.yaml``.
        plugins: where names are looked up.
        fingerprint: of data sets.
        changes: of the command line.
        data: the user's data folder.

    Raises:
        UsageError: for any mistake, with its place and near names.
    """
    document, beside = library.experiment(name)
    return expand(document, beside, plugins, fingerprint, changes, data)


def expand(
    document: Document,
    beside: Path,
    plugins: Plugins,
    fingerprint: Fingerprint,
    changes: Changes = NO_CHANGES,
    data: Path | None = None,
) -> Expansion:
    """Return the cells of a matrix as written.

    Args:
        document: the matrix.
        beside: the folder that paths to recipes start from.
        plugins: see :func:`read`, as for the others.
        fingerprint: of data sets.
        changes: of the command line.
        data: the user's data folder.

    Raises:
        UsageError: for any mistake, with its place and near names.
    """
    return _Expander(document, beside, plugins, fingerprint, changes, data).expand()


@dataclasses.dataclass(frozen=True)
class _Table:
    """What the cells of one recipe share."""

    recipe: Recipe
    fingerprint: str
    code: Mapping[str, str]

    @property
    def key(self) -> str:
        return recipe_key(self.recipe, self.fingerprint, None, self.code)


class _Expander:
    def __init__(
        self,
        document: Document,
        beside: Path,
        plugins: Plugins,
        fingerprint: Fingerprint,
        changes: Changes,
        data: Path | None,
    ) -> None:
        self.document, self.plugins, self.changes, self.data = document, plugins, changes, data
        self.matrix = document.parse(Matrix)
        self.fingerprint = fingerprint
        self.missing: dict[str, str] = {}
        self.entries = method_entries(document.part("methods"), plugins)
        self.listed = tuple(entry.label for entry in self.entries)
        self._add()
        written = document.part("recipes")
        self.recipes = [
            self._recipe(written.part(n), beside) for n in range(len(self.matrix.recipes))
        ]
        self.only = changes.filters()
        self._check()

    def expand(self) -> Expansion:
        cells: list[CellInfo] = []
        skipped: list[Skipped] = []
        for recipe in self.recipes:
            table = self._table(recipe)
            for cell in [*self._cells(table), *self._ranking_runs(table)]:
                why, asked = self._why_skipped(cell, recipe)
                if why and self._chosen(cell):
                    skipped.append(skipped_cell(cell, why, asked=asked))
                elif not why:
                    cells.append(cell)
        _check_once(cells)
        caption = " ".join(filter(None, (self.matrix.caption, self.changes.caption)))
        chosen = frozenset(cell.key for cell in cells if self._chosen(cell))
        made = (tuple(cells), tuple(skipped), chosen, self.missing)
        return Expansion(self.matrix.name, caption, *made)

    # -- what is written -----------------------------------------------------------------------

    def _add(self) -> None:
        for name in self.changes.added():
            if not any(name in entry.names for entry in self.entries):
                self.entries.append(added_entry(name, self.plugins, "--add"))

    def _recipe(self, written: Document, beside: Path) -> Recipe:
        document = library.recipe(written, beside)
        names = [name for entry in self.entries for name in entry.names]
        for change in self.changes.of_recipes(names):
            document = document.updated(change)
        return resolve_recipe(document, self.plugins)

    def _check(self) -> None:
        """Refuse names that belong to nothing in this matrix."""
        recipes = [recipe.name for recipe in self.recipes]
        methods = [name for entry in self.entries for name in entry.names]
        for number, name in enumerate(recipes):
            if name in recipes[:number]:
                self.document.fail(f"two recipes have the name {name!r}", "recipes", number)
        for recipe, of_methods in self.matrix.overrides.items():
            self._known(recipe, recipes, "overrides", recipe)
            for method in of_methods:
                self._known(method, methods, "overrides", recipe, method)
        for number, skip in enumerate(self.matrix.skip):
            self._matches(skip.recipe, recipes, "skip", number, "recipe")
            self._matches(skip.method, methods, "skip", number, "method")
        seeds = [*self.matrix.seeds, *self._ranking_seeds()]
        check_values("method", self.only, methods)
        check_values("recipe", self.only, recipes)
        check_values("seed", self.only, map(str, seeds))

    def _known(self, name: str, known: Sequence[str], *place: str | int) -> None:
        if name not in known:
            self.document.fail(f"not in this matrix{near(name, known)}", *place)

    def _matches(self, pattern: str, known: Sequence[str], *place: str | int) -> None:
        if not fnmatch.filter(known, pattern):
            self.document.fail(f"{pattern!r} matches nothing here{near(pattern, known)}", *place)

    # -- cells ---------------------------------------------------------------------------------

    def _table(self, recipe: Recipe) -> _Table:
        cards = {
            "dataset": self.plugins.card("datasets", recipe.data.name),
            "backbone": self.plugins.card("backbones", recipe.backbone.name),
        }
        hashes = {part: plugin_code(card.plugin) for part, card in cards.items()}
        code = {part: value for part, value in hashes.items() if value is not None}
        found = None
        try:
            spec = self.plugins.get("datasets", recipe.data.name)
            found = self.fingerprint(spec, recipe.data, self.data)
        except (DataMissing, DataBad) as error:
            self.missing[recipe.name] = str(error)
        return _Table(recipe, found or "", code)

    def _cells(self, table: _Table) -> Iterator[CellInfo]:
        for entry in self.entries:
            method = self._method(entry, table.recipe)
            for seed in self.matrix.seeds:
                yield self._cell(table, method, seed)

    def _ranking_runs(self, table: _Table) -> Iterator[CellInfo]:
        if not self.matrix.ranking_runs:
            return
        entry = added_entry(RANKING_METHOD, self.plugins, self.document.where("ranking_runs"))
        method = self._method(entry, table.recipe)
        for seed in self._ranking_seeds():
            yield self._cell(table, method, seed, ranking_run=True)

    def _ranking_seeds(self) -> range:
        return range(RANKING_SEED, RANKING_SEED + self.matrix.ranking_runs)

    def _method(self, entry: MethodEntry, recipe: Recipe) -> MethodInfo:
        card = entry.card
        return MethodInfo(
            name=card.name,
            label=entry.label,
            title=entry.title,
            plugin=card.plugin.name,
            version=card.plugin.version,
            revision=card.values["revision"],
            settings=checked(card.settings, self._given(entry, recipe), entry.label),
            source=card.plugin.stamp,
            code=plugin_code(card.plugin),
            budget=card.values["budget"],
        )

    def _given(self, entry: MethodEntry, recipe: Recipe) -> Document:
        """Return a method's settings: its own, then the recipe's, then the command line's."""
        given = entry.given
        for name in dict.fromkeys(entry.names):
            if name in self.matrix.overrides.get(recipe.name, {}):
                given = given.updated(self.document.part("overrides", recipe.name, name))
        for setting, (value, where) in self.changes.of_method(entry.names).items():
            given = given.updated(Document({setting: value}, {(): where, (setting,): where}))
        return given

    def _cell(
        self, table: _Table, method: MethodInfo, seed: int, *, ranking_run: bool = False
    ) -> CellInfo:
        cell = CellInfo(
            key="",
            method=method,
            recipe=table.recipe.model_dump(mode="json"),
            recipe_name=table.recipe.name,
            recipe_key=table.key,
            fingerprint=table.fingerprint,
            code=dict(table.code),
            seed=seed,
            ranking_run=ranking_run,
            paths=self._paths,
        )
        return cell.model_copy(update={"key": run_key(cell)})

    @property
    def _paths(self) -> dict[str, str | None]:
        files = [p.target for p in self.plugins.plugins if p.origin == "file" and not p.error]
        named: dict[str, str | None] = {f"plugin {n}": file for n, file in enumerate(files)}
        return {"data": str(self.data.resolve()) if self.data else None, **named}

    # -- which of them run ---------------------------------------------------------------------

    def _chosen(self, cell: CellInfo) -> bool:
        """Whether ``--only`` leaves a cell; a method of ``--add`` is always wanted."""
        names = {cell.method.name, cell.method.label}
        added = bool(names & set(self.changes.added()))
        wanted = {
            "method": added or bool(names & set(self.only.get("method", names))),
            "recipe": cell.recipe_name in self.only.get("recipe", [cell.recipe_name]),
            "seed": str(cell.seed) in self.only.get("seed", [str(cell.seed)]),
        }
        return all(wanted.values())

    def _why_skipped(self, cell: CellInfo, recipe: Recipe) -> tuple[str, bool]:
        """Return why a cell cannot or shall not run, empty if it does, and whether it is asked."""
        for skip in self.matrix.skip:
            names = (cell.method.name, cell.method.label)
            if fnmatch.fnmatchcase(recipe.name, skip.recipe) and fnmatch.filter(names, skip.method):
                return skip.why, True
        values = self.plugins.card("methods", cell.method.name).values
        if recipe.regime not in values["regimes"]:
            return f"{cell.method.name} does not support regime {recipe.regime}", False
        counts = counts_of(self.plugins.card("datasets", recipe.data.name), recipe.data.split)
        if "val" in values["splits"] and not recipe.data.validation and "val" not in counts:
            return f"{cell.method.name} reads a validation split; set data.validation", False
        return "", False


def _check_once(cells: Sequence[CellInfo]) -> None:
    """Raise UsageError if two cells are the same run under two names."""
    seen: dict[str, CellInfo] = {}
    for cell in cells:
        other = seen.setdefault(cell.key, cell)
        if other is not cell:
            one, two = (f"{c.method.label} on {c.recipe_name}" for c in (other, cell))
            raise UsageError(f"{one} and {two} have the same settings; take one of them out")
