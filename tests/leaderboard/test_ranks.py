"""Mean ranks over recipes, and effective hard."""

import made_records as made
import pytest
from made_tables import ERM, LABEL, MR2, fill, rows_of

from classfair_leaderboard import report, write
from classfair_leaderboard.effective import fit

GOOD, FAIR, POOR = [1, 1, 1, 0.9], [0.9, 0.8, 0.7, 0.5], [0.8, 0.6, 0.5, 0.1]


def runs(results, recipe: str, **methods: list[float]) -> None:
    for name, accuracy in methods.items():
        for seed in range(2):
            cell = made.cell(name, seed, recipe=recipe)
            made.write(results, cell, made.exactly(LABEL, accuracy))


def test_ranks_are_means_over_recipes_of_methods_that_have_all(tmp_path, plugins) -> None:
    runs(tmp_path, "a", erm=POOR, mr2=GOOD, sam=FAIR, dro=GOOD)
    runs(tmp_path, "b", erm=POOR, mr2=FAIR, sam=FAIR)
    (ranks,) = report(tmp_path, plugins).ranks
    rows = rows_of(ranks)
    assert ranks.title == "Mean ranks, tier 2"
    # a: MR2 1, SAM 2, ERM 3, DRO left out; b: MR2 and SAM share 1.5, ERM 3.
    assert rows["MR2"]["rank_hard"].mean == 1.25
    assert rows["SAM"]["rank_headline"].mean == 1.75
    assert rows["ERM"]["rank_hard"].mean == 3
    assert "rank_hard" not in rows["DRO"]
    assert rows["DRO"]["recipes"].text == "1/2"


def test_a_missing_seed_means_no_rank(tmp_path, plugins) -> None:
    runs(tmp_path, "a", erm=POOR, mr2=GOOD, sam=FAIR)
    runs(tmp_path, "b", erm=POOR, mr2=GOOD, sam=FAIR)
    cells = [made.cell(m, s, recipe=r) for r in "ab" for m in ("erm", "mr2", "sam") for s in (0, 1)]
    made.expect(tmp_path, [*cells, made.cell("sam", 2, recipe="b")])
    rows = rows_of(report(tmp_path, plugins).ranks[0])
    assert "rank_hard" not in rows["SAM"]
    assert [rows[name]["rank_hard"].mean for name in ("MR2", "ERM")] == [1, 2]


def test_tiers_and_tracks_never_share_a_rank_and_a_tier_must_be_complete(tmp_path, plugins) -> None:
    for recipe in ("clip_rn50_pets_probe", "clip_rn50_cars_probe", "a", "b"):
        runs(tmp_path, recipe, erm=POOR, mr2=GOOD)
    for recipe in ("a", "b"):
        for name in ("erm", "mr2"):
            cell = made.cell(name, recipe=recipe, track="tuned")
            made.write(tmp_path, cell, made.exactly(LABEL, FAIR))
    first, second, tuned = report(tmp_path, plugins).ranks
    assert [t.title for t in (first, second, tuned)] == (
        ["Mean ranks, tier 1", "Mean ranks, tier 2", "Mean ranks, tier 2 (tuned)"]
    )
    assert first.footnotes == ("No recipe of cifar100_resnet32, so no ranks.",)
    assert all("rank_hard" not in row for row in first.rows)
    assert rows_of(second)["MR2"]["rank_hard"].mean == 1
    runs(tmp_path, "cifar100_resnet32", erm=POOR, mr2=GOOD)
    first = report(tmp_path, plugins).ranks[0]
    assert rows_of(first)["MR2"]["recipes"].text == "3/3"
    assert rows_of(first)["MR2"]["rank_hard"].mean == 1


def test_one_recipe_has_no_ranks_and_files_have_them_apart(tmp_path, plugins) -> None:
    runs(tmp_path / "r", "a", erm=POOR, mr2=GOOD)
    assert report(tmp_path / "r", plugins).ranks == ()
    runs(tmp_path / "r", "b", erm=POOR, mr2=GOOD)
    told = report(tmp_path / "r", plugins)
    names = [path.name for path in write(told, tmp_path / "out", plugins)]
    assert names == ["leaderboard.md", "leaderboard.csv", "ranks.md", "ranks.csv"]
    assert "rank" not in (tmp_path / "out" / "leaderboard.csv").read_text().splitlines()[0].replace(
        "ranking", ""
    )


# -- effective hard ------------------------------------------------------------------------------


def test_a_line_by_hand_and_none_for_too_few_or_equal_points() -> None:
    line = fit([(60, 30), (70, 50), (80, 70), (70, 50)], 2)
    assert (line.slope, line.intercept) == (pytest.approx(2), pytest.approx(-90))
    assert line.above(75, 65) == pytest.approx(5)
    assert fit([(60, 30), (70, 50), (80, 70)], 1) is None
    assert fit([(60, 30)] * 5, 1) is None
    assert fit([(60, 30), (70, 50), (80, 70), (90, float("nan"))], 1) is None


def test_effective_hard_is_measured_from_the_line_of_the_data_sets_erm_runs(
    tmp_path, plugins
) -> None:
    """ERM: overall 70, 75, 80, 85, hard 10, 20, 30, 40; MR2: overall 80, hard 60, line 30."""
    for recipe, accuracies in {"a": (0.1, 0.2), "b": (0.3, 0.4)}.items():
        for seed, hard in enumerate(accuracies):
            more = 0.1 * (hard * 10 - 1)
            cell = made.cell("erm", seed, recipe=recipe)
            accuracy = [0.9, 0.9, 0.9 - 0.1 + more / 3, hard]
            made.write(tmp_path, cell, made.exactly(LABEL, accuracy))
    for seed in range(2):
        cell = made.cell("mr2", seed, recipe="a")
        made.write(tmp_path, cell, made.exactly(LABEL, [0.9, 0.9, 0.8, 0.6]))
    tables = report(tmp_path, plugins, metrics=["effective_hard"]).tables
    erm = [
        (run["overall"].mean, run["hard"].mean)
        for table in tables
        for run in [rows_of(table)["ERM"]]
    ]
    points = []
    for table in tables:
        assert any("Effective hard: hard minus" in note for note in table.footnotes)
        assert any(c.key == "effective_hard" for c in table.reading)
    for recipe in ("a", "b"):
        for path in sorted(tmp_path.glob(f"erm--{recipe}--*")):
            record = made.Record.load(path / "record.json")
            points.append((record.metrics["overall"], record.metrics["hard"]))
    line = fit(points, 2)
    mr2 = rows_of(tables[0])["MR2"]
    assert mr2["effective_hard"].mean == pytest.approx(line.above(80, 60))
    assert mr2["effective_hard"].mean > 10
    assert len(erm) == 2


def test_three_erm_runs_are_no_line(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    (table,) = report(tmp_path, plugins).tables
    assert rows_of(table)["MR2"]["effective_hard"].mean is None
    assert "effective_hard" in [column.key for column in table.data]
    assert "effective_hard" not in [column.key for column in table.reading]
