"""Settings of a plugin: a frozen dataclass in its own file, described so that no torch is needed.

A method declares

    @dataclass(frozen=True)
    class Settings:
        p: float = setting(2.0, "norm of the feature statistics", source="paper, section 4.1",
                           minimum=1.0, search=(1.0, 5.0))

and :func:`describe` turns it into plain values that the command line can print, check YAML
against and store in the catalogue. A trailing underscore in a field's name is dropped in YAML
(``lambda_`` is written ``lambda``).
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeVar

from classfair_registry.errors import UsageError, near

T = TypeVar("T")
_SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting as plain values.

    Attributes:
        name: the key in YAML.
        type: ``bool``, ``int``, ``float`` or ``str``.
        default: its default, of that type, or None where ``optional``.
        doc: what it means.
        source: where the default comes from (paper, equation, official code, our choice).
        optional: whether null is allowed.
        choices: the allowed values, or empty for any.
        minimum, maximum: inclusive bounds, or None.
        search: for ``tune``: (low, high) of a range, or the values to choose from.
        log: whether the range is searched on a logarithmic scale.
    """

    name: str
    type: str
    default: Any
    doc: str = ""
    source: str = ""
    optional: bool = False
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    search: tuple[Any, ...] = ()
    log: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Setting:
        """Return a setting from what ``dataclasses.asdict`` made of it and JSON kept."""
        lists = {name: tuple(values[name]) for name in ("choices", "search")}
        return cls(**{**values, **lists})

    def check(self, value: Any, where: str) -> Any:
        """Return ``value`` as this setting's type, or raise UsageError that says what is wanted."""
        if value is None and self.optional:
            return None
        checked = self._typed(value)
        if checked is None:
            wanted = self.type + (" or null" if self.optional else "")
            raise UsageError(f"{where}.{self.name}: {value!r} is not a {wanted}")
        if self.choices and checked not in self.choices:
            known = ", ".join(str(choice) for choice in self.choices)
            raise UsageError(f"{where}.{self.name}: {checked!r} is not one of {known}")
        low, high = self.minimum, self.maximum
        # Written so that NaN, which compares false with everything, is refused too.
        if (low is not None and not checked >= low) or (high is not None and not checked <= high):
            bounds = f"{'-inf' if low is None else low} to {'inf' if high is None else high}"
            raise UsageError(f"{where}.{self.name}: {checked!r} is outside {bounds}")
        return checked

    def _typed(self, value: Any) -> Any:
        if self.type == "float" and type(value) in (int, float):
            return float(value)
        return value if type(value).__name__ == self.type else None


def setting(
    default: Any,
    doc: str,
    *,
    source: str,
    minimum: float | None = None,
    maximum: float | None = None,
    search: Sequence[Any] = (),
    log: bool = False,
) -> Any:
    """Return a dataclass field with its meaning, the source of its default and its search range."""
    metadata = {
        "doc": doc,
        "source": source,
        "minimum": minimum,
        "maximum": maximum,
        "search": tuple(search),
        "log": log,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True)
class NoSettings:
    """For plugins without settings."""


def describe(settings_type: type) -> tuple[Setting, ...]:
    """Return the settings of a frozen dataclass in the order of their declaration.

    Raises:
        TypeError: if it is no frozen dataclass, a field has no default, or its type is none of
            bool, int, float, str, a Literal of one of them, each optionally ``| None``.
    """
    if not dataclasses.is_dataclass(settings_type):
        raise TypeError(f"{settings_type!r} is not a dataclass")
    hints = typing.get_type_hints(settings_type)
    return tuple(_describe(field, hints[field.name]) for field in dataclasses.fields(settings_type))


def _describe(field: dataclasses.Field[Any], hint: Any) -> Setting:
    if field.default is dataclasses.MISSING:
        raise TypeError(f"setting {field.name!r} has no default")
    optional = False
    choices: tuple[Any, ...] = ()
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        members = [member for member in typing.get_args(hint) if member is not type(None)]
        optional, hint = True, members[0]
        if len(members) != 1:
            raise TypeError(f"setting {field.name!r}: a union of several types")
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        hint = {type(choice) for choice in choices}.pop()
    if hint not in _SCALARS:
        raise TypeError(f"setting {field.name!r}: unsupported type {hint!r}")
    return Setting(
        name=field.name.rstrip("_"),
        type=_SCALARS[hint],
        default=field.default,
        optional=optional,
        choices=choices,
        **field.metadata,
    )


def resolve(described: Sequence[Setting], given: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return all settings by name: those ``given``, checked, and the defaults of the others.

    Args:
        described: what :func:`describe` returned.
        given: values from YAML or the command line.
        where: the place to name in an error, such as ``methods[2] (mr2)``.

    Raises:
        UsageError: for an unknown name (with near ones) or a value of the wrong type or range.
    """
    known = {item.name: item for item in described}
    for name in given:
        if name not in known:
            raise UsageError(f"{where}: no setting {name!r}{near(str(name), known)}")
    return {
        name: item.check(given[name], where) if name in given else item.default
        for name, item in known.items()
    }


def build(settings_type: type[T], resolved: Mapping[str, Any]) -> T:
    """Return the settings object for values that :func:`resolve` returned."""
    values = {}
    for field in dataclasses.fields(settings_type):  # type: ignore[arg-type]
        values[field.name] = resolved[field.name.rstrip("_")]
    return settings_type(**values)
