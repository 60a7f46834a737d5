"""The run key: a hash of everything about a cell that can change its numbers, and nothing else.

In it: protocol and key version; the method's name, revision and resolved settings, and for a plugin
outside a release its code; the recipe's settings that are not the defaults; the fingerprint of the
data set's content; the sha256 of the weights; the seed.

Not in it: the order of cells, methods and keys; labels, names of recipes and matrices; paths;
launcher, workers, threads and device; versions of packages. Those are provenance.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from classfair.recipe import PROVENANCE, Recipe
from classfair_registry.files import digest
from classfair_registry.manager import PluginInfo
from classfair_registry.records import CellInfo

_MISSING = object()
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_IN_WORDS = {"fingerprint": "the data set's content", "weights": "the weights file"}


def keyed(cell: CellInfo) -> dict[str, Any]:
    """Return everything that is in a cell's key, as JSON values."""
    return _keyed(cell, Recipe.model_validate(cell.recipe).keyed())


def _keyed(cell: CellInfo, recipe: Mapping[str, Any]) -> dict[str, Any]:
    method = cell.method
    return {
        "protocol": cell.protocol,
        "key_version": cell.key_version,
        "method": method.name,
        "revision": method.revision,
        "settings": method.settings,
        "code": {**cell.code, **({"method": method.code} if method.code else {})},
        "recipe": dict(recipe),
        "fingerprint": cell.fingerprint,
        "weights": cell.weights,
        "seed": cell.seed,
    }


def run_key(cell: CellInfo) -> str:
    """Return the sha256 of :func:`keyed`, in hexadecimal. The cell's own ``key`` is not read."""
    return digest(keyed(cell))


def recipe_key(
    recipe: Recipe, fingerprint: str, weights: str | None, code: Mapping[str, str]
) -> str:
    """Return the hash of what the cells of one table share: recipe, data, weights and their code.

    Args:
        recipe: of the cells.
        fingerprint: of the data set.
        weights: sha256 of the weights file, if one is loaded.
        code: of the data set's and backbone's plugins outside a release.
    """
    parts = {"recipe": recipe.keyed(), "fingerprint": fingerprint, "weights": weights}
    return digest({**parts, "code": dict(code)})


def explain(old: CellInfo, new: CellInfo) -> str:
    """Name the differences that give two cells different keys: ``settings.lr 0.1 -> 0.2``.

    Returns:
        The differences, separated by commas, in a fixed order; empty if the keys agree.
    """
    return ", ".join(differences(old, new))


def differences(old: CellInfo, new: CellInfo) -> list[str]:
    """Return the differences of :func:`explain`, one by one."""
    before, after = (_flat(_keyed(cell, _whole(cell))) for cell in (old, new))
    names = [*after, *(name for name in before if name not in after)]
    pairs = [(name, before.get(name, _MISSING), after.get(name, _MISSING)) for name in names]
    return [_difference(name, one, two) for name, one, two in pairs if one != two]


def plugin_code(plugin: PluginInfo) -> str | None:
    """Return a hash of what a plugin's code does, or None for one of this release.

    A release is guarded by revisions. Any other plugin may change between two runs without notice,
    so its syntax trees are hashed: comments, docstrings and layout do not count. For a module in a
    package that is every file of the innermost package, since modules import their neighbours.
    """
    if plugin.origin == "built-in":
        return None
    total = hashlib.sha256()
    for file in plugin_sources(plugin):
        total.update(code_digest(file.read_text(encoding="utf-8")).encode())
    return total.hexdigest()


def plugin_sources(plugin: PluginInfo) -> list[Path]:
    """Return the source files of a plugin outside a release, without importing it."""
    if plugin.origin == "file":
        return [Path(plugin.target)]
    module = plugin.target.partition(":")[0]
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return []
    origin = Path(found.origin)
    alone = "." not in module and origin.name != "__init__.py"
    return [origin] if alone else sorted(origin.parent.rglob("*.py"))


def code_digest(source: str) -> str:
    """Return the sha256 of a module's syntax tree without docstrings.

    Empty fields are left out, since versions of Python differ in which ones they have.
    """
    tree = json.dumps(_tree(ast.parse(source)), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(tree.encode()).hexdigest()


def _tree(node: Any) -> Any:
    if isinstance(node, ast.AST):
        fields = {name: _tree(value) for name, value in ast.iter_fields(node)}
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            fields["body"] = fields["body"][1:]
        return {type(node).__name__: {k: v for k, v in fields.items() if v not in (None, [])}}
    if isinstance(node, list):
        return [_tree(item) for item in node]
    # So that the constants 1, 1.0, True and "1" differ.
    return node if isinstance(node, str) or node is None else {type(node).__name__: repr(node)}


def _whole(cell: CellInfo) -> dict[str, Any]:
    """Return what of a recipe can change a number, defaults included."""
    recipe = Recipe.model_validate(cell.recipe)
    return recipe.model_dump(mode="json", exclude=PROVENANCE)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    return dict(_leaves(values, prefix))


def _leaves(values: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _difference(name: str, old: Any, new: Any) -> str:
    """Return one difference: hashes in words, values as they were and are."""
    if name.startswith("code."):
        return f"the {name.removeprefix('code.')} plugin's code changed"
    if name in _IN_WORDS:
        return f"{_IN_WORDS[name]} changed"
    return f"{name.removeprefix('recipe.')} {_text(old)} -> {_text(new)}"


def _text(value: Any) -> str:
    return "(none)" if value is _MISSING else "null" if value is None else f"{value}"
