"""YAML that means what it looks like, with the place of every value.

PyYAML follows YAML 1.1, where ``1e-3`` is a string, ``no`` a boolean, ``010`` eight and ``1:30``
ninety, and where the last of two equal keys wins in silence. Here scalars follow the core schema of
YAML 1.2 (section 10.3.2 of its specification), and whatever a settings file does not need (equal
keys, anchors, tags, several documents, numbers that are not finite) is an error with its line.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pydantic
import yaml

from classfair_registry.errors import UsageError, near

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

M = TypeVar("M", bound=pydantic.BaseModel)
Place = tuple[str | int, ...]
"""Keys and list positions from the top of a document to a value."""

_NULL = re.compile(r"~|null|Null|NULL|")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_INT = re.compile(r"[-+]?[0-9]{1,300}|0o[0-7]{1,300}|0x[0-9a-fA-F]{1,300}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")


@dataclasses.dataclass(frozen=True)
class Document:
    """What a YAML text says, and where.

    Attributes:
        value: plain mappings, lists and scalars.
        lines: where each value stands, such as ``FILE:LINE``: that of its key in a mapping.
    """

    value: Any
    lines: Mapping[Place, str]

    def line(self, *place: str | int) -> str:
        """Return ``FILE:LINE`` of a value, or of the nearest one that should hold it."""
        known = (place[:n] for n in range(len(place), -1, -1) if place[:n] in self.lines)
        return self.lines[next(known)]

    def where(self, *place: str | int) -> str:
        """Return ``FILE:LINE: key.key[2]`` for a value."""
        return f"{self.line(*place)}: {dotted(place)}" if place else self.line()

    def fail(self, message: str, *place: str | int) -> NoReturn:
        """Raise UsageError with a value's place before the message."""
        raise UsageError(f"{self.where(*place)}: {message}")

    def part(self, *place: str | int) -> Document:
        """Return a value inside this one as a document; its lines stay those of the file."""
        value = self.value
        for step in place:
            value = value[step]
        inside = {at[len(place) :]: line for at, line in self.lines.items() if _under(at, place)}
        return Document(value, inside)

    def without(self, key: str) -> Document:
        """Return the same mapping without one of its keys."""
        value = {name: item for name, item in self.value.items() if name != key}
        return Document(value, {at: n for at, n in self.lines.items() if at[:1] != (key,)})

    def updated(self, other: Document) -> Document:
        """Return this mapping with another's values in their places, nested mappings merged."""
        value, lines = dict(self.value), {**self.lines, (): other.line()}
        for key, new in other.value.items():
            part = other.part(key)
            if isinstance(value.get(key), dict) and isinstance(new, dict):
                part = self.part(key).updated(part)
            value[key] = part.value
            lines = {at: line for at, line in lines.items() if not _under(at, (key,))}
            lines |= {(key, *at): line for at, line in part.lines.items()}
        return Document(value, lines)

    def parse(self, model: type[M]) -> M:
        """Return the document as a model.

        Raises:
            UsageError: for the first thing that is wrong, with its line, and with near names for
                an unknown key.
        """
        if not isinstance(self.value, dict):
            self.fail(f"expected keys and values, not {self.value!r}")
        try:
            return model.model_validate(self.value)
        except pydantic.ValidationError as error:
            place, message = first_problem(model, error)
            raise UsageError(f"{self.where(*place)}: {message}") from error


def load(path: Path) -> Document:
    """Read a YAML file of one document.

    Raises:
        UsageError: naming file, line and column of what is wrong.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise UsageError(f"{path}: larger than {MAX_BYTES:,} bytes, so hardly a settings file")
    try:
        return parse(content.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}:{line}: not UTF-8 text") from error


def parse(text: str, file: str) -> Document:
    """Return what a YAML text says; ``file`` is its name in messages."""
    try:
        _check_events(text, file)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        raise UsageError(_marked(file, error)) from error
    except yaml.YAMLError as error:
        raise UsageError(f"{file}: {' '.join(str(error).split())}") from error
    if root is None:
        return Document(None, {(): f"{file}:1"})
    lines: dict[Place, str] = {(): _line(file, root)}
    return Document(_value(root, (), lines, file), lines)


def scalar(text: str, where: str) -> Any:
    """Return a value of the command line (``--set key=VALUE``) by the rules of the files."""
    return parse(text, where).value


def dotted(place: Place) -> str:
    """Return ``recipes[1].optimizer.lr``."""
    parts = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return "".join(parts).removeprefix(".")


def _under(place: Place, holder: Place) -> bool:
    return place[: len(holder)] == holder


def first_problem(
    model: type[pydantic.BaseModel], error: pydantic.ValidationError
) -> tuple[Place, str]:
    """Return the place and a plain message for the first thing that pydantic found wrong."""
    errors = error.errors(include_url=False)
    # A typo in a key that is needed makes two errors, of which the unknown key says more.
    first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
    place = first["loc"]
    if first["type"] == "extra_forbidden":
        return place, f"unknown key{near(str(place[-1]), _fields(model, place[:-1]))}"
    if first["type"] == "missing":
        return place, "missing"
    message = first["msg"].removeprefix("Value error, ").replace("Input should be", "should be")
    given = "" if isinstance(first["input"], dict | list) else f", not {first['input']!r}"
    return place, message + given


def _fields(model: Any, place: Place) -> list[str]:
    """Return the keys that a model knows at a place inside it."""
    for step in place:
        inner = model.model_fields[step].annotation if isinstance(step, str) else model
        model = next(iter(typing.get_args(inner)), inner)
    return list(model.model_fields)


def _check_events(text: str, file: str) -> None:
    """Refuse anchors, aliases, tags and bottomless nesting before a node is made."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            _fail(event, file, "anchors and aliases are not allowed; write the value out")
        if getattr(event, "tag", None) is not None:
            _fail(event, file, "tags are not allowed; how a value is written gives its type")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
        if depth > MAX_DEPTH:
            _fail(event, file, f"nested more than {MAX_DEPTH} levels deep")


def _value(node: yaml.Node, place: Place, lines: dict[Place, str], file: str) -> Any:
    """Return a node's plain value and note the lines of everything in it."""
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, file)
    if isinstance(node, yaml.SequenceNode):
        for number, item in enumerate(node.value):
            lines[*place, number] = _line(file, item)
        return [_value(item, (*place, n), lines, file) for n, item in enumerate(node.value)]
    values: dict[str, Any] = {}
    for key_node, item in node.value:
        key = _key(key_node, file)
        at = (*place, key)
        if key in values:
            _fail(key_node, file, f"key {key!r} was already given in {lines[at]}")
        lines[at] = _line(file, key_node)
        values[key] = _value(item, at, lines, file)
    return values


def _key(node: yaml.Node, file: str) -> str:
    value = _scalar(node, file) if isinstance(node, yaml.ScalarNode) else node.value
    if not isinstance(value, str):
        _fail(node, file, f"a key must be text, not {node.value!r}; quote it")
    return value


def _scalar(node: yaml.ScalarNode, file: str) -> Any:
    """Return a scalar by the core schema of YAML 1.2; whatever is quoted is text."""
    text: str = node.value
    if node.style is not None:
        return text
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text) or _FALSE.fullmatch(text):
        return text.lower() == "true"
    if _INT.fullmatch(text):
        prefixed = text[:2] in ("0o", "0x")
        return int(text, 0) if prefixed else int(text)
    if _FLOAT.fullmatch(text) and math.isfinite(float(text)):
        return float(text)
    if _FLOAT.fullmatch(text) or _NOT_FINITE.fullmatch(text):
        _fail(node, file, f"{text} is not a finite number")
    return text


def _line(file: str, node: yaml.Node) -> str:
    return f"{file}:{node.start_mark.line + 1}"


def _fail(at: yaml.Node | yaml.Event, file: str, message: str) -> NoReturn:
    raise UsageError(f"{_at(file, at.start_mark)}: {message}")


def _marked(file: str, error: yaml.MarkedYAMLError) -> str:
    why = ", ".join(part for part in (error.problem, error.context) if part)
    return f"{_at(file, error.problem_mark or error.context_mark)}: {why}"


def _at(file: str, mark: Any) -> str:
    return f"{file}:{mark.line + 1}:{mark.column + 1}" if mark else file
