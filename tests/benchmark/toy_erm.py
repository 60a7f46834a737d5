"""A stand-in for the built-in erm, for tests that look at the toys alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from classfair_registry import hookimpl
from classfair_registry.specs import MethodSpec


def make(*_arguments: Any) -> Any:
    """Plans need no method."""
    raise AssertionError("a plan makes nothing")


@hookimpl
def classfair_methods() -> Iterable[MethodSpec]:
    """Provide it."""
    return [
        MethodSpec(
            name="erm",
            title="ERM",
            make=make,
            summary="a stand-in",
            reference="Nobody, A Toy, 2020",
            cost=1.0,
        )
    ]
