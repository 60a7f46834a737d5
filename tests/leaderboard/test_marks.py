"""Bold, the Pareto set, and both in words."""

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, MR2, fill

from classfair_leaderboard import report
from classfair_leaderboard.marks import PARETO, in_words, pareto
from classfair_registry.tables import Entry, Table

LABEL = np.repeat(np.arange(5), 60)
SHARE = np.array([0.9, 0.8, 0.7, 0.6, 0.5])


def runs(results, **better: float) -> None:
    """Write three seeds of methods that are this much better than ERM in every class."""
    for name, more in better.items():
        for seed in range(3):
            rng = np.random.default_rng([seed, *map(ord, name)])
            right = rng.random(LABEL.size) < (SHARE + more)[LABEL]
            made.write(results, made.cell(name, seed), made.predictions(LABEL, right))


def rows_of(table: Table) -> dict[str, dict[str, Entry]]:
    return {str(row["method"].text): dict(row) for row in table.rows}


def bold(table: Table, key: str) -> set[str]:
    return {name for name, row in rows_of(table).items() if row[key].bold}


@pytest.mark.parametrize("ranking", ["own", "reference", "reference_crossfit"])
def test_all_that_cannot_be_told_from_the_best_is_bold(tmp_path, plugins, ranking) -> None:
    runs(tmp_path, erm=0, mr2=0.09, sam=0.1, dro=-0.2)
    add_ranking_runs_of(tmp_path)
    (table,) = report(tmp_path, plugins, ranking=ranking).tables
    for key in ("overall", "hard", "worst"):
        assert bold(table, key) >= {"MR2", "SAM"}, key
        assert "Group DRO" not in bold(table, key)
        assert "DRO" not in bold(table, key)
    assert bold(table, "cost") == set()
    assert table.footnotes[0].startswith("Bold: the 95 % interval")


def add_ranking_runs_of(results) -> None:
    for n in range(3):
        right = np.random.default_rng(n).random(LABEL.size) < SHARE[LABEL]
        cell = made.cell("erm", 10_000 + n, ranking_run=True)
        made.write(results, cell, made.predictions(LABEL, right))


def test_the_least_gap_is_the_best(tmp_path, plugins) -> None:
    even = [[0.7, 0.7, 0.7, 0.7]] * 3
    fill(tmp_path, erm=[[1.0, 1.0, 0.0, 0.0]] * 3, mr2=even)
    (table,) = report(tmp_path, plugins).tables
    assert bold(table, "gap") == {"MR2"}
    assert bold(table, "easy") == {"ERM"}


def test_nothing_is_bold_with_one_seed_or_one_row(tmp_path, plugins) -> None:
    fill(tmp_path / "seed", erm=ERM[:1], mr2=MR2[:1])
    fill(tmp_path / "row", mr2=MR2)
    for folder in ("seed", "row"):
        (table,) = report(tmp_path / folder, plugins).tables
        assert not any(entry.bold for row in table.rows for entry in row.values())
        assert not any(note.startswith("Bold") for note in table.footnotes)


def test_an_incomplete_row_is_never_bold(tmp_path, plugins) -> None:
    cells = fill(tmp_path, erm=ERM, mr2=MR2, sam=MR2[:2])
    made.expect(tmp_path, [*cells, made.cell("sam", 2)])
    (table,) = report(tmp_path, plugins).tables
    assert not any(entry.bold or entry.mark for entry in rows_of(table)["SAM"].values())


def test_the_pareto_set_by_hand() -> None:
    points = [(70, 50), (71, 49), (70, 48), (69, 51), (71, 49), (None, 60)]
    rows = [{"overall": Entry(x), "hard": Entry(y)} for x, y in points]
    assert pareto(rows, "overall") == {0, 1, 3, 4}
    assert pareto(rows[:1], "overall") == set()


def test_the_pareto_set_is_marked_and_explained(tmp_path, plugins) -> None:
    fill(tmp_path, erm=[[0.9, 0.9, 0.5, 0.1]] * 2, mr2=[[0.9, 0.9, 0.6, 0.3]] * 2)
    (table,) = report(tmp_path, plugins).tables
    rows = rows_of(table)
    assert (rows["MR2"]["method"].mark, rows["ERM"]["method"].mark) == (PARETO, "")
    assert f"{PARETO}: Pareto set: no row has better overall" in "".join(table.footnotes)


def test_in_words_no_row_has_a_mark_and_the_sentences_say_the_same(tmp_path, plugins) -> None:
    runs(tmp_path, erm=-0.2, mr2=0.2)
    (table,) = report(tmp_path, plugins).tables
    said = in_words(table)
    assert not any(entry.bold or entry.mark for row in said.rows for entry in row.values())
    first, second, *rest = said.footnotes
    assert first.startswith("Cannot be told from the best (95 %): overall: MR2; ")
    assert second == "Pareto set of the headline and hard: MR2."
    assert rest == list(table.footnotes[2:])
    assert "Bold" not in " ".join(said.footnotes)
    assert [{k: e.mean for k, e in row.items()} for row in said.rows] == (
        [{k: e.mean for k, e in row.items()} for row in table.rows]
    )
