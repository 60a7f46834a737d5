"""Plans: what is done already, why the rest is not, and how much work is left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toys import TOY_MATRIX, TOY_RECIPE, expanded, finish, toy_plugins

from classfair.expand import expand
from classfair.matrix import Expansion
from classfair.plan import Plan, plan, steps_of_pass
from classfair.results import Results
from classfair.trainer import spans
from classfair.yaml_strict import parse
from classfair_registry.records import Failure


def planned(folder: Path, expansion: Expansion) -> Plan:
    return plan(expansion, Results(folder / "results"), toy_plugins(folder))


def test_nothing_is_done_in_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    made = planned(tmp_path, expanded(tmp_path))
    told = made.to_json()
    assert (told["total"], told["cached"]) == (4, 0)
    assert {cell["why"] for cell in told["cells"]} == {"not run yet"}
    assert {cell["cached"] for cell in told["cells"]} == {False}
    assert told["seconds"] is None
    assert not (tmp_path / "results").exists()
    json.dumps(told, allow_nan=False)


def test_a_done_cell_is_cached_and_says_how_long_the_others_take(tmp_path: Path) -> None:
    expansion = expanded(tmp_path)
    finish(tmp_path / "results", expansion.cells[0], seconds=6.0)
    made = planned(tmp_path, expansion)
    assert [p.cached for p in made.cells] == [True, False, False, False]
    assert made.seconds == pytest.approx(18.0)


def test_ranking_runs_count_apart(tmp_path: Path) -> None:
    expansion = expanded(tmp_path, TOY_MATRIX + "ranking_runs: 2\n")
    finish(tmp_path / "results", expansion.cells[-1])
    told = planned(tmp_path, expansion).to_json()
    assert (told["total"], told["cached"]) == (4, 0)
    assert [run["cached"] for run in told["ranking_runs"]] == [False, True]


def test_only_the_chosen_cells_are_planned(tmp_path: Path) -> None:
    made = planned(tmp_path, expanded(tmp_path, only=("method=steep",)))
    assert {p.cell.method.name for p in made.cells} == {"steep"}
    assert made.to_json()["total"] == 2


def test_a_setting_that_changed_is_named(tmp_path: Path) -> None:
    for slope in ("0.1", "0.5"):
        changed = expanded(tmp_path, sets=(f"steep.slope={slope}", "steep.rounds=3"))
        finish(tmp_path / "results", changed.cells[2])
    finish(tmp_path / "results", expanded(tmp_path, sets=("steep.slope=0.1",)).cells[2])
    made = planned(tmp_path, expanded(tmp_path))
    assert made.cells[2].why == "another one is done: settings.slope 0.1 -> 2.0"
    assert made.cells[3].why == "not run yet"


def test_what_came_of_an_earlier_try_is_said(tmp_path: Path) -> None:
    expansion = expanded(tmp_path)
    failed, torn, edited, stopped = (
        finish(tmp_path / "results", cell) for cell in expansion.cells[:4]
    )
    for folder in (failed, stopped):
        (folder / "record.json").unlink()
    Failure(kind="oom", message="no room").save(failed / "failure.json")
    (stopped / "checkpoint.pt").write_bytes(b"half")
    (torn / "record.json").write_text('{"cell": ')
    text = (edited / "record.json").read_text()
    (edited / "record.json").write_text(text.replace('"overall": 50.0', '"overall": 90.0'))
    made = planned(tmp_path, expansion)
    assert [p.cached for p in made.cells] == [False] * 4
    assert made.cells[0].why == "failed: oom: no room"
    assert "record.json" in made.cells[1].why
    assert "edited" in made.cells[2].why
    assert made.cells[3].why == "was stopped; goes on from its checkpoint"


def test_without_a_fingerprint_nothing_is_said_of_the_cache(tmp_path: Path) -> None:
    document = parse(TOY_MATRIX, "m.yaml")
    (tmp_path / "base.yaml").write_text(TOY_RECIPE)
    unknown = expand(document, tmp_path, toy_plugins(tmp_path), lambda *_: None)
    made = planned(tmp_path, unknown)
    assert {p.cached for p in made.cells} == {None}
    assert "not read yet" in made.cells[0].why
    assert made.to_json()["cached"] == 0


def test_work_follows_from_the_recipe(tmp_path: Path) -> None:
    first = planned(tmp_path, expanded(tmp_path)).cells[0]
    assert (first.steps, first.images) == (4 * 4, 4 * 400)
    recipe = TOY_RECIPE.replace("name: toy}", "name: toy, fraction: 0.25, validation: 0.2}")
    small = planned(tmp_path, expanded(tmp_path, recipe=recipe)).cells[0]
    assert (small.steps, small.images) == (4 * 1, 4 * 80)


@pytest.mark.parametrize(
    ("images", "batch_size", "steps"),
    [(100, 10, 10), (101, 10, 10), (102, 10, 11), (1, 10, 1), (9, 10, 1), (11, 10, 1)],
)
def test_a_last_batch_of_one_is_merged(images: int, batch_size: int, steps: int) -> None:
    assert steps_of_pass(images, batch_size) == steps


def test_steps_are_those_of_the_trainer() -> None:
    for images in range(1, 40):
        for batch_size in range(1, 12):
            expected = len(list(spans(0, images, batch_size)))
            assert steps_of_pass(images, batch_size) == expected, (images, batch_size)
