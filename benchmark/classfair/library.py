"""Recipes and experiments by name: those that ship, and files of the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from classfair import yaml_strict
from classfair.yaml_strict import Document
from classfair_registry.errors import UsageError, near

Shelf = Literal["recipes", "experiments"]
_SUFFIXES = (".yaml", ".yml")


def shipped(shelf: Shelf) -> dict[str, Path]:
    """Return the files that ship by name, sorted."""
    folder = Path(__file__).parent / shelf
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find(shelf: Shelf, name: str, beside: Path, where: str = "") -> Path:
    """Return the file of a name, or of a path.

    Args:
        shelf: what it should be.
        name: of a file that ships, or a path that ends with ``.yaml``.
        beside: the folder that a relative path starts from.
        where: the place to name in an error.

    Raises:
        UsageError: if there is none, with near names.
    """
    place = f"{where}: " if where else ""
    if Path(name).suffix in _SUFFIXES:
        path = beside / name
        if not path.is_file():
            raise UsageError(f"{place}{path}: no such file")
        return path
    known = shipped(shelf)
    if name not in known:
        hint = near(name, known)
        own = f"; a file of your own is named with its suffix, such as ./{Path(name).name}.yaml"
        raise UsageError(f"{place}no {shelf.removesuffix('s')} {name!r}{hint}{own}")
    return known[name]


def experiment(name: str) -> tuple[Document, Path]:
    """Return a matrix as written, and the folder that its own paths start from."""
    path = find("experiments", name, Path())
    return yaml_strict.load(path), path.parent


def recipe(entry: Document, beside: Path) -> Document:
    """Return a recipe's keys and values, inheritance resolved.

    Args:
        entry: a name, a path, or keys and values; ``base`` is the recipe that they change.
        beside: the folder that a relative path starts from.

    Raises:
        UsageError: for an unknown name or a recipe that is based on itself.
    """
    return _resolved(entry, beside, ())


def _resolved(entry: Document, beside: Path, seen: tuple[Path, ...]) -> Document:
    if isinstance(entry.value, str):
        path = find("recipes", entry.value, beside, entry.where()).resolve()
        if path in seen:
            entry.fail(f"{path.name} is based on itself")
        return _resolved(_mapping(yaml_strict.load(path)), path.parent, (*seen, path))
    if "base" not in _mapping(entry).value:
        return entry
    if not isinstance(entry.value["base"], str):
        entry.fail("should be the name of a recipe or a path to one", "base")
    if "name" not in entry.value:
        entry.fail("a recipe that changes its base needs a name of its own; add 'name: ...'")
    base = _resolved(entry.part("base"), beside, seen)
    return base.updated(entry.without("base"))


def _mapping(document: Document) -> Document:
    if not isinstance(document.value, dict):
        document.fail(f"expected a recipe's name or its keys and values, not {document.value!r}")
    return document
