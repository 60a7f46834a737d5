"""From a matrix in YAML to cells: order, inheritance, changes, and every kind of mistake."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from toys import TOY_ERM, TOY_MATRIX, TOY_PLUGIN, TOY_RECIPE, expanded, toy_plugins

from classfair import library
from classfair.changes import Changes
from classfair.expand import expand
from classfair.matrix import RANKING_SEED, Expansion
from classfair.yaml_strict import parse
from classfair_registry.errors import DataMissing, UsageError


def rows(expansion: Expansion) -> list[tuple[str, str, int]]:
    return [(c.recipe_name, c.method.label, c.seed) for c in expansion.cells]


def test_cells_come_in_the_order_of_recipes_methods_and_seeds(tmp_path: Path) -> None:
    matrix = TOY_MATRIX.replace("[base.yaml]", "[base.yaml, {base: base.yaml, name: b, epochs: 9}]")
    assert rows(expanded(tmp_path, matrix)) == [
        (recipe, method, seed)
        for recipe in ("base", "b")
        for method in ("erm", "steep")
        for seed in (0, 1)
    ]


def test_a_cell_holds_every_setting_resolved(tmp_path: Path) -> None:
    cell = expanded(tmp_path).cells[2]
    assert cell.method.settings == {"slope": 2.0, "lambda": 0.5, "rounds": 2, "mode": "up"}
    assert cell.method.title == "STEEP"
    assert cell.recipe["optimizer"]["lr"] == 0.1
    assert cell.recipe["backbone"]["head"] == "linear"
    assert cell.recipe["backbone"]["settings"] == {"width": 8}
    assert cell.recipe["data"]["settings"] == {"split": "official", "noise": 0.0}
    assert cell.fingerprint == "toy-fingerprint"
    assert list(cell.paths.values()) == [None, str(TOY_ERM), str(TOY_PLUGIN)]


def test_the_same_method_stands_there_twice_under_two_labels(tmp_path: Path) -> None:
    matrix = TOY_MATRIX.replace("erm, ", "steep, ").replace("slope", "label: Steep 2, slope")
    cells = expanded(tmp_path, matrix).cells
    assert [(c.method.name, c.method.label, c.method.title) for c in cells[::2]] == [
        ("steep", "steep", "STEEP"),
        ("steep", "Steep 2", "Steep 2"),
    ]
    assert len({cell.key for cell in cells}) == 4


def test_a_recipe_inherits_nested_keys_and_changes_some(tmp_path: Path) -> None:
    (tmp_path / "middle.yaml").write_text(
        "base: base.yaml\nname: middle\noptimizer: {lr: 1e-3, momentum: 0.5}\nprecision: bf16\n"
    )
    matrix = TOY_MATRIX.replace(
        "[base.yaml]", "[{base: middle.yaml, name: top, optimizer: {lr: 2}, data: {fraction: 0.5}}]"
    )
    recipe = expanded(tmp_path, matrix).cells[0].recipe
    assert (recipe["name"], recipe["precision"], recipe["epochs"]) == ("top", "bf16", 4)
    assert (recipe["optimizer"]["lr"], recipe["optimizer"]["momentum"]) == (2.0, 0.5)
    assert (recipe["data"]["name"], recipe["data"]["fraction"]) == ("toy", 0.5)


def test_overrides_and_then_the_command_line_win(tmp_path: Path) -> None:
    matrix = TOY_MATRIX + "overrides: {base: {steep: {slope: 3, rounds: 5}}}\n"
    plain = expanded(tmp_path, matrix).cells[2].method.settings
    changed = expanded(tmp_path, matrix, sets=("steep.slope=4",)).cells[2].method.settings
    assert (plain["slope"], plain["rounds"]) == (3.0, 5)
    assert (changed["slope"], changed["rounds"]) == (4.0, 5)


def test_set_changes_recipes_by_the_types_of_yaml(tmp_path: Path) -> None:
    sets = ("epochs=2", "optimizer.lr=5e-2", "optimizer.betas=[0.8, 0.9]", "optimizer.clip=null")
    expansion = expanded(tmp_path, sets=sets)
    recipe = expansion.cells[0].recipe
    assert recipe["epochs"] == 2
    assert recipe["optimizer"]["lr"] == 0.05
    assert recipe["optimizer"]["betas"] == [0.8, 0.9]
    assert "epochs=2, optimizer.lr=5e-2" in expansion.caption
    assert expansion.cells[0].key != expanded(tmp_path).cells[0].key


def chosen(expansion: Expansion) -> list[tuple[str, str, int]]:
    return rows(Expansion(**{**vars(expansion), "cells": picked(expansion)}))


def picked(expansion: Expansion) -> tuple[Any, ...]:
    return tuple(cell for cell in expansion.cells if cell.key in expansion.chosen)


def test_only_chooses_and_add_adds(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, only=("method=steep", "seed=1"))
    assert chosen(expansion) == [("base", "steep", 1)]
    assert len(expansion.cells) == 4
    expansion = expanded(tmp_path, only=("method=erm", "seed=0"), add=("method=scratchy",))
    assert chosen(expansion) == [("base", "erm", 0), ("base", "scratchy", 0)]
    expansion = expanded(tmp_path, only=("method=erm,steep", "seed=1"), add=("method=steep",))
    assert chosen(expansion) == [("base", "erm", 1), ("base", "steep", 1)]
    expansion = expanded(tmp_path, only=("recipe=base",))
    assert len(expansion.chosen) == 4


def test_ranking_runs_have_reserved_seeds_and_no_part_in_the_table(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, TOY_MATRIX + "ranking_runs: 3\n")
    runs = [cell for cell in expansion.cells if cell.ranking_run]
    assert [cell.seed for cell in runs] == [RANKING_SEED, RANKING_SEED + 1, RANKING_SEED + 2]
    assert {cell.method.name for cell in runs} == {"erm"}
    assert [cell.recipe_key for cell in runs] == [expansion.cells[0].recipe_key] * 3
    assert len(expansion.cells) == 7


def test_cells_are_skipped_with_the_reason(tmp_path: Path) -> None:
    matrix = TOY_MATRIX.replace("[erm, ", "[erm, scratchy, careful, ")
    matrix += "skip: [{method: ste*, recipe: '*', why: too steep}]\n"
    expansion = expanded(tmp_path, matrix, TOY_RECIPE + "regime: probe\n")
    assert {row[1] for row in rows(expansion)} == {"erm"}
    assert {(skip.method, skip.why, skip.asked) for skip in expansion.skipped} == {
        ("steep", "too steep", True),
        ("scratchy", "scratchy does not support regime probe", False),
        ("careful", "careful reads a validation split; set data.validation", False),
    }
    recipe = TOY_RECIPE.replace("name: toy}", "name: toy, validation: 0.1}")
    assert not expanded(tmp_path, TOY_MATRIX.replace("erm, ", "careful, "), recipe).skipped


def test_missing_data_skips_its_cells_unless_nothing_is_left(tmp_path: Path) -> None:
    def missing(_spec: Any, data: Any, _root: Path | None) -> str:
        if data.fraction < 1:
            raise DataMissing("toy needs toy.bin")
        return "found"

    (tmp_path / "base.yaml").write_text(TOY_RECIPE)
    small = "{base: base.yaml, name: small, data: {fraction: 0.5}}"
    both = parse(TOY_MATRIX.replace("[base.yaml]", f"[base.yaml, {small}]"), "m.yaml")
    one = parse(TOY_MATRIX.replace("[base.yaml]", f"[{small}]"), "m.yaml")
    plugins = toy_plugins(tmp_path)
    runnable = expand(both, tmp_path, plugins, missing).runnable()
    assert {row[0] for row in rows(runnable)} == {"base"}
    assert {skip.why for skip in runnable.skipped} == {"data: toy needs toy.bin"}
    assert not any(skip.asked for skip in runnable.skipped)
    with pytest.raises(UsageError, match=r"toys: nothing to run: toy needs toy\.bin"):
        expand(one, tmp_path, plugins, missing).runnable()


MISTAKES = [
    ("erm, ", "ermm, ", "m.yaml:4: no method 'ermm'; did you mean erm"),
    ("slope", "slop", "m.yaml:4: steep: no setting 'slop'; did you mean slope"),
    ("slope: 2", "slope: two", "m.yaml:4: steep.slope: 'two' is not a float"),
    ("slope: 2", "rounds: 2.0", "m.yaml:4: steep.rounds: 2.0 is not a int"),
    ("slope: 2", "slope: -1", "m.yaml:4: steep.slope: -1.0 is outside 0.0 to inf"),
    ("slope: 2", "mode: sideways", "m.yaml:4: steep.mode: 'sideways' is not one of up, down"),
    ("name: steep, ", "", "m.yaml:4: expected a method's name or {name: ..., ...}"),
    ("erm, ", "steep, ", "m.yaml:4: label 'steep' is used twice"),
    ("erm, ", "3, ", "m.yaml:4: expected a method's name"),
    ("[erm, {name: steep, slope: 2}]", "every", "m.yaml:4: methods: expected 'all' or a list"),
    ("seeds: [0, 1]", "seeds: [0, 0]", "m.yaml:5: seeds: a seed is listed twice"),
    ("seeds: [0, 1]", "seeds: 3", "m.yaml:5: seeds: should be a valid list, not 3"),
    ("seeds: [0, 1]", "seeds: [10000]", "m.yaml:5: seeds[0]: should be less than 10000"),
    ("seeds: [0, 1]", "seed: [0]", "m.yaml:5: seed: unknown key; did you mean seeds"),
    ("seeds: [0, 1]", "", "m.yaml:1: seeds: missing"),
    ("name: toys", "name: My toys", "m.yaml:1: name: "),
    ("base.yaml", "bse.yaml", "bse.yaml: no such file"),
    ("base.yaml", "digits_resnet", "no recipe 'digits_resnet'; did you mean digits_resnet8"),
    ("[base.yaml]", "[3]", "m.yaml:3: expected a recipe's name or its keys and values, not 3"),
    ("[base.yaml]", "[base.yaml, base.yaml]", "two recipes have the name 'base'"),
    ("base.yaml", "{base: base.yaml, epochs: 3}", "m.yaml:3: a recipe that changes its base needs"),
    ("base.yaml", "{base: base.yaml, name: b, epoch: 3}", "m.yaml:3: epoch: unknown key"),
    ("base.yaml", "{base: base.yaml, name: b}, base.yaml", "erm on b and erm on base have the"),
    ("base.yaml", "{base: {x: 1}, name: b}", "m.yaml:3: base: should be the name of a recipe"),
    ("seeds:", "overrides: {bse: {erm: {}}}\nseeds:", "m.yaml:5: overrides.bse: not in this"),
    ("seeds:", "overrides: {base: {er: {}}}\nseeds:", "m.yaml:5: overrides.base.er: not in this"),
    ("seeds:", "overrides: {base: {steep: {x: 1}}}\nseeds:", "m.yaml:5: steep: no setting 'x'"),
    ("seeds:", "skip: [{method: dro, why: x}]\nseeds:", "'dro' matches nothing here"),
    ("seeds:", "skip: [{method: erm}]\nseeds:", "m.yaml:5: skip[0].why: missing"),
]


@pytest.mark.parametrize(("old", "new", "message"), MISTAKES)
def test_a_mistake_in_a_matrix_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TOY_MATRIX
    with pytest.raises(UsageError, match=re.escape(message)):
        expanded(tmp_path, TOY_MATRIX.replace(old, new, 1))


RECIPE_MISTAKES = [
    ("toy}", "toi}", "base.yaml:2: data.name: no dataset 'toi'; did you mean toy"),
    ("thin}", "thn}", "base.yaml:3: backbone.name: no backbone 'thn'; did you mean thin"),
    ("toy}", "toy, split: zhou}", "base.yaml:2: data (toy).split: 'zhou' is not one of"),
    ("toy}", "toy, settings: {nois: 1}}", "base.yaml:2: data.settings: no setting 'nois'"),
    ("thin}", "thin, settings: {width: 0}}", "base.yaml:3: backbone.settings.width: 0 is outside"),
    ("thin}", "thin, weights: web}", "base.yaml:3: backbone.weights: no weights 'web' for thin"),
    ("thin}", "thick, weights: web}", "base.yaml:3: backbone.weights: training starts from random"),
    ("epochs: 4", "base: base.yaml", "base.yaml is based on itself"),
]


@pytest.mark.parametrize(("old", "new", "message"), RECIPE_MISTAKES)
def test_a_mistake_in_a_recipe_is_named_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in TOY_RECIPE
    with pytest.raises(UsageError, match=re.escape(message)):
        expanded(tmp_path, recipe=TOY_RECIPE.replace(old, new))


COMMAND_LINE_MISTAKES = [
    ({"sets": ("epoch=2",)}, "--set epoch=2: no recipe key or method of the matrix; did you mean"),
    ({"sets": ("epochs",)}, "--set epochs: expected KEY=VALUE"),
    ({"sets": ("epochs=2.5",)}, "--set epochs=2.5: epochs: should be a valid integer"),
    ({"sets": ("epochs=two",)}, "--set epochs=two: epochs: should be a valid integer"),
    ({"sets": ("optimizer.lrr=2",)}, "optimizer.lrr: unknown key; did you mean lr"),
    ({"sets": ("optimizer=2",)}, "--set optimizer=2: optimizer: "),
    ({"sets": ("name=x",)}, "--set name=x: name is not for the command line"),
    ({"sets": ("steep.slop=2",)}, "--set steep.slop=2: steep: no setting 'slop'"),
    ({"sets": ("steep.slope=x",)}, "--set steep.slope=x: steep.slope: 'x' is not a float"),
    ({"sets": ("step.slope=1",)}, "--set step.slope=1: no recipe key or method of the matrix"),
    ({"sets": ("epochs=[",)}, "--set epochs=[:1:2: "),
    ({"only": ("methods=erm",)}, "--only methods=erm: no key 'methods'; did you mean method"),
    ({"only": ("method=er",)}, "--only method=er: not in this matrix; did you mean erm"),
    ({"only": ("seed=7",)}, "--only seed=7: not in this matrix"),
    ({"only": ("recipe=",)}, "--only recipe=: expected a value"),
    ({"add": ("seed=1",)}, "--add seed=1: only method=NAME can be added"),
    ({"add": ("method=stp",)}, "--add: no method 'stp'; did you mean steep"),
]


@pytest.mark.parametrize(("changes", "message"), COMMAND_LINE_MISTAKES)
def test_a_mistake_on_the_command_line_is_named(
    tmp_path: Path, changes: dict[str, tuple[str, ...]], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        expanded(tmp_path, **changes)


def test_an_unknown_experiment_has_near_names_and_a_way_to_name_a_file() -> None:
    with pytest.raises(UsageError, match=r"no experiment 'quickstrt'; did you mean quickstart"):
        library.experiment("quickstrt")
    with pytest.raises(UsageError, match=r"named with its suffix, such as \./quickstrt\.yaml"):
        library.experiment("quickstrt")


@pytest.mark.parametrize("shelf", ["recipes", "experiments"])
def test_what_ships_is_named_like_its_file(shelf: Any) -> None:
    files = library.shipped(shelf)
    assert files
    for name, path in files.items():
        assert f"\nname: {name}\n" in path.read_text()


def test_changes_are_frozen_values() -> None:
    assert Changes() == Changes((), (), ())
