"""Rankings frozen as files."""

import json

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard.load import load
from classfair_leaderboard.ranking import freeze, from_runs, load_frozen

LABEL = np.repeat(np.arange(4), 5)


@pytest.fixture
def ranking(tmp_path):
    for seed, accuracy in enumerate([[1, 0.4, 0.4, 0.8], [1, 0.6, 0.4, 0.2]], 10_000):
        cell = made.cell("erm", seed, ranking_run=True)
        made.write(tmp_path / "results", cell, made.exactly(LABEL, accuracy))
    return from_runs(load(tmp_path / "results")[0])


def test_scores_and_hits_are_those_of_the_runs(ranking) -> None:
    assert ranking.scores.tolist() == [1.0, 0.5, 0.4, 0.5]
    # Two runs; of each class's five images the first ones are right.
    assert ranking.hits.tolist() == [2] * 5 + [2, 2, 1, 0, 0] + [2, 2, 0, 0, 0] + [2, 1, 1, 1, 0]
    assert [run["seed"] for run in ranking.runs] == [10_000, 10_001]


def test_half_scores_are_mean_accuracies_on_the_halves(ranking) -> None:
    first = np.tile([True, True, False, False, False], 4)[None]
    found = ranking.half_scores(LABEL, first, 4)
    expected = [[[1, 1, 1, 0.75], [1, 1 / 6, 0, 2 / 6]]]
    np.testing.assert_allclose(found, expected)


def test_the_hash_depends_on_recipe_runs_and_scores_not_on_their_order(ranking, tmp_path) -> None:
    runs = load(tmp_path / "results")[0]
    assert from_runs(runs[::-1]).hash == ranking.hash
    assert from_runs(runs[:1]).hash != ranking.hash
    assert len(ranking.hash) == 12


def test_a_frozen_ranking_comes_back_as_it_was(ranking, tmp_path) -> None:
    path = freeze(ranking, tmp_path)
    assert path == tmp_path / "made.json"
    frozen, complaints = load_frozen(tmp_path)
    assert complaints == []
    again = frozen[ranking.recipe_key]
    assert again.hash == ranking.hash
    assert again.runs == ranking.runs
    np.testing.assert_array_equal(again.scores, ranking.scores)
    np.testing.assert_array_equal(again.hits, ranking.hits)


def test_a_frozen_file_says_its_order_to_readers(ranking, tmp_path) -> None:
    values = json.loads(freeze(ranking, tmp_path).read_text())
    assert values["order"] == [0, 1, 3, 2]
    assert values["hash"] == ranking.hash


def test_a_class_without_test_images_is_in_no_order(tmp_path) -> None:
    made.write(tmp_path, made.cell(), made.exactly([0, 0, 2, 2], [0.5, 0, 1]))
    ranking = from_runs(load(tmp_path)[0])
    values = json.loads(freeze(ranking, tmp_path).read_text())
    assert (values["order"], values["scores"]) == ([2, 0], [0.5, None, 1.0])
    assert np.isnan(load_frozen(tmp_path)[0][ranking.recipe_key].scores[1])


def test_an_edited_torn_or_foreign_ranking_is_named_and_left_out(ranking, tmp_path) -> None:
    path = freeze(ranking, tmp_path)
    whole = path.read_text()
    for old, new, cause in (
        ('"hits": "2', '"hits": "0', "edited after it was frozen"),
        ('"protocol": 1', '"protocol": 2', "of protocol 2"),
        ('"scores"', '"score"', "score"),
        ("}", "", "Invalid JSON"),
    ):
        assert old in whole
        path.write_text(whole.replace(old, new, 1))
        frozen, (complaint,) = load_frozen(tmp_path)
        assert frozen == {}
        assert cause in complaint
        assert complaint.startswith(str(path))


def test_a_second_ranking_of_a_recipe_is_left_out(ranking, tmp_path) -> None:
    path = freeze(ranking, tmp_path)
    (tmp_path / "other.json").write_text(path.read_text())
    frozen, (complaint,) = load_frozen(tmp_path)
    assert list(frozen) == [ranking.recipe_key]
    assert "a second ranking" in complaint
