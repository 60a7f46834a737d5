"""The paper's printed numbers beside ours."""

import math

import made_records as made
import numpy as np
import pytest
from scipy import stats

from classfair_leaderboard.published import (
    Published,
    Verdict,
    beside,
    judge,
    load,
    matches,
    to_tables,
    value_of,
)
from classfair_leaderboard.reporting import read

LABEL = np.repeat(np.arange(4), 100)
CIFAR = {
    "name": "cifar100_resnet32",
    "data": {"name": "cifar100", "fraction": 1.0, "counts": None},
    "backbone": {"name": "resnet32"},
    "regime": "scratch",
    "epochs": 300,
    "augmentation": {"name": "crop_flip", "policy": "none"},
}


def runs(results, recipe=CIFAR, **accuracies: list[float]) -> None:
    """Write one run a seed with every class at this accuracy."""
    for name, values in accuracies.items():
        for seed, value in enumerate(values):
            cell = made.cell(name, seed, recipe="cifar100_resnet32")
            cell = cell.model_copy(update={"recipe": recipe})
            made.write(results, cell, made.exactly(LABEL, [value] * 4))


def verdicts(results, plugins) -> dict[tuple[str, str, str], Verdict]:
    found = beside(read(results).groups, plugins)
    return {
        (v.published.method, v.published.metric, v.kind): v
        for v in found
        if v.published.place == "Table 1(a)"
    }


# -- what ships ----------------------------------------------------------------------------------


def test_every_number_of_both_tables_is_there_with_its_source() -> None:
    numbers = load()
    first = [n for n in numbers if n.place.startswith("Table 1(")]
    assert len(first) == 2 * 15 * 4
    assert len([n for n in numbers if n.place.startswith("Table 2")]) == 8 * 2 * 4
    assert all(n.source and n.recipe for n in first)
    assert {n.n for n in first} == {3}
    mr2 = {n.metric: n.mean for n in first if n.method == "mr2" and n.place == "Table 1(a)"}
    assert mr2 == {"overall": 73.9, "easy": 85.9, "medium": 73.8, "hard": 61.9}


def test_the_two_misprints_are_noted() -> None:
    odd = {(n.place, n.method, n.metric) for n in load() if "misprint" in n.note}
    assert odd == {("Table 1(b)", "jtt", "hard"), ("Table 1(b)", "eql", "medium")}


def test_every_method_named_ships(plugins) -> None:
    for name in {number.method for number in load()}:
        plugins.card("methods", name)


# -- conditions ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("conditions", "met"),
    [
        ("data.name=cifar100", True),
        ("data.name=cifar*;epochs=300", True),
        ("data.fraction=1;data.counts=null", True),
        ("epochs=30", False),
        ("backbone.name=resnet20", False),
        ("data.fraction=0.1", False),
        ("backbone.weights=null", True),
        ("backbone.weights=clip", False),
        ("regime=1", False),
        ("", False),
    ],
)
def test_conditions_on_a_recipe(conditions, met) -> None:
    assert matches(CIFAR, conditions) is met


def test_a_default_that_a_recipe_leaves_out_meets_its_condition() -> None:
    short = {**CIFAR, "data": {"name": "cifar100"}, "augmentation": {}}
    assert matches(short, "data.fraction=1;data.counts=null;augmentation.policy=none")
    assert not matches(short, "data.fraction=0.1")


def test_every_condition_of_the_paper_is_met_by_some_recipe() -> None:
    wanted = {n.recipe for n in load() if n.place == "Table 1(a)"}
    assert [matches(CIFAR, conditions) for conditions in wanted] == [True]


# -- verdicts ------------------------------------------------------------------------------------


def test_the_half_width_is_as_the_definition_says() -> None:
    within, answer = judge([70.0, 71.0, 72.0], 71.2, 0.4, 28, 3)
    t = stats.t.ppf(0.975, 28)
    assert within == pytest.approx(t * 0.4 * math.sqrt(1 / 3 + 1 / 3) + 0.05)
    assert answer == "agrees"


@pytest.mark.parametrize(
    ("theirs", "spread", "degrees", "answer"),
    [
        (71.0, 0.3, 4, "agrees"),
        (72.0, 0.3, 4, "differs"),
        (71.0, 1.0, 4, "inconclusive"),
        (80.0, 1.0, 4, "differs"),
        (71.0, 0.0, 0, "inconclusive"),
    ],
)
def test_the_four_verdicts(theirs, spread, degrees, answer) -> None:
    assert judge([71.0, 71.1, 70.9], theirs, spread, degrees, 3)[1] == answer


def test_a_printed_deviation_is_pooled_with_ours() -> None:
    within, _ = judge([70.0] * 3, 70.0, 0.4, 2, 3, 0.2)
    s = math.sqrt((2 * 0.16 + 2 * 0.04) / 4)
    assert within == pytest.approx(stats.t.ppf(0.975, 4) * s * math.sqrt(2 / 3) + 0.05)


def test_values_and_gains_are_judged_by_our_seeds(tmp_path, plugins) -> None:
    """ERM is printed as 70.9 and MR2 as 73.9 overall: a gain of 3.0."""
    runs(tmp_path, erm=[0.70, 0.71, 0.72], mr2=[0.74, 0.74, 0.75], sam=[0.60, 0.61, 0.61])
    found = verdicts(tmp_path, plugins)
    erm = found["erm", "overall", "value"]
    assert (erm.ours, erm.n) == (pytest.approx(71), 3)
    spread = math.sqrt(
        np.mean([np.var(v, ddof=1) for v in ([70, 71, 72], [74, 74, 75], [60, 61, 61])])
    )
    half = stats.t.ppf(0.975, 6) * spread * math.sqrt(2 / 3) + 0.05
    assert erm.within == pytest.approx(half)
    assert erm.text == "inconclusive"
    sam = found["sam", "overall", "value"]
    assert sam.text == f"differs by {np.mean([60, 61, 61]) - 71.0:+.1f}"
    gain = found["mr2", "overall", "gain"]
    assert gain.theirs == pytest.approx(3.0)
    assert gain.ours == pytest.approx(np.mean([4, 3, 3]))
    assert gain.within > 0.05
    assert found["jtt", "overall", "value"].answer == "not run"
    assert found["jtt", "overall", "gain"].answer == "not run"
    assert ("erm", "overall", "gain") not in found


def test_one_seed_is_inconclusive(tmp_path, plugins) -> None:
    runs(tmp_path, erm=[0.71], mr2=[0.74])
    found = verdicts(tmp_path, plugins)
    assert found["erm", "overall", "value"].answer == "inconclusive"
    assert found["mr2", "overall", "gain"].within is None


def test_another_recipe_is_not_the_papers(tmp_path, plugins) -> None:
    runs(tmp_path, {**CIFAR, "epochs": 30}, erm=[0.70, 0.71, 0.72])
    assert {v.answer for v in verdicts(tmp_path, plugins).values()} == {"not run"}


def test_a_variant_is_not_taken_for_the_method(tmp_path, plugins) -> None:
    runs(tmp_path, erm=[0.70, 0.71, 0.72])
    for seed in range(3):
        method = made.method("mr2", label="MR2 uniform", settings={"margins": "uniform"})
        cell = made.cell("mr2", seed, recipe="cifar100_resnet32", method=method)
        plain = made.cell("mr2", seed, recipe="cifar100_resnet32")
        for one, share in ((cell, 0.5), (plain, 0.74)):
            told = one.model_copy(update={"recipe": CIFAR})
            made.write(tmp_path, told, made.exactly(LABEL, [share] * 4))
    assert verdicts(tmp_path, plugins)["mr2", "overall", "value"].ours == pytest.approx(74)


def test_best_and_named_classes_are_read_from_the_record(tmp_path) -> None:
    dataset = {"classes": ["cat", "Bird", "dog", "ship"], "headline": "overall"}
    made.write(tmp_path, made.cell(), made.exactly(LABEL, [0.1, 0.4, 0.9, 0.2]), dataset=dataset)
    run = read(tmp_path).groups[0].runs[0]
    assert value_of(run, "best") == pytest.approx(90)
    assert value_of(run, "class bird") == pytest.approx(40)
    assert value_of(run, "class horse") is None
    assert value_of(run, "nothing") is None


def test_tables_show_what_was_run_and_say_what_is_odd(tmp_path, plugins) -> None:
    runs(tmp_path, erm=[0.70, 0.71, 0.72], mr2=[0.74, 0.74, 0.75])
    found = beside(read(tmp_path).groups, plugins)
    (table,) = to_tables(found, plugins)
    assert table.title == "The paper's numbers: CIFAR-100, ResNet-32, from scratch"
    first = table.rows[0]
    assert (first["method"].text, first["theirs"].mean) == ("ERM", 70.9)
    assert first["verdict"].text == "inconclusive"
    every = to_tables(found, plugins, run=False)
    assert len(every) > 10
    assert any("misprint" in note for each in every for note in each.footnotes)


def test_published_numbers_are_plain_values() -> None:
    number = load()[0]
    assert isinstance(number, Published)
    assert isinstance(number.mean, float)
    assert number.std is None
