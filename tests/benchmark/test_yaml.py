"""The strict YAML reader: what scalars mean, what is refused, and with which place."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from classfair.recipe import Recipe
from classfair.yaml_strict import MAX_BYTES, load, parse, scalar
from classfair_registry.errors import UsageError

CORE = [
    ("1e-3", 1e-3),
    ("1e3", 1e3),
    ("2e-05", 2e-5),
    ("1E+2", 100.0),
    (".5", 0.5),
    ("1.", 1.0),
    ("-1.5", -1.5),
    ("010", 10),
    ("+7", 7),
    ("0o10", 8),
    ("0xff", 255),
    ("1_000", "1_000"),
    ("1:30", "1:30"),
    ("2024-01-01", "2024-01-01"),
    ("0b1", "0b1"),
    ("no", "no"),
    ("off", "off"),
    ("yes", "yes"),
    ("true", True),
    ("FALSE", False),
    ("tRue", "tRue"),
    ("null", None),
    ("~", None),
    ("", None),
    ("'1'", "1"),
    ('"true"', "true"),
    ("1e-3x", "1e-3x"),
    ("<<", "<<"),
    ("[0.9, 1e-3]", [0.9, 1e-3]),
]


@pytest.mark.parametrize(("text", "value"), CORE)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text: str, value: Any) -> None:
    read = scalar(text, "--set x")
    assert read == value
    assert type(read) is type(value)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_survives_however_python_writes_it(value: float) -> None:
    read = scalar(repr(value), "x")
    assert isinstance(read, float)
    assert read == value


@given(st.integers(-(10**12), 10**12))
def test_an_integer_stays_one(value: int) -> None:
    read = scalar(str(value), "x")
    assert type(read) is int
    assert read == value


REFUSED = [
    ("a: 1\nb: 2\n  a: 3", "f.yaml:3:4: "),
    ("a: 1\nb: 2\na: 3", "f.yaml:3:1: key 'a' was already given in f.yaml:1"),
    ("a: {b: 1, b: 2}", "f.yaml:1:11: key 'b' was already given in f.yaml:1"),
    ("a: &x [1]\nb: *x", "f.yaml:1:4: anchors and aliases are not allowed"),
    ("b: *x", "f.yaml:1:4: anchors and aliases are not allowed"),
    ("a: !!python/object:os.system ls", "f.yaml:1:4: tags are not allowed"),
    ("a: ! 1", "f.yaml:1:4: tags are not allowed"),
    ("a: 1\n---\nb: 2", "f.yaml:2:1: but found another document"),
    ("a:\n\t- 1", "f.yaml:2:1: found character '\\t'"),
    ("a: .inf", "f.yaml:1:4: .inf is not a finite number"),
    ("a: .nan", "f.yaml:1:4: .nan is not a finite number"),
    ("a: 1e999", "f.yaml:1:4: 1e999 is not a finite number"),
    ("1: a", "f.yaml:1:1: a key must be text"),
    ("? [a]\n: b", "f.yaml:1:3: a key must be text"),
    ("[" * 100 + "]" * 100, "nested more than 20 levels deep"),
    ("a: \x07", "f.yaml: "),
    ("a: " + "9" * 5000, "f.yaml:1:4: "),
]


@pytest.mark.parametrize(("text", "message"), REFUSED)
def test_what_a_settings_file_does_not_need_is_refused_with_its_place(
    text: str, message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(text, "f.yaml")


def test_every_value_knows_its_line() -> None:
    document = parse("a: 1\nb:\n  c: [1,\n    2]\n  d:\n    e: x\n", "f.yaml")
    assert document.value == {"a": 1, "b": {"c": [1, 2], "d": {"e": "x"}}}
    assert document.where("a") == "f.yaml:1: a"
    assert document.where("b", "c", 1) == "f.yaml:4: b.c[1]"
    assert document.where("b", "d", "missing") == "f.yaml:5: b.d.missing"
    assert document.where() == "f.yaml:1"


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    (tmp_path / "latin.yaml").write_bytes(b"a: 1\nb: \xe9\n")
    with pytest.raises(UsageError, match=r"no\.yaml: No such file"):
        load(tmp_path / "no.yaml")
    with pytest.raises(UsageError, match=r"big\.yaml: larger than"):
        load(tmp_path / "big.yaml")
    with pytest.raises(UsageError, match=r"latin\.yaml:2: not UTF-8"):
        load(tmp_path / "latin.yaml")


def test_an_update_merges_nested_mappings_and_keeps_both_places() -> None:
    base = parse("a: {x: 1, y: [1, 2]}\nb: 1\n", "base.yaml")
    over = parse("\na:\n  y: [3]\nc: 4\n", "over.yaml")
    merged = base.updated(over)
    assert merged.value == {"a": {"x": 1, "y": [3]}, "b": 1, "c": 4}
    assert merged.where("a", "x") == "base.yaml:1: a.x"
    assert merged.where("a", "y", 1) == "over.yaml:3: a.y[1]"
    assert merged.where("b") == "base.yaml:2: b"
    assert merged.where("c") == "over.yaml:4: c"
    assert merged.where() == "over.yaml:2"
    assert base.value == {"a": {"x": 1, "y": [1, 2]}, "b": 1}


def test_a_part_keeps_the_lines_of_the_file() -> None:
    part = parse("a:\n  - {x: 1}\n  - y:\n      z: 2\n", "f.yaml").part("a", 1)
    assert part.value == {"y": {"z": 2}}
    assert part.where("y", "z") == "f.yaml:4: y.z"
    assert part.without("y").value == {}


RECIPE = "name: r\ndata: {name: digits}\nbackbone: {name: resnet8}\nepochs: 2\n"
WRONG = [
    ("epoch: 3\n", "r.yaml:5: epoch: unknown key; did you mean epochs"),
    ("optimizer:\n  lrr: 3\n", "r.yaml:6: optimizer.lrr: unknown key; did you mean lr"),
    ("optimizer:\n  lr: fast\n", "r.yaml:6: optimizer.lr: should be a valid number, not 'fast'"),
    ("batch_size: 64.0\n", "r.yaml:5: batch_size: should be a valid integer, not 64.0"),
    ("batch_size: true\n", "r.yaml:5: batch_size: should be a valid integer, not True"),
    ("regime: linear\n", "r.yaml:5: regime: should be 'scratch', 'finetune' or 'probe'"),
    ("selection: best:worst\n", "needs data.validation above 0"),
    ("optimizer: 3\n", "r.yaml:5: optimizer: "),
]


@pytest.mark.parametrize(("more", "message"), WRONG)
def test_a_wrong_recipe_is_refused_with_its_line_and_near_names(more: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        parse(RECIPE + more, "r.yaml").parse(Recipe)


def test_a_missing_key_and_an_empty_file_are_refused() -> None:
    with pytest.raises(UsageError, match=r"r\.yaml:1: epochs: missing"):
        parse(RECIPE.replace("epochs: 2", ""), "r.yaml").parse(Recipe)
    with pytest.raises(UsageError, match=r"r\.yaml:1: expected keys and values, not None"):
        parse("# nothing\n", "r.yaml").parse(Recipe)


def test_a_right_recipe_is_read() -> None:
    recipe = parse(RECIPE + "optimizer: {lr: 1e-3, betas: [0.8, 0.9]}", "r.yaml").parse(Recipe)
    assert recipe.optimizer.lr == 1e-3
    assert recipe.optimizer.betas == (0.8, 0.9)
