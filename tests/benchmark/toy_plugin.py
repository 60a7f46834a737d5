"""A plugin of one file for tests of the command line: nothing in it is ever trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from classfair_registry import hookimpl
from classfair_registry.settings import setting
from classfair_registry.specs import BackboneSpec, DatasetSpec, Manifest, MethodSpec, Splits


@dataclasses.dataclass(frozen=True)
class Steep:
    """Settings of steep."""

    slope: float = setting(1.0, "how steep", source="our choice", minimum=0.0, search=(0.5, 2.0))
    lambda_: float = setting(0.5, "weight of the second term", source="paper, eq. 3", maximum=1.0)
    rounds: int = setting(2, "rounds", source="our choice", minimum=1)
    mode: Literal["up", "down"] = setting("up", "direction", source="our choice")


@dataclasses.dataclass(frozen=True)
class ToyData:
    """Settings of the toy data set."""

    split: Literal["official", "other"] = setting("official", "which split", source="our choice")
    noise: float = setting(0.0, "share of wrong labels", source="our choice")


@dataclasses.dataclass(frozen=True)
class Thin:
    """Settings of the thin network."""

    width: int = setting(8, "channels", source="our choice", minimum=1)


MANIFEST = Manifest(
    classes=("a", "b", "c", "d"),
    counts={"train": 400, "test": 40},
    shape=(1, 4, 4),
    mean=(0.5,),
    std=(0.5,),
    licence="none",
    citation="none",
    sources=("here",),
)


def make(*_arguments: Any) -> Any:
    """Plans need no method."""
    raise AssertionError("a plan makes nothing")


def open_toy(*_arguments: Any) -> Splits:
    """Return no images and a fingerprint."""
    return Splits({}, "toy-fingerprint")


def _method(name: str, **more: Any) -> MethodSpec:
    return MethodSpec(
        name=name,
        title=name.upper(),
        make=make,
        summary=f"the toy method {name}",
        reference="Nobody, A Toy, 2020",
        cost=1.0,
        **more,
    )


@hookimpl
def classfair_methods() -> Iterable[MethodSpec]:
    """Provide methods."""
    return [
        _method("steep", settings=Steep),
        _method("scratchy", regimes=("scratch",)),
        _method("careful", splits=("train", "val")),
    ]


@hookimpl
def classfair_datasets() -> Iterable[DatasetSpec]:
    """Provide a data set."""
    return [
        DatasetSpec(
            name="toy",
            title="Toy",
            open=open_toy,
            files=lambda _root, _settings: [],
            manifest=MANIFEST,
            summary="four classes of nothing",
            settings=ToyData,
        )
    ]


@hookimpl
def classfair_backbones() -> Iterable[BackboneSpec]:
    """Provide networks."""
    return [
        BackboneSpec(
            name=name,
            title=name,
            make=make,
            summary="a network of the toy",
            reference="Nobody, A Toy, 2020",
            settings=Thin,
            weights=weights,
        )
        for name, weights in (("thin", ()), ("thick", ("web",)))
    ]
