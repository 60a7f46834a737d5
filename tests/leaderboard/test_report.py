"""From a results folder to tables and files."""

import csv
import dataclasses
import io
import subprocess
import sys

import made_records as made
import numpy as np
import pytest
from rich.console import Console

from classfair_leaderboard import RANKINGS, Report, render_terminal, report, write
from classfair_leaderboard.load import load
from classfair_leaderboard.ranking import freeze, from_runs
from classfair_plugins.metrics import accuracy as accuracy_metrics
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.manager import Plugins
from classfair_registry.records import Skipped
from classfair_registry.tables import Column, Entry, Table

LABEL = np.repeat(np.arange(4), 10)
"""Four classes are cut into thirds of 2, 1, 1."""
ERM = [[0.9, 0.8, 0.6, 0.1], [0.9, 0.8, 0.5, 0.2], [0.9, 0.8, 0.4, 0.3]]
MR2 = [[0.9, 0.6, 0.5, 0.6], [0.9, 0.6, 0.5, 0.4], [0.9, 0.6, 0.5, 0.2]]


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    found = Plugins()
    found.add_built_in()
    return found


def fill(results, **methods) -> list:
    """Write the runs of methods with these class accuracies, one a seed; return their cells."""
    cells = []
    for name, accuracies in methods.items():
        for seed, accuracy in enumerate(accuracies):
            cells.append(made.cell(name, seed))
            made.write(results, cells[-1], made.exactly(LABEL, accuracy))
    return cells


def add_ranking_runs(results, accuracies) -> list:
    cells = [made.cell("erm", 10_000 + n, ranking_run=True) for n in range(len(accuracies))]
    for cell, accuracy in zip(cells, accuracies, strict=True):
        made.write(results, cell, made.exactly(LABEL, accuracy))
    return cells


def rows_of(table: Table) -> dict[str, dict[str, Entry]]:
    return {str(row["method"].text): dict(row) for row in table.rows}


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


@pytest.mark.parametrize("ranking", [None, *RANKINGS])
def test_adding_a_row_changes_no_other_row_by_a_byte(tmp_path, plugins, ranking) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    add_ranking_runs(tmp_path, ERM)
    before = files_of(report(tmp_path, plugins, ranking=ranking), tmp_path / "out", plugins)
    fill(tmp_path, sam=[[0.7, 0.7, 0.9, 0.3]] * 2)
    again = {"metrics": {"brand_new": 1.0}, "dataset": {"headline": "overall"}}
    made.write(tmp_path, made.cell("sam", 2), made.exactly(LABEL, [1, 1, 1, 1]), **again)
    after = files_of(report(tmp_path, plugins, ranking=ranking), tmp_path / "out", plugins)
    assert len(set(after["csv"]) - set(before["csv"])) == 1
    assert set(before["csv"]) <= set(after["csv"])
    assert set(before["md"]) <= set(after["md"])


def files_of(told: Report, out, plugins) -> dict[str, list[str]]:
    paths = write(told, out, plugins)
    return {path.suffix[1:]: path.read_text().splitlines() for path in paths}


def test_a_row_is_the_same_without_erm_but_for_its_cost(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2)
    (before,) = report(tmp_path, plugins).tables[0].rows
    fill(tmp_path, erm=ERM)
    after = rows_of(report(tmp_path, plugins).tables[0])["MR2"]
    assert (before["cost"].mean, after["cost"].mean) == (None, 1.0)
    assert {**before, "cost": after["cost"]} == after


def test_the_headline_is_the_data_sets_and_both_are_in_the_csv(tmp_path, plugins) -> None:
    dataset = {"headline": "mean_class", "title": "Pets"}
    uneven = np.repeat(np.arange(2), [9, 1])
    made.write(tmp_path, made.cell(), made.exactly(uneven, [1, 0]), dataset=dataset)
    told = report(tmp_path, plugins)
    assert [c.key for c in told.tables[0].reading][1] == "mean_class"
    write(told, tmp_path / "out", plugins)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "leaderboard.csv").read_text()))
    assert (row["overall_mean"], row["mean_class_mean"]) == ("90.0", "50.0")
    assert "Pets: 10 test images, 1 of the smallest class." in told.tables[0].caption


def test_csv_reads_back_exactly(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2)
    told = report(tmp_path, plugins)
    write(told, tmp_path / "out", plugins)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "leaderboard.csv").read_text()))
    for column in told.tables[0].data:
        entry = told.tables[0].rows[0][column.key]
        if not column.text and entry.mean is not None:
            assert float(row[f"{column.key}_mean"]) == entry.mean


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


def test_names_tell_apart_what_titles_do_not(tmp_path, plugins) -> None:
    """The defaults of a method that ships are known; a label is the user's own word."""
    card = plugins.card("methods", "mr2")
    setting = next(s for s in card.settings if s.type == "float" and not s.choices)
    default = {s.name: s.default for s in card.settings}
    plain = made.method("mr2", title="MR2", settings=default, revision=card.values["revision"])
    changed = {**default, setting.name: 0.125}
    methods = [
        plain,
        plain.model_copy(update={"settings": changed}),
        plain.model_copy(update={"settings": changed | {"x": 1}, "label": "mine", "title": "mine"}),
        plain.model_copy(update={"revision": 99}),
    ]
    for method in methods:
        made.write(tmp_path, made.cell("mr2", method=method), made.exactly(LABEL, MR2[0]))
    names = set(rows_of(report(tmp_path, plugins).tables[0]))
    assert names == {"MR2", f"MR2 ({setting.name} 0.125)", "mine", "MR2 (revision 99)"}


def test_footnotes_say_what_a_number_alone_does_not(tmp_path, plugins) -> None:
    methods = [
        made.method("erm"),
        made.method("ldam", reduces_to="erm"),
        made.method("jtt", budget="its second phase takes 5 passes more"),
        made.method("odd", label="same"),
        made.method("even", label="same"),
    ]
    machine = {"device_name": "H200", "packages": {"torch": "2.13.0"}}
    for method in methods:
        given = {"machine": machine} if method.name == "jtt" else {}
        cell = made.cell(method.name, method=method)
        made.write(tmp_path, cell, made.exactly(LABEL, MR2[0]), **given)
    cells = [run.record.cell for run in load(tmp_path)[0]]
    skip = [Skipped(method="supcon", recipe="made", seed=s, why="no encoder") for s in (0, 1)]
    other = Skipped(method="supcon", recipe="another", seed=0, why="no encoder")
    made.expect(tmp_path, cells, skipped=[*skip, other])
    notes = report(tmp_path, plugins, "quick").tables[0].footnotes
    assert "LDAM: identical to ERM here." in notes
    assert "JTT: its second phase takes 5 passes more." in notes
    assert "supcon: seeds 0, 1 left out: no encoder." in notes
    assert "2 rows are called same: they differ in settings, revision or code." in notes
    assert "Runs on different devices: H200 (1), a CPU (4)." in notes
    assert "Runs on different versions of torch: 2.13.0 (1), 2.14.1 (4)." in notes
    assert len(notes) == 6


def test_ranking_runs_that_are_still_missing_are_said(tmp_path, plugins) -> None:
    cells = fill(tmp_path, erm=ERM)
    ranking = add_ranking_runs(tmp_path, ERM[:2])
    made.expect(tmp_path, [*cells, *ranking, made.cell("erm", 10_002, ranking_run=True)])
    (table,) = report(tmp_path, plugins).tables
    assert "2 of 3 ranking runs are there: the ranking is not final." in table.footnotes


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({}, "Seeds differ in initial weights and order of the images, not in"),
        ({"augmentation": {"name": "crop_flip"}}, "initial weights, order of the images and augm"),
        ({"backbone": {"name": "x", "weights": "y"}}, "Seeds differ in the head's initial weights"),
    ],
)
def test_the_caption_says_what_varies_between_seeds(tmp_path, plugins, recipe, said) -> None:
    cell = made.cell("erm", recipe="made")
    changed = cell.model_copy(update={"recipe": {**cell.recipe, **recipe}})
    made.write(tmp_path, changed, made.exactly(LABEL, ERM[0]))
    assert said in report(tmp_path, plugins).tables[0].caption


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


def test_files_are_written_whole_or_not_at_all(tmp_path, plugins, monkeypatch) -> None:
    fill(tmp_path, erm=ERM)
    told = report(tmp_path, plugins)
    out = tmp_path / "deep" / "out"
    paths = write(told, out, plugins)
    assert [path.name for path in paths] == ["leaderboard.md", "leaderboard.csv"]
    before = {path: path.read_bytes() for path in paths}
    broken = dataclasses.replace(told.tables[0], rows=({"hard": "not an entry"},))
    with pytest.raises(AttributeError):
        write(Report((broken,), ()), out, plugins)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_where_nothing_can_be_written_is_a_mistake_of_the_user(tmp_path, plugins) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        write(Report((), ()), tmp_path / "file", plugins)
    with pytest.raises(UsageError, match="no reporter 'latexx'"):
        write(Report((), ()), tmp_path / "out", plugins, ["latexx"])


def printed(tables, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(render_terminal(tables))
    return console.file.getvalue().splitlines()


def test_the_terminal_shows_mean_and_deviation_on_one_line_of_a_hundred(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    lines = printed(report(tmp_path, plugins).tables, 100)
    assert max(map(len, lines)) <= 100
    assert lines[0].strip() == "made"
    heading = "method overall ↑ easy ↑ medium ↑ hard ↑ gap ↓ worst ↑ n cost ↓"
    assert " ".join(lines[1].split()) == heading
    erm = "ERM 60.0 ± 0.0 85.0 ± 0.0 50.0 ± 10.0 20.0 ± 10.0 65.0 ± 10.0 20.0 ± 10.0 3 1.00"
    assert " ".join(lines[3].split()) == erm


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_narrower_terminal_cuts_no_number(tmp_path, plugins, width) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    lines = printed(report(tmp_path, plugins).tables, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)
    text = " ".join(" ".join(lines).split())
    assert "ERM 60.0 85.0" in text
    assert "± 0.0 ± 0.0" in text
    assert ("Left out for want of width" in text) == (width < 70)


def test_the_terminal_shows_names_as_they_are_written(tmp_path, plugins) -> None:
    table = Table(
        "t",
        "[bold]t[/]",
        (Column("method", "method", text=True),),
        ({"method": Entry(text="[red]odd[/] :smile:")},),
    )
    text = "\n".join(printed([table], 80))
    assert "[bold]t[/]" in text
    assert "[red]odd[/] :smile:" in text


def test_the_leaderboard_imports_without_torch() -> None:
    code = "import sys, classfair_leaderboard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
