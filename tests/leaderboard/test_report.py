"""From a results folder to tables."""

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill, rows_of

from classfair_leaderboard import Report, report, write
from classfair_leaderboard.load import load
from classfair_leaderboard.ranking import freeze, from_runs
from classfair_plugins.metrics import accuracy as accuracy_metrics
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.manager import Plugins
from classfair_registry.tables import Entry


def test_golden_table_under_the_own_ranking(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2, erm=ERM)
    (table,) = report(tmp_path, plugins).tables
    rows = rows_of(table)
    assert list(rows) == ["ERM", "MR2"]
    shown = [column.key for column in table.reading]
    assert shown == (
        ["method", "overall", "easy", "medium", "hard", "gap", "worst", "seeds", "cost"]
    )
    erm = rows["ERM"]
    # Hard: 10, 20, 30; medium: 60, 50, 40; easy: 85 each; gap: 75, 65, 55.
    assert erm["hard"] == Entry(pytest.approx(20), pytest.approx(10), 3)
    assert erm["medium"] == Entry(pytest.approx(50), pytest.approx(10), 3)
    assert erm["easy"] == Entry(pytest.approx(85), pytest.approx(0), 3)
    assert erm["gap"] == Entry(pytest.approx(65), pytest.approx(10), 3)
    assert erm["worst"] == Entry(pytest.approx(20), pytest.approx(10), 3)
    assert erm["overall"] == Entry(pytest.approx(60), pytest.approx(0), 3)
    assert erm["seeds"].text == "3"
    assert erm["cost"] == Entry(1.0, None, 1)
    # Own ranks: (.9 .6|.6|.5), two tied at .6; (.9 .6|.5|.4); (.9 .6|.5|.2).
    mr2 = rows["MR2"]
    assert mr2["easy"] == Entry(pytest.approx(75), pytest.approx(0), 3)
    assert mr2["medium"].mean == pytest.approx((60 + 50 + 50) / 3)
    assert mr2["hard"].mean == pytest.approx((50 + 40 + 20) / 3)
    assert mr2["overall"].mean == pytest.approx(60)
    assert mr2["overall"].std == pytest.approx(5)


def test_golden_table_under_the_reference_ranking(tmp_path, plugins) -> None:
    """The dedicated runs say that class 0 is hard and class 3 is medium, whatever the rows say."""
    fill(tmp_path, erm=ERM, mr2=MR2)
    add_ranking_runs(tmp_path, [[0.1, 0.9, 0.8, 0.3], [0.3, 0.9, 0.8, 0.5]])
    (table,) = report(tmp_path, plugins).tables
    rows = rows_of(table)
    assert rows["ERM"]["easy"].mean == pytest.approx((80 + 50) / 2)
    assert rows["ERM"]["medium"].mean == pytest.approx(20)
    assert rows["ERM"]["hard"].mean == pytest.approx(90)
    assert rows["MR2"]["medium"] == Entry(pytest.approx(40), pytest.approx(20), 3)
    assert rows["MR2"]["gap"].mean == pytest.approx(55 - 90)
    assert rows["MR2"]["ranking"].text == "reference"
    runs = [run for run in load(tmp_path)[0] if run.record.cell.ranking_run]
    quoted = from_runs(runs).hash
    assert f"mean over 2 dedicated ERM runs ({quoted})" in table.caption
    assert rows["MR2"]["ranking_hash"].text == quoted


def test_a_frozen_ranking_comes_before_dedicated_runs_and_they_before_local_ones(
    tmp_path, plugins
) -> None:
    results, frozen = tmp_path / "results", tmp_path / "frozen"
    frozen.mkdir()
    fill(results, erm=ERM, mr2=MR2)
    local = report(results, plugins, ranking="reference", frozen=frozen).tables[0]
    assert "local ERM runs of other seeds" in local.caption
    assert any(note.startswith("No dedicated ranking runs") for note in local.footnotes)
    add_ranking_runs(results, [[0.1, 0.9, 0.8, 0.3]])
    dedicated = report(results, plugins, frozen=frozen).tables[0]
    assert rows_of(dedicated)["MR2"]["hard"].mean == pytest.approx(90)
    other = tmp_path / "elsewhere"
    add_ranking_runs(other, [[0.8, 0.1, 0.9, 0.3]])
    freeze(from_runs(load(other)[0]), frozen)
    table = report(results, plugins, frozen=frozen).tables[0]
    assert rows_of(table)["MR2"]["hard"].mean == pytest.approx(60)


def test_local_runs_rank_the_seeds_that_they_are_not(tmp_path, plugins) -> None:
    """Two seeds of ERM: seed 0 is ranked by seed 1, where class 3 is easiest; and the reverse."""
    fill(tmp_path, erm=[[0.9, 0.8, 0.7, 0.1], [0.1, 0.7, 0.8, 0.9]])
    (table,) = report(tmp_path, plugins, ranking="reference").tables
    assert rows_of(table)["ERM"]["hard"] == Entry(pytest.approx(90), pytest.approx(0), 2)


def test_local_runs_are_no_default(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    (table,) = report(tmp_path, plugins).tables
    assert rows_of(table)["ERM"]["ranking"].text == "own"
    assert "makes hard lower" in table.caption


def test_a_reference_that_is_not_there_leaves_thirds_blank_and_says_so(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2)
    (table,) = report(tmp_path, plugins, ranking="reference").tables
    row = rows_of(table)["MR2"]
    assert all(row[key].mean is None for key in ("easy", "medium", "hard", "gap"))
    assert row["overall"].mean is not None
    assert "not available" in table.caption


def test_crossfit_rankings_are_said_in_the_caption(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM)
    add_ranking_runs(tmp_path, ERM)
    for name in ("own_crossfit", "reference_crossfit"):
        (table,) = report(tmp_path, plugins, ranking=name).tables
        assert f"Ranking {name}" in table.caption
        assert "10 fixed splits" in table.caption
        assert rows_of(table)["ERM"]["hard"].mean is not None


def test_every_ranked_number_of_the_own_table_is_the_recorded_one(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2[:1])
    (run,), _ = load(tmp_path)
    (row,) = report(tmp_path, plugins, ranking="own").tables[0].rows
    for name, value in run.record.metrics.items():
        assert row[name].mean == value, name


def test_an_incomplete_row_is_blank_with_n_of_expected_and_the_reason(tmp_path, plugins) -> None:
    cells = fill(tmp_path, erm=ERM, mr2=MR2[:2])
    made.expect(tmp_path, [*cells, made.cell("mr2", 2)])
    (table,) = report(tmp_path, plugins).tables
    row = rows_of(table)["MR2"]
    numbers = [row[c.key] for c in table.columns if not c.text]
    assert all(entry.mean is None and entry.std is None for entry in numbers)
    assert [row[key].text for key in ("seeds", "n", "expected")] == ["2/3", "2", "3"]
    assert "MR2: 2 of 3 seeds, so no mean: seed 2 not run." in table.footnotes
    assert rows_of(table)["ERM"]["hard"].mean == pytest.approx(20)


def test_one_seed_has_no_deviation(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2[:1])
    (row,) = report(tmp_path, plugins).tables[0].rows
    assert row["hard"] == Entry(50.0, None, 1)


def test_an_undefined_metric_is_in_no_mean(tmp_path, plugins) -> None:
    """No validation split, so no temperature: undefined is empty, not NaN and not zero."""
    fill(tmp_path, mr2=MR2)
    told = report(tmp_path, plugins)
    assert told.tables[0].rows[0]["ece_scaled"] == Entry(None, None, 0)
    write(told, tmp_path / "out", plugins)
    assert "nan" not in (tmp_path / "out" / "leaderboard.csv").read_text().lower()


def test_a_row_is_the_same_without_erm_but_for_its_cost(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2)
    before = rows_of(report(tmp_path, plugins).tables[0])["MR2"]
    fill(tmp_path, erm=ERM)
    after = rows_of(report(tmp_path, plugins).tables[0])["MR2"]
    assert (before["cost"].mean, after["cost"].mean) == (None, 1.0)
    assert {**before, "cost": after["cost"]} == after


def test_only_the_cells_of_a_named_matrix_are_shown(tmp_path, plugins) -> None:
    cells = fill(tmp_path, erm=ERM, mr2=MR2)
    made.expect(tmp_path, cells[:2], "small", "Shows the machinery, not the methods.")
    made.expect(tmp_path, cells, "large")
    (table,) = report(tmp_path, plugins, "small").tables
    assert list(rows_of(table)) == ["ERM"]
    assert rows_of(table)["ERM"]["seeds"].text == "2"
    assert table.caption.startswith("Shows the machinery, not the methods. Made images.")
    assert rows_of(report(tmp_path, plugins, "large").tables[0])["ERM"]["seeds"].text == "3"


def test_without_a_matrix_everything_is_shown_once(tmp_path, plugins) -> None:
    cells = fill(tmp_path, mr2=MR2, erm=ERM, sam=MR2)
    made.expect(tmp_path, cells[:6], "a")
    made.expect(tmp_path, cells[3:6], "b")
    rows = rows_of(report(tmp_path, plugins).tables[0])
    assert {name: row["seeds"].text for name, row in rows.items()} == (
        {"ERM": "3", "MR2": "3", "SAM": "3"}
    )


def test_unknown_names_are_mistakes_with_near_names(tmp_path, plugins) -> None:
    made.expect(tmp_path, fill(tmp_path, erm=ERM), "quickstart")
    with pytest.raises(UsageError, match="no matrix 'quickstrat'; did you mean quickstart"):
        report(tmp_path, plugins, "quickstrat")
    with pytest.raises(UsageError, match="no ranking 'refrence'; did you mean reference"):
        report(tmp_path, plugins, ranking="refrence")
    with pytest.raises(UsageError, match="no metric 'hrad'; did you mean"):
        report(tmp_path, plugins, metrics=["hrad"])
    with pytest.raises(UsageError, match="no results folder"):
        report(tmp_path / "nowhere", plugins)


def test_a_torn_matrix_is_fatal_only_if_it_is_asked_for(tmp_path, plugins) -> None:
    made.expect(tmp_path, fill(tmp_path, erm=ERM), "torn")
    path = tmp_path / "matrices" / "torn.json"
    path.write_text(path.read_text()[:-9])
    with pytest.raises(ClassfairError, match=r"torn\.json"):
        report(tmp_path, plugins, "torn")
    told = report(tmp_path, plugins)
    assert len(told.tables) == 1
    assert any("torn.json" in text for text in told.complaints)


def test_an_empty_results_folder_has_no_tables(tmp_path, plugins) -> None:
    assert report(tmp_path, plugins) == Report((), ())


def test_a_matrix_that_has_not_started_is_all_blank(tmp_path, plugins) -> None:
    made.expect(tmp_path, [made.cell("erm", seed) for seed in (0, 1)])
    (table,) = report(tmp_path, plugins).tables
    assert rows_of(table)["ERM"]["seeds"].text == "0/2"
    assert "ERM: 0 of 2 seeds, so no mean: seeds 0, 1 not run." in table.footnotes


def test_other_metrics_come_from_predictions_under_the_chosen_ranking(tmp_path, plugins) -> None:
    """Output margin 0.7 where right, -0.4 where wrong; class 0 is hard and 90 % right."""
    fill(tmp_path, erm=ERM)
    add_ranking_runs(tmp_path, [[0.1, 0.9, 0.8, 0.3]])
    told = report(tmp_path, plugins, metrics=["margin_hard", "harmonic"])
    row = rows_of(told.tables[0])["ERM"]
    assert row["margin_hard"].mean == pytest.approx(0.9 * 0.7 - 0.1 * 0.4)
    assert row["harmonic"].n == 3
    assert "margin_hard" in [column.key for column in told.tables[0].reading]
    # What nobody asked for is not shown under a ranking that it was not recorded with.
    assert row["margin_easy"].mean is None


def test_a_metric_that_old_records_lack_is_computed_for_them(tmp_path, plugins) -> None:
    predictions = made.exactly(LABEL, ERM[0])
    made.write(tmp_path, made.cell("erm", 0), predictions)
    old = dict.fromkeys(("overall", "mean_class", "worst"), 1.0)
    made.write(tmp_path, made.cell("erm", 1), predictions, metrics=old)
    (row,) = report(tmp_path, plugins).tables[0].rows
    harmonic = {s.name: s for s in accuracy_metrics.classfair_metrics()}["harmonic"]
    assert row["harmonic"].mean == pytest.approx(harmonic.compute(predictions))
    assert row["harmonic"].n == 2


def test_a_metric_plugin_that_fails_is_named_and_blank(tmp_path) -> None:
    source = """
from classfair_registry import hookimpl
from classfair_registry.specs import MetricSpec

def fails(predictions):
    raise ValueError("no such thing")

@hookimpl
def classfair_metrics():
    yield MetricSpec("fails", "fails", fails, "higher", "%", "Fails.")
    yield MetricSpec("each", "each", lambda p: p.class_accuracy, "higher", "%", "One a class.")
"""
    (tmp_path / "plugin.py").write_text(source)
    plugins = Plugins()
    plugins.add_built_in()
    plugins.add_file(tmp_path / "plugin.py")
    fill(tmp_path / "results", erm=ERM[:1])
    told = report(tmp_path / "results", plugins)
    (row,) = told.tables[0].rows
    assert row["fails"].mean is row["each"].mean is None
    assert row["hard"].mean == pytest.approx(10)
    (complaint,) = told.complaints
    assert "metric fails: ValueError: no such thing" in complaint


def test_tables_of_recipes_and_tracks_are_apart(tmp_path, plugins) -> None:
    for given in ({"recipe": "a"}, {"recipe": "b"}, {"recipe": "a", "track": "tuned"}):
        made.write(tmp_path, made.cell("erm", **given), made.exactly(LABEL, ERM[0]))
    tables = report(tmp_path, plugins).tables
    assert sorted(table.title for table in tables) == ["a", "a (tuned)", "b"]
    assert len({table.name for table in tables}) == 3


def test_runs_on_other_test_images_are_left_out_of_a_crossfit_table(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM[:1])
    odd = np.repeat(np.arange(4), [10, 10, 11, 9])
    made.write(tmp_path, made.cell("mr2"), made.exactly(odd, MR2[0]))
    told = report(tmp_path, plugins, ranking="own_crossfit")
    assert rows_of(told.tables[0])["MR2"]["hard"].mean is None
    assert rows_of(told.tables[0])["ERM"]["hard"].mean is not None
    (complaint,) = told.complaints
    assert "mr2--made--s0" in complaint
    assert "test labels differ" in complaint
