"""Names and settings of a matrix, looked up among the plugins and checked, with their places."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from classfair.recipe import Recipe, look_problems
from classfair.stamps import dataset_settings
from classfair.yaml_strict import Document
from classfair_registry.errors import UsageError, near
from classfair_registry.manager import Card, Plugins
from classfair_registry.settings import Setting, resolve

ALL = "all"
PAPER_ORDER = (
    *("erm", "lff", "jtt", "ldam", "eql", "supcon", "drl", "csr"),
    *("dro", "fairdro", "sam", "dfl", "lgm", "cmic_dl", "mr2"),
)
"""The order of the methods in the tables of the MR2 paper."""


@dataclasses.dataclass(frozen=True)
class MethodEntry:
    """A method of a matrix.

    Attributes:
        card: of the method.
        label: the row's name, unique in a matrix.
        given: its settings as written, by name.
    """

    card: Card
    label: str
    given: Document

    @property
    def names(self) -> tuple[str, str]:
        """What it is called by, from the least to the most exact."""
        return self.card.name, self.label

    @property
    def title(self) -> str:
        """What tables print: the label where there is one, else the paper's spelling."""
        return str(self.card.values["title"]) if self.label == self.card.name else self.label


def built_in_methods(plugins: Plugins) -> list[str]:
    """Return the methods that ship, in the order of the paper, any others after them."""
    names = [card.name for card in plugins.cards("methods") if card.plugin.origin == "built-in"]
    known = [name for name in PAPER_ORDER if name in names]
    return known + [name for name in names if name not in known]


def method_entries(methods: Document, plugins: Plugins) -> list[MethodEntry]:
    """Return the entries of a matrix's ``methods``: ``all``, or a list of names and mappings.

    Raises:
        UsageError: for an unknown method, an entry of the wrong form, or a label used twice.
    """
    if methods.value == ALL:
        return [added_entry(name, plugins, methods.line()) for name in built_in_methods(plugins)]
    if not isinstance(methods.value, list) or not methods.value:
        methods.fail(f"methods: expected '{ALL}' or a list of methods, not {methods.value!r}")
    entries = [_entry(methods.part(n), plugins) for n in range(len(methods.value))]
    for number, entry in enumerate(entries):
        if entry.label in [other.label for other in entries[:number]]:
            methods.part(number).fail(f"label {entry.label!r} is used twice; give it another one")
    return entries


def added_entry(name: str, plugins: Plugins, line: str) -> MethodEntry:
    """Return the entry of a method with its default settings; ``line`` says who asked for it."""
    return MethodEntry(plugins.card("methods", name, line), name, Document({}, {(): line}))


def _entry(written: Document, plugins: Plugins) -> MethodEntry:
    if isinstance(written.value, str):
        return added_entry(written.value, plugins, written.line())
    if not isinstance(written.value, dict) or not isinstance(written.value.get("name"), str):
        written.fail(f"expected a method's name or {{name: ..., ...}}, not {written.value!r}")
    name = written.value["name"]
    label = written.value.get("label", name)
    if not isinstance(label, str) or not label.strip():
        written.fail(f"should be text, not {label!r}", "label")
    given = written.without("name").without("label")
    return MethodEntry(plugins.card("methods", name, written.line("name")), label, given)


def checked(described: Sequence[Setting], given: Document, owner: str) -> dict[str, Any]:
    """Return all settings by name, those given checked one by one so that each has its line.

    Args:
        described: of the plugin.
        given: settings as written.
        owner: whose they are, for messages.
    """
    for name, value in given.value.items():
        resolve(described, {name: value}, f"{given.line(name)}: {owner}")
    return resolve(described, given.value, owner)


def resolve_recipe(written: Document, plugins: Plugins) -> Recipe:
    """Return a recipe with data set and backbone looked up and all of their settings filled in.

    Raises:
        UsageError: for whatever is wrong with it, with the line.
    """
    recipe = written.parse(Recipe)
    _check_look(recipe, written, plugins)
    data = recipe.data.model_copy(update={"settings": _data_settings(recipe, written, plugins)})
    card = plugins.card("backbones", recipe.backbone.name, written.where("backbone", "name"))
    _refuse_weights(recipe, written, card)
    head = recipe.backbone.head
    backbone = recipe.backbone.model_copy(
        update={
            "settings": checked(card.settings, _settings(written, "backbone"), "backbone.settings"),
            "head": card.values["head"] if head == "default" else head,
        }
    )
    return recipe.model_copy(update={"data": data, "backbone": backbone})


def counts_of(card: Card, split: str) -> dict[str, int]:
    """Return images per part of a way to split a data set, from its card."""
    manifest = card.values["manifest"]
    found: dict[str, int] = manifest["splits"].get(split, manifest["counts"])
    return found


def _check_look(recipe: Recipe, written: Document, plugins: Plugins) -> None:
    """Refuse what images of this data set cannot be seen as."""
    card = plugins.card("datasets", recipe.data.name, written.where("data", "name"))
    channels, height, width = card.values["manifest"]["shape"]
    for problem in look_problems((channels, height, width), recipe.data, recipe.eval):
        written.fail(problem, "data", "name")


def _data_settings(recipe: Recipe, written: Document, plugins: Plugins) -> dict[str, Any]:
    card = plugins.card("datasets", recipe.data.name, written.where("data", "name"))
    checked(card.settings, _settings(written, "data"), "data.settings")
    try:
        chosen = dataset_settings(plugins.get("datasets", card.name), recipe.data)
    except UsageError as error:
        raise UsageError(f"{written.line('data', 'split')}: {error}") from error
    fields = dataclasses.fields(chosen)
    pairs = zip(card.settings, fields, strict=True)
    return {item.name: getattr(chosen, field.name) for item, field in pairs}


def _settings(written: Document, part: str) -> Document:
    """Return the settings under ``data`` or ``backbone``, empty if there are none."""
    if "settings" in written.value[part]:
        return written.part(part, "settings")
    return Document({}, {(): written.line(part)})


def _refuse_weights(recipe: Recipe, written: Document, card: Card) -> None:
    """Refuse weights, since a cell would start from random ones and say otherwise."""
    wanted = recipe.backbone.weights
    if wanted is None:
        return
    known = card.values["weights"]
    if wanted not in known:
        hint = near(wanted, known) or "; it knows none"
        written.fail(f"no weights {wanted!r} for {card.name}{hint}", "backbone", "weights")
    written.fail(
        "training starts from random weights in this version; leave it out", "backbone", "weights"
    )
