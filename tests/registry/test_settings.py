"""Settings: described without torch, checked strictly, refused with place and near names."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal

import pytest

from classfair_registry.errors import UsageError
from classfair_registry.settings import Setting, build, describe, resolve, setting


@dataclasses.dataclass(frozen=True)
class Example:
    rate: float = setting(0.1, "how fast", source="paper", minimum=0.0, maximum=1.0)
    lambda_: float | None = setting(None, "weight", source="code", search=(0.1, 0.9), log=True)
    rule: Literal["a", "b"] = setting("a", "which", source="ours")
    steps: int = setting(3, "how many", source="ours", minimum=1)
    on: bool = setting(True, "whether", source="ours")


def test_defaults_and_given_values_are_put_together():
    resolved = resolve(describe(Example), {"lambda": 2, "rule": "b"}, "here")
    assert resolved == {"rate": 0.1, "lambda": 2.0, "rule": "b", "steps": 3, "on": True}
    assert build(Example, resolved) == Example(lambda_=2.0, rule="b")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lamda": 1}, "here: no setting 'lamda'; did you mean lambda?"),
        ({"rate": "0.1"}, "here.rate: '0.1' is not a float"),
        ({"rate": True}, "here.rate: True is not a float"),
        ({"rate": None}, "here.rate: None is not a float"),
        ({"rate": 1.5}, "here.rate: 1.5 is outside 0.0 to 1.0"),
        ({"rate": float("nan")}, "here.rate: nan is outside 0.0 to 1.0"),
        ({"rule": "c"}, "here.rule: 'c' is not one of a, b"),
        ({"steps": 2.0}, "here.steps: 2.0 is not a int"),
        ({"steps": 0}, "here.steps: 0 is outside 1 to inf"),
        ({"on": 1}, "here.on: 1 is not a bool"),
        ({"lambda": []}, "here.lambda: [] is not a float or null"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(given, said):
    with pytest.raises(UsageError) as caught:
        resolve(describe(Example), given, "here")
    assert str(caught.value) == said


def test_a_description_survives_json():
    for item in describe(Example):
        assert Setting.from_json(json.loads(json.dumps(dataclasses.asdict(item)))) == item


def test_a_setting_needs_a_default_and_a_plain_type():
    @dataclasses.dataclass(frozen=True)
    class Bare:
        rate: float

    @dataclasses.dataclass(frozen=True)
    class Odd:
        rates: list[float] = ()

    with pytest.raises(TypeError, match="'rate' has no default"):
        describe(Bare)
    with pytest.raises(TypeError, match="'rates': unsupported type"):
        describe(Odd)
    with pytest.raises(TypeError, match="not a dataclass"):
        describe(int)
