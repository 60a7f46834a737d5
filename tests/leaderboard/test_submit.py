"""What an outside result must hold, and how far it is trusted."""

import json

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, fill

from classfair_leaderboard.archive import load_archive
from classfair_leaderboard.exporting import export
from classfair_leaderboard.submit import accept, check, verify
from classfair_registry.errors import UsageError
from classfair_registry.records import CellInfo


def keys(cell: CellInfo) -> tuple[str, str]:
    """Return the keys that made cells have."""
    told = made.cell(cell.method.name, cell.seed, recipe=cell.recipe_name, method=cell.method)
    return told.key, told.recipe_key


@pytest.fixture
def submission(tmp_path):
    fill(tmp_path / "theirs", mr2=MR2)
    path = tmp_path / "theirs.records.jsonl"
    export(tmp_path / "theirs", path, by="A. Nother")
    return path


def test_an_archive_with_answers_is_recomputed(submission, plugins) -> None:
    found = check(submission, plugins, keys)
    assert found.accepted
    (row,) = found.rows
    assert (row.method, row.recipe, row.seeds) == ("mr2", "made", (0, 1, 2))
    assert (row.trust, found.trust) == ("recomputed", "recomputed")
    assert row.wrong == ()
    assert any("an archive" in text for text in row.remarks)


def test_a_results_folder_is_recomputed_from_its_predictions(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2)
    (row,) = check(tmp_path, plugins, keys).rows
    assert (row.trust, row.wrong, row.remarks) == ("recomputed", (), ())


def test_records_alone_are_self_reported(submission, plugins) -> None:
    lines = [json.loads(line) for line in submission.read_text().splitlines()]
    for line in lines:
        line.get("run", {}).pop("right", None)
    submission.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = check(submission, plugins, keys)
    assert found.accepted
    assert found.trust == "self-reported"
    assert any("no answers were given" in text for text in found.rows[0].remarks)


def test_a_better_number_than_the_answers_give_is_found(tmp_path, plugins) -> None:
    for seed in range(3):
        predictions = made.exactly(LABEL, MR2[seed])
        metrics = made.metrics_of(predictions) | {"hard": 99.0}
        made.write(tmp_path / "r", made.cell("mr2", seed), predictions, metrics=metrics)
    export(tmp_path / "r", tmp_path / "a")
    for path in (tmp_path / "r", tmp_path / "a"):
        found = check(path, plugins, keys)
        assert not found.accepted
        assert found.rows[0].trust == "self-reported"
        assert "seed 0: hard is recorded as 99.0, but comes to 50.0" in found.rows[0].wrong
    runs, wrong = verify(tmp_path / "r", plugins)
    assert runs == 3
    assert len(wrong) == 3


def test_a_metric_of_probabilities_is_checked_where_they_are_given(tmp_path, plugins) -> None:
    predictions = made.exactly(LABEL, MR2[0])
    metrics = made.metrics_of(predictions) | {"ece": 0.0}
    made.write(tmp_path, made.cell("mr2"), predictions, metrics=metrics)
    assert any("ece is recorded" in text for text in check(tmp_path, plugins, keys).rows[0].wrong)


def test_seeds_must_be_0_to_n(tmp_path, plugins) -> None:
    for seed in (0, 2, 5):
        made.write(tmp_path, made.cell("mr2", seed), made.exactly(LABEL, MR2[0]))
    found = check(tmp_path, plugins, keys)
    assert found.rows[0].wrong == ("seeds are 0, 2, 5, not 0 to 2",)


def test_few_seeds_and_changed_work_trees_are_remarked(tmp_path, plugins) -> None:
    made.write(tmp_path, made.cell("mr2"), made.exactly(LABEL, MR2[0]), provenance={"dirty": True})
    found = check(tmp_path, plugins, keys)
    assert found.accepted
    assert any(text.startswith("n = 1") for text in found.rows[0].remarks)
    assert any("changes that are in no commit" in text for text in found.rows[0].remarks)


def test_keys_must_be_those_of_the_settings(submission, plugins) -> None:
    found = check(submission, plugins, lambda cell: ("k", cell.recipe_key))
    assert "seed 0: the key is not that of its settings" in found.rows[0].wrong
    found = check(submission, plugins, lambda cell: (cell.key, "k"))
    assert "seed 1: the recipe's key is not that of its recipe" in found.rows[0].wrong


def test_torn_and_foreign_lines_are_wrong(submission, plugins) -> None:
    submission.write_bytes(submission.read_bytes()[:-30])
    found = check(submission, plugins, keys)
    assert not found.accepted
    assert "torn" in found.wrong[0]
    with pytest.raises(UsageError, match="no such file"):
        check(submission.with_name("nothing"), plugins, keys)


def test_nothing_is_not_accepted(tmp_path, plugins) -> None:
    assert not check(tmp_path, plugins, keys).accepted


# -- run again -----------------------------------------------------------------------------------


def again(folder, accuracy) -> None:
    made.write(folder, made.cell("mr2"), made.exactly(LABEL, accuracy))


def test_a_seed_run_again_inside_the_prediction_interval_is_trusted_most(
    submission, tmp_path, plugins
) -> None:
    again(tmp_path / "mine", MR2[1])
    assert check(submission, plugins, keys, tmp_path / "mine").trust == "re-run"


def test_a_seed_run_again_outside_of_it_is_wrong(submission, tmp_path, plugins) -> None:
    """Overall is 65, 60, 55: the interval is 60 ± 4.303 x 5 x sqrt(4/3), 35.2 to 84.8."""
    again(tmp_path / "mine", [0.4, 0.3, 0.3, 0.3])
    found = check(submission, plugins, keys, tmp_path / "mine")
    assert not found.accepted
    (text,) = [t for t in found.rows[0].wrong if "overall" in t]
    assert text == "seed 0 run again has overall 32.50, outside 35.16 to 84.84"


def test_another_method_run_again_says_nothing(submission, tmp_path, plugins) -> None:
    fill(tmp_path / "mine", sam=ERM)
    assert check(submission, plugins, keys, tmp_path / "mine").trust == "recomputed"


# -- accepting -----------------------------------------------------------------------------------


def test_what_was_accepted_is_written_with_its_trust(submission, tmp_path, plugins) -> None:
    found = check(submission, plugins, keys)
    accept(found, tmp_path / "accepted.records.jsonl", "A. Nother, Somewhere")
    archive = load_archive(tmp_path / "accepted.records.jsonl")
    assert (archive.about.by, archive.about.trust) == ("A. Nother, Somewhere", "recomputed")
    assert len(archive.runs) == 3
    assert all(np.array_equal(run.answers.label, LABEL) for run in archive.runs)


def test_what_is_wrong_or_nameless_is_not_written(submission, tmp_path, plugins) -> None:
    found = check(submission, plugins, keys)
    with pytest.raises(UsageError, match="who gives"):
        accept(found, tmp_path / "a", " ")
    wrong = check(submission, plugins, lambda cell: ("k", "k"))
    with pytest.raises(UsageError, match="something is wrong"):
        accept(wrong, tmp_path / "a", "A. Nother")
    assert not (tmp_path / "a").exists()
