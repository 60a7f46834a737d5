"""Comparing the methods of a results folder."""

import csv
import io
import json

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard import groups, render_terminal
from classfair_leaderboard.aggregate import Group
from classfair_leaderboard.answers import read_answers
from classfair_leaderboard.compare import Comparison, compare, holm
from classfair_leaderboard.compare_table import p_text, to_table
from classfair_leaderboard.evidence import Evidence, common_seeds
from classfair_leaderboard.groups import GROUPS, RANKINGS, Splits
from classfair_leaderboard.load import load
from classfair_leaderboard.reporting import find_reference, read
from classfair_plugins.reporters import csv_table
from classfair_registry.errors import UsageError
from classfair_registry.predictions import Predictions, save_arrays

CLASSES, IMAGES, SEEDS = 7, 40, 3
LABEL = np.random.default_rng(9).permutation(np.repeat(np.arange(CLASSES), IMAGES))
SHARE = np.linspace(0.8, 0.3, CLASSES)


def answered(rng: np.random.Generator, better: float = 0.0) -> np.ndarray:
    return rng.random(LABEL.size) < (SHARE + better)[LABEL]


def fill(results, methods=("erm", "mr2", "sam"), ranking_runs: int = 3) -> None:
    rng = np.random.default_rng(1)
    for name in methods:
        for seed in range(SEEDS):
            right = answered(rng, 0.15 if name == "mr2" else 0)
            made.write(results, made.cell(name, seed), made.predictions(LABEL, right))
    for seed in range(10_000, 10_000 + ranking_runs):
        cell = made.cell("erm", seed, ranking_run=True)
        made.write(results, cell, made.predictions(LABEL, answered(rng)))


def only(results, plugins, **given) -> Comparison:
    (told,), complaints = compare(results, plugins, **{"draws": 300} | given)
    assert complaints == ()
    return told


def group_of(results) -> Group:
    (group,) = read(results).groups
    return group


@pytest.mark.parametrize("ranking", RANKINGS)
@pytest.mark.parametrize("ranking_runs", [0, 3], ids=["local", "dedicated"])
def test_every_value_is_that_of_the_leaderboard(tmp_path, ranking, ranking_runs) -> None:
    """Ranked by dedicated runs, and by local ERM runs, whose weights differ from seed to seed."""
    fill(tmp_path, ranking_runs=ranking_runs)
    group = group_of(tmp_path)
    reference = find_reference(group, {})
    evidence = Evidence(group, common_seeds(group.rows), reference)
    splits = Splits(group.cell.fingerprint)
    for m, row in enumerate(group.rows):
        for s, run in enumerate(row.runs):
            expected = groups.measure(run, ranking, reference, splits)
            found = [evidence.measure(name, ranking).values[m, s] for name in GROUPS]
            assert found == pytest.approx(expected)
            for name in ("overall", "mean_class", "worst", "worst10", "class_std"):
                value = evidence.measure(name).values[m, s]
                assert value == pytest.approx(run.record.metrics[name]), name


def test_a_class_without_images_has_no_say(tmp_path) -> None:
    label = np.repeat([0, 1, 3, 4], 6)
    for name in ("erm", "mr2"):
        for seed in range(2):
            right = np.random.default_rng([seed, len(name)]).random(24) < 0.6
            made.write(tmp_path, made.cell(name, seed), made.predictions(label, right))
    group = group_of(tmp_path)
    reference = find_reference(group, {})
    evidence = Evidence(group, (0, 1), reference)
    splits = Splits(group.cell.fingerprint)
    for ranking in RANKINGS:
        expected = groups.measure(group.rows[1].runs[1], ranking, reference, splits)
        found = [evidence.measure(name, ranking).values[1, 1] for name in GROUPS]
        assert found == pytest.approx(expected)


def test_a_better_method_is_told_apart_and_an_equal_one_is_not(tmp_path, plugins) -> None:
    fill(tmp_path)
    told = only(tmp_path, plugins)
    assert (told.baseline, told.headline, told.seeds) == ("ERM", "overall", (0, 1, 2))
    assert told.ranking == "reference_crossfit"
    mr2, sam = told.rows
    overall = mr2.differences["overall"]
    assert overall.low > 0
    assert overall.p_holm < 0.05
    assert overall.signs == "+++"
    assert overall.mean == pytest.approx(np.mean(overall.by_seed))
    assert overall.low < overall.mean < overall.high
    assert mr2.no_trade_off is True
    assert sam.differences["overall"].low < 0 < sam.differences["overall"].high
    assert sam.no_trade_off is False
    kinds = {key: found.kind for key, found in sam.differences.items()}
    assert {key for key, kind in kinds.items() if kind == "bootstrap"} == (
        {"worst", "worst10", "class_std"}
    )
    assert {key for key, found in sam.differences.items() if found.primary} == (
        {"overall", "hard_primary"}
    )


def test_under_the_own_ranking_thirds_are_bootstrapped_and_hard_stays_primary(
    tmp_path, plugins
) -> None:
    fill(tmp_path)
    own = only(tmp_path, plugins, ranking="own")
    cross = only(tmp_path, plugins)
    for row, other in zip(own.rows, cross.rows, strict=True):
        assert row.differences["gap"].kind == row.differences["hard"].kind == "bootstrap"
        assert row.differences["hard_primary"] == other.differences["hard_primary"]
        assert row.differences["hard"].ranking == "own"


def test_the_bootstrap_is_close_to_t_where_both_apply(tmp_path, plugins) -> None:
    """The mean over classes of sorted accuracies is the mean over classes."""
    fill(tmp_path)
    group = group_of(tmp_path)
    evidence = Evidence(group, (0, 1, 2), None, draws=4000)
    by_t = evidence.differences(evidence.measure("mean_class"), 0)
    thirds = [evidence.measure(name) for name in ("easy", "medium", "hard")]
    drawn = sum(
        size * evidence._drawn[measure.statistic]
        for size, measure in zip((3, 2, 2), thirds, strict=True)
    )
    spread = (100 * (drawn - drawn[:, [0]]) / CLASSES).mean(2).std(0)
    single = 100 * np.sqrt(np.mean(SHARE * (1 - SHARE)) * 2 / LABEL.size / SEEDS)
    assert spread[1:] == pytest.approx(single, rel=0.35)
    assert by_t.seed_part[1] == pytest.approx(single, rel=0.7)


def test_a_method_that_is_the_baseline_differs_by_exactly_nothing(tmp_path, plugins) -> None:
    fill(tmp_path)
    for run in load(tmp_path)[0]:
        if run.record.cell.method.name == "erm" and not run.record.cell.ranking_run:
            made.write(tmp_path, made.cell("eql", run.seed), run.predictions())
    eql = next(row for row in only(tmp_path, plugins).rows if row.name == "EQL")
    for found in eql.differences.values():
        assert (found.mean, found.signs) == (0, "000")
        assert found.low == pytest.approx(0, abs=1e-9)
        assert found.high == pytest.approx(0, abs=1e-9)


def test_an_incomplete_row_is_blank_and_says_so(tmp_path, plugins) -> None:
    fill(tmp_path)
    cells = [run.record.cell for run in load(tmp_path)[0]]
    made.expect(tmp_path, [*cells, made.cell("sam", 3)])
    told = only(tmp_path, plugins)
    sam = next(row for row in told.rows if row.name == "SAM")
    assert sam.differences == {}
    assert "SAM: not compared: 3 of 4 seeds." in told.footnotes


def test_a_row_with_other_seeds_is_not_compared(tmp_path, plugins) -> None:
    fill(tmp_path)
    made.write(tmp_path, made.cell("dro", 7), made.predictions(LABEL, LABEL > 2))
    told = only(tmp_path, plugins)
    assert "DRO: not compared: not the baseline's seeds or test images." in told.footnotes


def test_one_seed_has_differences_but_no_interval(tmp_path, plugins) -> None:
    for name in ("erm", "mr2"):
        made.write(tmp_path, made.cell(name), made.predictions(LABEL, len(name) < LABEL))
    told = only(tmp_path, plugins)
    found = told.rows[0].differences["overall"]
    assert found.mean is not None
    assert found.low is found.p is found.correlation is None
    assert any("One seed" in note for note in told.footnotes)
    assert any("hard is no primary endpoint" in note for note in told.footnotes)


def test_any_row_can_be_the_baseline(tmp_path, plugins) -> None:
    fill(tmp_path)
    mine = only(tmp_path, plugins, baseline="mr2")
    assert mine.baseline == "MR2"
    by_name = {row.name: row for row in mine.rows}
    theirs = only(tmp_path, plugins).rows[0].differences["hard"]
    found = by_name["ERM"].differences["hard"]
    assert found.mean == pytest.approx(-theirs.mean)
    assert found.low == pytest.approx(-theirs.high)
    assert (found.correlation, found.signs) == (pytest.approx(theirs.correlation), "---")


def test_mistakes_are_said_with_near_names(tmp_path, plugins) -> None:
    fill(tmp_path)
    with pytest.raises(UsageError, match="--baseline: no row of 'mr3'; did you mean mr2"):
        compare(tmp_path, plugins, "mr3")
    with pytest.raises(UsageError, match="no ranking 'won'; did you mean own"):
        compare(tmp_path, plugins, ranking="won")
    assert compare(tmp_path, plugins, draws=50) == compare(tmp_path, plugins, draws=50)


def test_predictions_on_other_images_are_named_and_not_compared(tmp_path, plugins) -> None:
    fill(tmp_path)
    for seed in range(SEEDS):
        other = made.predictions(np.sort(LABEL), LABEL > 2)
        made.write(tmp_path, made.cell("dro", seed), other)
    (told,), complaints = compare(tmp_path, plugins, draws=50)
    assert "its test labels differ" in complaints[0]
    assert next(row for row in told.rows if row.name == "DRO").differences == {}


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.2]) == pytest.approx([0.04, 0.09, 0.09, 0.2])
    assert holm([0.5, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


def test_tables_for_reading_have_text_and_for_data_have_numbers(tmp_path, plugins) -> None:
    fill(tmp_path)
    told = only(tmp_path, plugins, ranking="own")
    table = to_table(told)
    assert " | ".join(column.title for column in table.reading) == (
        "method | Δ overall | p | Δ hard (reference_crossfit) | p | no trade-off | "
        "Δ easy | Δ medium | Δ hard | Δ gap | Δ worst | n"
    )
    mr2 = table.rows[0]
    found = told.rows[0].differences["overall"]
    shown = f"{found.mean:+.2f} [{found.low:+.2f}, {found.high:+.2f}] +++"
    assert mr2["d_overall"].text == shown
    (first, _) = csv.DictReader(io.StringIO(csv_table.render([table])))
    assert float(first["overall_low_mean"]) == found.low
    assert (
        float(first["hard_primary_p_holm_mean"]) == told.rows[0].differences["hard_primary"].p_holm
    )
    assert render_terminal([table])
    assert json.loads(json.dumps(told.to_json(), allow_nan=False))["rows"][0]["differences"][
        "overall"
    ]["signs"] == ("+++")


@pytest.mark.parametrize(("p", "text"), [(None, ""), (0.0001, "<0.001"), (0.04567, "0.046")])
def test_p_values_as_text(p, text) -> None:
    assert p_text(p) == text


# -- quick reading -------------------------------------------------------------------------------


def test_answers_read_by_layout_are_those_of_the_predictions(tmp_path) -> None:
    right = answered(np.random.default_rng(0))
    predictions = made.predictions(LABEL, right)
    predictions.save(tmp_path / "a.npz")
    answers = read_answers(tmp_path / "a.npz", CLASSES)
    assert np.array_equal(answers.label, LABEL)
    assert np.array_equal(answers.correct, right)
    assert answers.count.tolist() == [IMAGES] * CLASSES


def test_files_of_another_layout_are_read_with_all_checks(tmp_path) -> None:
    predictions = made.predictions(LABEL, answered(np.random.default_rng(0)))
    np.savez(tmp_path / "a.npz", **predictions.arrays())
    answers = read_answers(tmp_path / "a.npz", CLASSES)
    assert np.array_equal(answers.correct, predictions.correct)
    assert isinstance(Predictions.load(tmp_path / "a.npz"), Predictions)
    save_arrays(tmp_path / "b.npz", {"label": LABEL})
    with pytest.raises(Exception, match="not a predictions file"):
        read_answers(tmp_path / "b.npz", CLASSES)
