"""Mean and spread over seeds, rows and groups."""

import math

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard.aggregate import cost_ratio, group, summarise
from classfair_leaderboard.load import load
from classfair_leaderboard.reporting import report
from classfair_registry.records import Cost, Failure
from classfair_registry.tables import Entry

LABEL = np.repeat(np.arange(3), 4)
SOME = made.exactly(LABEL, [1, 0.5, 0.25])


def groups_of(results, cells):
    return group(results, cells, load(results)[0])


@pytest.mark.parametrize(
    ("values", "mean", "std"),
    [
        ([3.0], 3.0, None),
        ([1.0, 2.0], 1.5, math.sqrt(0.5)),
        ([1.0, 2.0, 4.0], 7 / 3, math.sqrt(((4 / 3) ** 2 + (1 / 3) ** 2 + (5 / 3) ** 2) / 2)),
        ([5.0, 5.0, 5.0], 5.0, 0.0),
    ],
)
def test_spread_is_the_sample_standard_deviation(values, mean, std) -> None:
    entry = summarise(values)
    assert entry.n == len(values)
    assert entry.mean == pytest.approx(mean)
    assert entry.std == (None if std is None else pytest.approx(std))


@pytest.mark.parametrize("undefined", [None, math.nan, math.inf])
def test_a_value_that_is_not_defined_leaves_no_mean(undefined) -> None:
    assert summarise([1.0, undefined, 3.0]) == Entry(None, None, 2)
    assert summarise([undefined]) == Entry(None, None, 0)
    assert summarise([]) == Entry(None, None, 0)


def test_a_missing_run_leaves_no_mean_whatever_the_others_say(tmp_path) -> None:
    cells = [made.cell("erm", seed) for seed in range(3)]
    for cell in cells[:2]:
        made.write(tmp_path, cell, SOME)
    (row,) = groups_of(tmp_path, cells)[0].rows
    assert row.missing == {2: "not run"}
    assert row.summary([1.0, 2.0]) == Entry(None, None, 2)


def test_rows_are_erm_first_and_else_in_the_order_of_the_matrix(tmp_path) -> None:
    cells = [made.cell(name) for name in ("sam", "mr2", "erm", "dro")]
    rows = groups_of(tmp_path, cells)[0].rows
    assert [row.cell.method.name for row in rows] == ["erm", "sam", "mr2", "dro"]


def test_other_settings_or_revisions_are_other_rows(tmp_path) -> None:
    cells = [
        made.cell("mr2", 0),
        made.cell("mr2", 0, method=made.method("mr2", settings={"p": 3.0})),
        made.cell("mr2", 0, method=made.method("mr2", revision=2)),
        made.cell("mr2", 1),
    ]
    rows = groups_of(tmp_path, cells)[0].rows
    assert [len(row.cells) for row in rows] == [2, 1, 1]


def test_recipes_and_tracks_have_tables_of_their_own(tmp_path) -> None:
    cells = [made.cell(recipe="a"), made.cell(recipe="b"), made.cell(recipe="a", track="tuned")]
    found = groups_of(tmp_path, cells)
    assert [(g.cell.recipe_name, g.cell.track) for g in found] == [
        ("a", "default"),
        ("b", "default"),
        ("a", "tuned"),
    ]


def test_ranking_runs_stand_in_no_row(tmp_path) -> None:
    ranking = [made.cell("erm", seed, ranking_run=True) for seed in (10_000, 10_001)]
    made.write(tmp_path, ranking[0], SOME)
    (found,) = groups_of(tmp_path, [made.cell("erm", 0), *ranking])
    assert [cell.seed for row in found.rows for cell in row.cells] == [0]
    assert [run.seed for run in found.ranking_runs] == [10_000]
    assert found.ranking_cells == 2


def test_ranking_runs_of_another_recipe_do_not_rank(tmp_path) -> None:
    made.write(tmp_path, made.cell("erm", 10_000, recipe="b", ranking_run=True), SOME)
    (found,) = groups_of(tmp_path, [made.cell("erm", 0, recipe="a")])
    assert found.ranking_runs == ()


def test_a_run_under_another_label_still_counts(tmp_path) -> None:
    """The label is not part of the key; the matrix's own one is shown."""
    made.write(tmp_path, made.cell("mr2"), SOME)
    wanted = made.cell("mr2", method=made.method("mr2", label="Ours", title="Ours"))
    (row,) = groups_of(tmp_path, [wanted])[0].rows
    assert (row.cell.method.label, len(row.runs)) == ("Ours", 1)


def test_reasons_of_missing_runs(tmp_path) -> None:
    cells = [made.cell("mr2", seed) for seed in range(4)]
    for cell in cells[:3]:
        (tmp_path / cell.folder).mkdir()
        cell.save(tmp_path / cell.folder / "cell.json")
    Failure(kind="oom", message="too big").save(tmp_path / cells[0].folder / "failure.json")
    (tmp_path / cells[1].folder / "record.json").write_text("{")
    (row,) = groups_of(tmp_path, cells)[0].rows
    assert row.missing == {
        0: "failed, oom: too big",
        1: "with a record that cannot be used",
        2: "not finished",
        3: "not run",
    }


def test_cost_counts_a_backward_pass_twice(tmp_path) -> None:
    """ERM: (300 + 2 x 300) / 3 = 300. SAM: (600 + 2 x 450) / 3 = 500."""
    cost = Cost(images_forward=600, images_backward=450, steps=3, seconds={}, peak_memory=1)
    cells = [made.cell("erm"), made.cell("sam")]
    made.write(tmp_path, cells[0], SOME)
    made.write(tmp_path, cells[1], SOME, cost=cost)
    (found,) = groups_of(tmp_path, cells)
    assert cost_ratio(found.rows[0], found.baseline) == 1
    assert cost_ratio(found.rows[1], found.baseline) == pytest.approx(5 / 3)
    assert cost_ratio(found.rows[1], None) is None


def test_what_a_run_found_out_about_its_method_is_said_under_the_table(tmp_path, plugins):
    """A plan cannot know it; so the matrix does not hold it and the record does."""
    made.write(tmp_path, made.cell("erm"), made.exactly([0, 1, 2] * 4, [1, 1, 0.5]))
    found = made.cell("eql", method=made.method("eql", reduces_to="erm"))
    made.write(tmp_path, found, made.exactly([0, 1, 2] * 4, [1, 1, 0.5]))
    made.expect(tmp_path, [made.cell("erm"), made.cell("eql")])
    assert "EQL: identical to ERM here." in report(tmp_path, plugins, "quick").tables[0].footnotes
