"""What the command line changes about a matrix: ``--set``, ``--only`` and ``--add``."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from classfair.recipe import Recipe
from classfair.yaml_strict import Document, Place, parse
from classfair_registry.errors import UsageError, near

ONLY = ("method", "recipe", "seed")


@dataclasses.dataclass(frozen=True)
class Changes:
    """Changes as typed, each ``key=value``.

    Attributes:
        sets: of recipe keys (``optimizer.lr=0.05``) or settings of a method (``mr2.c_bar=1``).
        only: ``method=``, ``recipe=`` or ``seed=`` with values between commas; cells must match
            each key that is given, by any of its values.
        add: ``method=`` with names between commas.
    """

    sets: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    add: tuple[str, ...] = ()

    @property
    def caption(self) -> str:
        """Return a sentence for tables of a matrix that was changed, else nothing."""
        if not self.sets:
            return ""
        return f"Changed on the command line: {', '.join(self.sets)}."

    def added(self) -> list[str]:
        """Return the names of the methods to add."""
        names = []
        for change in self.add:
            key, value = _split(change, "--add")
            if key != "method":
                raise UsageError(f"--add {change}: only method=NAME can be added")
            names += _listed(value, f"--add {change}")
        return names

    def filters(self) -> dict[str, list[str]]:
        """Return the values of ``--only`` by key."""
        wanted: dict[str, list[str]] = {}
        for change in self.only:
            key, value = _split(change, "--only")
            if key not in ONLY:
                raise UsageError(f"--only {change}: no key {key!r}{near(key, ONLY)}")
            wanted.setdefault(key, []).extend(_listed(value, f"--only {change}"))
        return wanted

    def of_recipes(self, methods: Iterable[str]) -> list[Document]:
        """Return what is set of recipes, each change as a document of nested keys.

        Args:
            methods: names and labels that settings may belong to.

        Raises:
            UsageError: for a key that belongs to neither a recipe nor a method.
        """
        known = list(methods)
        return [_nested(change) for change in self.sets if _owner(change, known) is None]

    def of_method(self, names: Sequence[str]) -> dict[str, tuple[Any, str]]:
        """Return what is set of a method: values by setting, each with its place.

        Args:
            names: the method's name and label.
        """
        found = {}
        for change in self.sets:
            key, text = _split(change, "--set")
            owner, _, setting = key.rpartition(".")
            if owner in names and not _of_recipe(key):
                found[setting] = (parse(text, f"--set {change}").value, f"--set {change}")
        return found


NO_CHANGES = Changes()


def check_values(name: str, wanted: Mapping[str, list[str]], known: Iterable[str]) -> None:
    """Raise UsageError if ``--only name=`` names something that the matrix does not have."""
    have = list(dict.fromkeys(known))
    for value in wanted.get(name, []):
        if value not in have:
            raise UsageError(f"--only {name}={value}: not in this matrix{near(value, have)}")


def _owner(change: str, methods: Sequence[str]) -> str | None:
    """Return the method that a ``--set`` belongs to, or None if it belongs to the recipes."""
    key, _ = _split(change, "--set")
    if _of_recipe(key):
        return None
    owner = key.rpartition(".")[0]
    if owner not in methods:
        hint = near(owner or key, {*Recipe.model_fields, *methods})
        raise UsageError(f"--set {change}: no recipe key or method of the matrix{hint}")
    return owner


def _of_recipe(key: str) -> bool:
    return key.partition(".")[0] in Recipe.model_fields


def _nested(change: str) -> Document:
    """Return ``a.b=1`` as the document ``{a: {b: 1}}``."""
    key, text = _split(change, "--set")
    where = f"--set {change}"
    if key in ("name", "base"):
        raise UsageError(f"{where}: {key} is not for the command line; write a recipe of your own")
    read = parse(text, where)
    value: Any = read.value
    steps = key.split(".")
    lines: dict[Place, str] = {tuple(steps[:n]): where for n in range(len(steps) + 1)}
    lines |= {(*steps, *at): where for at in read.lines}
    for step in reversed(steps):
        value = {step: value}
    return Document(value, lines)


def _split(change: str, option: str) -> tuple[str, str]:
    key, equals, value = change.partition("=")
    if not equals or not key.strip():
        raise UsageError(f"{option} {change}: expected KEY=VALUE")
    return key.strip(), value.strip()


def _listed(value: str, where: str) -> list[str]:
    values = [part.strip() for part in value.split(",") if part.strip()]
    if not values:
        raise UsageError(f"{where}: expected a value after the equals sign")
    return values
