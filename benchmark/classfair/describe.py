"""What there is to say about plugins, recipes and experiments, without importing torch.

:func:`entries` gives one JSON object a thing, with at least ``name``, ``summary``, ``plugin`` and
``version``; :func:`description` gives all that is known of one, and :func:`text` writes it out.
"""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from classfair import library, yaml_strict
from classfair_registry.errors import UsageError, near
from classfair_registry.manager import Card, PluginInfo, Plugins, version
from classfair_registry.settings import Setting
from classfair_registry.specs import KINDS

ALL_KINDS = (*KINDS, "experiments", "recipes", "plugins")
_WIDTH = 96
_TOLD = {"kind", "name", "title", "summary", "doc", "settings", "example", "plugin"}


def kind_of(word: str) -> str:
    """Return the kind that a word names, in the plural or the singular.

    Raises:
        UsageError: for another word, with near ones.
    """
    for kind in ALL_KINDS:
        if word in (kind, kind.removesuffix("s")):
            return kind
    raise UsageError(f"no kind {word!r}{near(word, ALL_KINDS)}")


def entries(kind: str, plugins: Plugins) -> list[dict[str, Any]]:
    """Return one JSON object for each thing of a kind, sorted by name."""
    if kind == "plugins":
        return [_plugin(plugin, plugins) for plugin in plugins.plugins]
    if kind in KINDS:
        return [_brief(card) for card in plugins.cards(kind)]
    return [_file_entry(path) for path in library.shipped(_shelf(kind)).values()]


def description(kind: str, name: str, plugins: Plugins) -> dict[str, Any]:
    """Return everything that is known of one thing.

    Raises:
        UsageError: for an unknown name, with near ones.
    """
    if kind in KINDS:
        card = plugins.card(kind, name)
        return {**card.values, **_origin(card.plugin), "doc": _doc(card, plugins)}
    if kind == "plugins":
        known = {plugin.name: plugin for plugin in plugins.plugins}
        if name not in known:
            raise UsageError(f"no plugin {name!r}{near(name, known)}")
        plugin = known[name]
        return {**_plugin(plugin, plugins), "detail": plugin.detail, "doc": module_doc(plugin)}
    path = library.find(_shelf(kind), name, Path())
    return {**_file_entry(path), "file": str(path), "text": path.read_text(encoding="utf-8")}


def text(kind: str, name: str, plugins: Plugins) -> str:
    """Return the description of one thing as text of about a hundred columns."""
    told = description(kind, name, plugins)
    if "text" in told:
        return f"# {told['file']}\n{told['text']}".rstrip()
    return "\n".join(_lines(told, plugins.card(kind, name) if kind in KINDS else None))


def _doc(card: Card, plugins: Plugins) -> str:
    """Return the docstrings of a thing and of its module: the latter alone if it is alone there."""
    alone = [c for kind in KINDS for c in plugins.cards(kind) if c.plugin == card.plugin] == [card]
    whole, own = module_doc(card.plugin), str(card.values["doc"])
    return whole if alone and whole else "\n\n".join(filter(None, (own, whole)))


def module_doc(plugin: PluginInfo) -> str:
    """Return the docstring of a plugin's module, read from its source without importing it."""
    if plugin.origin == "file":
        origin: str | None = plugin.target
    else:
        try:
            found = importlib.util.find_spec(plugin.target.partition(":")[0])
        except ImportError:
            return ""  # A plugin that cannot be found is shown with that cause already.
        origin = found.origin if found else None
    try:
        return ast.get_docstring(ast.parse(Path(origin or "").read_bytes())) or ""
    except (OSError, SyntaxError, ValueError):
        return ""


def _origin(plugin: PluginInfo) -> dict[str, Any]:
    return {
        "plugin": plugin.name,
        "version": plugin.version,
        "distribution": plugin.distribution,
        "origin": plugin.origin,
    }


def _brief(card: Card) -> dict[str, Any]:
    """Return a card's one-line values."""
    values = card.values
    plain = {
        key: value
        for key, value in values.items()
        if key not in _TOLD and not isinstance(value, dict)
    }
    head = {"name": card.name, "title": values.get("title", card.name)}
    return {**head, "summary": values["summary"], **_origin(card.plugin), **plain}


def _plugin(plugin: PluginInfo, plugins: Plugins) -> dict[str, Any]:
    cards = [card for kind in KINDS for card in plugins.cards(kind) if card.plugin == plugin]
    provides = [f"{card.kind.removesuffix('s')} {card.name}" for card in cards]
    summary = plugin.error or ", ".join(provides) or "observes"
    return {
        "name": plugin.name,
        "summary": summary,
        **_origin(plugin),
        "provides": provides,
        "error": plugin.error,
    }


def _shelf(kind: str) -> library.Shelf:
    return "recipes" if kind == "recipes" else "experiments"


def _file_entry(path: Path) -> dict[str, Any]:
    """Return what lists say of a YAML file; what it inherits is not looked up."""
    value = yaml_strict.load(path).value
    return {
        "name": value["name"],
        "summary": value.get("caption", ""),
        "plugin": "classfair",
        "version": version(),
    }


# -- as text -----------------------------------------------------------------------------------


def _lines(told: Mapping[str, Any], card: Card | None) -> Iterator[str]:
    title = told.get("title", told["name"])
    yield f"{title} ({told['name']})" if title != told["name"] else title
    yield from _wrapped(told["summary"])
    if told["doc"]:
        yield from ("", *told["doc"].splitlines())
    if card is not None and card.settings:
        yield from ("", "Settings")
        for item in card.settings:
            yield from _setting(item)
    yield ""
    for key, value in told.items():
        if key not in _TOLD | {"detail"} or key == "plugin":
            yield from _fact(key, value)
    if told.get("detail"):
        yield from ("", *told["detail"].splitlines())


def _setting(item: Setting) -> Iterator[str]:
    facts = [item.type + (" or null" if item.optional else ""), f"default {_plain(item.default)}"]
    if item.choices:
        facts.append(f"one of {', '.join(map(_plain, item.choices))}")
    if item.minimum is not None or item.maximum is not None:
        facts.append(f"{_bound(item.minimum, '-inf')} to {_bound(item.maximum, 'inf')}")
    if item.search:
        low_high = len(item.search) == 2 and item.type in ("int", "float")
        joined = (" to " if low_high else ", ").join(map(_plain, item.search))
        facts.append(f"searched {joined}{' (logarithmic)' if item.log else ''}")
    yield f"  {item.name}: {', '.join(facts)}"
    yield from _wrapped(item.doc, "      ")
    yield from _wrapped(f"source: {item.source}", "      ")


def _fact(key: str, value: Any) -> Iterator[str]:
    """Yield one value; what is empty says nothing."""
    if value in ("", None, [], {}):
        return
    name = key.replace("_", " ")
    if isinstance(value, dict):
        told = ", ".join(f"{k} {_plain(v)}" for k, v in value.items() if not _long(v))
        yield from _wrapped(f"{name}: {told}")
        for inner, item in value.items():
            if _long(item):
                yield from _fact(f"{name} {inner}", item)
    elif isinstance(value, list):
        yield from _wrapped(f"{name}: {', '.join(map(_plain, value))}")
    else:
        yield from _wrapped(f"{name}: {_plain(value)}")


def _long(value: Any) -> bool:
    return isinstance(value, dict | list) or (isinstance(value, str) and len(value) > 30)


def _plain(value: Any) -> str:
    """Return a value as YAML would have it."""
    words: dict[Any, str] = {None: "null", True: "true", False: "false"}
    known = value is None or isinstance(value, bool)
    return words[value] if known else str(value)


def _bound(value: float | None, none: str) -> str:
    return none if value is None else f"{value:g}"


def _wrapped(value: str, indent: str = "") -> Sequence[str]:
    wrap: Callable[..., list[str]] = textwrap.wrap
    return wrap(value, _WIDTH, initial_indent=indent, subsequent_indent=indent or "    ")
