"""The run key: what moves it, what does not, and how a difference is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from toys import TOY_MATRIX, TOY_PLUGIN, TOY_RECIPE, expanded, fingerprint, toy_plugins

from classfair.expand import expand
from classfair.keys import code_digest, explain, keyed, plugin_code, plugin_sources, run_key
from classfair.yaml_strict import parse
from classfair_registry.manager import PluginInfo
from classfair_registry.records import CellInfo


@pytest.fixture
def cell(tmp_path: Path) -> CellInfo:
    """Return steep on the base recipe with seed 0."""
    return expanded(tmp_path).cells[2]


def changed(cell: CellInfo, **values: Any) -> CellInfo:
    of_method = {k: v for k, v in values.items() if k in type(cell.method).model_fields}
    of_cell = {k: v for k, v in values.items() if k not in of_method}
    method = cell.method.model_copy(update=of_method)
    return cell.model_copy(update={"method": method, **of_cell})


SAME = [
    {"label": "other"},
    {"title": "Other"},
    {"plugin": "elsewhere", "version": "9", "source": "edited"},
    {"reduces_to": "erm", "budget": "more"},
    {"recipe_name": "other"},
    {"paths": {"data": "/elsewhere"}},
    {"ranking_run": True},
    {"key": "anything"},
]
OTHER = [
    ({"revision": 2}, "revision 1 -> 2"),
    ({"protocol": 2}, "protocol 1 -> 2"),
    ({"key_version": 2}, "key_version 1 -> 2"),
    ({"settings": {"slope": 0.1}}, "settings.slope 2.0 -> 0.1"),
    ({"code": "other"}, "the method plugin's code changed"),
    ({"code": None}, "the method plugin's code changed"),
    ({"fingerprint": "other"}, "the data set's content changed"),
    ({"weights": "0123"}, "the weights file changed"),
    ({"seed": 1}, "seed 0 -> 1"),
    ({"name": "erm"}, "method steep -> erm"),
]


@pytest.mark.parametrize("values", SAME)
def test_names_and_places_do_not_move_the_key(cell: CellInfo, values: dict[str, Any]) -> None:
    other = changed(cell, **values)
    assert other != cell
    assert run_key(other) == cell.key
    assert explain(cell, other) == ""


@pytest.mark.parametrize(("values", "words"), OTHER)
def test_what_changes_a_number_moves_the_key_and_is_named(
    cell: CellInfo, values: dict[str, Any], words: str
) -> None:
    if "settings" in values:
        values = {"settings": {**cell.method.settings, **values["settings"]}}
    other = changed(cell, **values)
    assert run_key(other) != cell.key
    assert explain(cell, other) == words


def test_provenance_of_a_recipe_is_not_in_the_run_key(cell: CellInfo) -> None:
    trace = {**cell.recipe["trace"], "losses": 99}
    names = {"name": "x", "caption": "y", "threads": 7, "trace": trace}
    other = changed(cell, recipe={**cell.recipe, **names})
    assert run_key(other) == cell.key
    assert explain(cell, other) == ""


def test_a_default_of_a_recipe_is_not_in_the_run_key(cell: CellInfo) -> None:
    """So a setting that a later version adds changes no key."""
    assert set(keyed(cell)["recipe"]) == {"data", "backbone", "batch_size", "epochs"}
    older = {k: v for k, v in cell.recipe.items() if k != "selection"}
    assert run_key(changed(cell, recipe=older)) == cell.key


def test_a_difference_in_a_recipe_is_named_by_its_key(tmp_path: Path) -> None:
    one, two = expanded(tmp_path), expanded(tmp_path, sets=("optimizer.lr=0.2", "epochs=8"))
    assert explain(one.cells[0], two.cells[0]) == "optimizer.lr 0.1 -> 0.2, epochs 4 -> 8"


def test_a_setting_that_is_new_is_named(cell: CellInfo) -> None:
    settings = {k: v for k, v in cell.method.settings.items() if k != "rounds"}
    assert explain(changed(cell, settings=settings), cell) == "settings.rounds (none) -> 2"
    assert explain(cell, changed(cell, settings=settings)) == "settings.rounds 2 -> (none)"


def test_a_value_that_is_written_out_or_left_to_its_default_gives_one_key(tmp_path: Path) -> None:
    plain = expanded(tmp_path)
    matrix = TOY_MATRIX.replace("slope: 2", "mode: up, slope: 2.0")
    recipe = TOY_RECIPE.replace("epochs: 4", "optimizer: {momentum: 0.9, lr: 1e-1}\nepochs: 4")
    recipe = recipe.replace("name: thin", "name: thin, head: linear, settings: {width: 8}")
    written = expanded(tmp_path, matrix, recipe)
    assert [c.key for c in written.cells] == [c.key for c in plain.cells]
    assert [c.recipe_key for c in written.cells] == [c.recipe_key for c in plain.cells]


def test_order_does_not_move_keys(tmp_path: Path) -> None:
    plain = expanded(tmp_path)
    matrix = TOY_MATRIX.replace("[0, 1]", "[1, 0]").replace(
        "[erm, {name: steep, slope: 2}]", "[{slope: 2, name: steep}, erm]"
    )
    assert {c.key for c in expanded(tmp_path, matrix).cells} == {c.key for c in plain.cells}


def test_cells_of_one_table_share_the_recipe_key(tmp_path: Path) -> None:
    small = "{base: base.yaml, name: small, epochs: 1}"
    matrix = TOY_MATRIX.replace("[base.yaml]", f"[base.yaml, {small}]")
    cells = expanded(tmp_path, matrix).cells
    assert len({cell.recipe_key for cell in cells[:4]}) == 1
    assert len({cell.recipe_key for cell in cells}) == 2


SOURCE = '"""Doc."""\n\n\ndef f(x):\n    """Doc of f."""\n    return x + 1  # why\n'


def test_comments_docstrings_and_layout_are_no_code() -> None:
    assert code_digest(SOURCE) == code_digest("def f(x):\n    return (x\n            + 1)\n")
    assert code_digest(SOURCE) == code_digest(SOURCE.replace("Doc", "Other"))


@pytest.mark.parametrize("other", ["x + 2", "x + 1.0", "x + True", "x + '1'", "x - 1", "y + 1"])
def test_any_other_expression_is_other_code(other: str) -> None:
    assert code_digest(SOURCE) != code_digest(SOURCE.replace("x + 1", other))


def test_text_that_is_no_docstring_is_code() -> None:
    one, two = ("def f():\n    pass\n    'a'\n", "def f():\n    pass\n    'b'\n")
    assert code_digest(one) != code_digest(two)


def test_the_code_of_a_plugin_of_one_file_moves_the_key_and_its_comments_do_not(
    tmp_path: Path,
) -> None:
    source = TOY_PLUGIN.read_text()
    (tmp_path / "base.yaml").write_text(TOY_RECIPE)

    def keys(name: str, text: str) -> tuple[list[str], list[str]]:
        file = tmp_path / name
        file.write_text(text)
        plugins = toy_plugins(tmp_path, file=file)
        cells = expand(parse(TOY_MATRIX, "m.yaml"), tmp_path, plugins, fingerprint).cells
        return [cell.key for cell in cells], [cell.recipe_key for cell in cells]

    plain = keys("one.py", source)
    assert keys("two.py", "# more words\n" + source) == plain
    other = keys("three.py", source.replace("no method", "not any method") + "\nX = 1\n")
    assert not set(other[0]) & set(plain[0])
    assert not set(other[1]) & set(plain[1])


def test_the_files_of_an_installed_plugin_are_those_of_its_innermost_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "toy_package" / "inner"
    package.mkdir(parents=True)
    for file in (package.parent / "__init__.py", package / "__init__.py", package / "hooks.py"):
        file.write_text("x = 1\n")
    (tmp_path / "toy_module.py").write_text("y = 1\n")
    monkeypatch.syspath_prepend(tmp_path)

    def info(target: str) -> PluginInfo:
        return PluginInfo("toy", "toy", "1", "entry point", target)

    assert plugin_sources(info("toy_module:plugin")) == [tmp_path / "toy_module.py"]
    inner = [package / "__init__.py", package / "hooks.py"]
    assert plugin_sources(info("toy_package.inner.hooks")) == inner
    assert plugin_sources(info("toy_package.inner")) == inner
    assert plugin_sources(info("toy_package")) == [package.parent / "__init__.py", *inner]
    before = plugin_code(info("toy_package.inner"))
    (package / "hooks.py").write_text("x = 2\n")
    assert plugin_code(info("toy_package.inner")) != before


def test_a_plugin_of_the_release_has_its_revision_instead_of_its_code() -> None:
    assert plugin_code(PluginInfo("erm", "classfair", "1", "built-in", "json")) is None
