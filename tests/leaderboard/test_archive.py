"""Results as one file: nothing that a table shows is lost, nothing hostile gets in."""

import base64
import json
import zlib

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill, rows_of

from classfair_leaderboard import RANKINGS, report
from classfair_leaderboard.archive import About, archived, load_archive, save
from classfair_leaderboard.compare import compare
from classfair_leaderboard.exporting import export
from classfair_leaderboard.load import load
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.predictions import Predictions


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    cells = fill(folder, erm=ERM, mr2=MR2)
    add_ranking_runs(folder, ERM)
    made.expect(folder, [*cells, made.cell("sam")], "quick", "Quick.")
    return folder


@pytest.fixture
def archive(results, tmp_path):
    path = tmp_path / "quick.records.jsonl"
    assert export(results, path).runs == 9
    return path


def lines_of(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path, lines) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("ranking", [None, *RANKINGS])
def test_tables_of_an_archive_are_those_of_the_folder(results, archive, plugins, ranking) -> None:
    of_folder, of_file = (report(p, plugins, ranking=ranking) for p in (results, archive))
    assert of_file.complaints == ()
    for one, other in zip(of_folder.tables, of_file.tables, strict=True):
        assert one.caption == other.caption
        assert one.footnotes == other.footnotes
        for mine, theirs in zip(one.rows, other.rows, strict=True):
            assert theirs["trust"].text in ("recomputed", "")
            assert {**mine, "trust": None} == {**theirs, "trust": None}


def test_comparisons_of_an_archive_are_those_of_the_folder(results, archive, plugins) -> None:
    assert compare(results, plugins, draws=50) == compare(archive, plugins, draws=50)


def test_an_archive_is_small_and_has_no_path_of_the_machine(tmp_path) -> None:
    cell = made.cell().model_copy(update={"paths": {"data": "/home/me/data"}})
    made.write(tmp_path, cell, made.exactly(LABEL, ERM[0]))
    export(tmp_path, tmp_path / "a.records.jsonl")
    text = (tmp_path / "a.records.jsonl").read_text()
    assert "/home/me" not in text
    (run,) = load_archive(tmp_path / "a.records.jsonl").runs
    run.record.check("the record")


def test_the_same_results_give_the_same_bytes(results, tmp_path) -> None:
    for name in ("a", "b"):
        export(results, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    export(tmp_path / "a", tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


def test_answers_and_class_values_come_back(tmp_path) -> None:
    predictions = made.exactly(np.repeat(np.arange(3), [3, 4, 6]), [1, 0.5, 0.5])
    object.__setattr__(predictions, "vector_norm", np.array([1.0, np.nan, 1 / 3]))
    record = made.record(made.cell(), predictions, {})
    save(tmp_path / "a", [archived(record, predictions)], [])
    (run,) = load_archive(tmp_path / "a").runs
    assert np.array_equal(run.answers.correct, predictions.correct)
    assert np.array_equal(run.answers.label, predictions.label)
    assert run.classes["vector_norm"] == pytest.approx([1.0, np.nan, 1 / 3], nan_ok=True, rel=1e-6)
    assert "feature_spread" not in run.classes


def test_predictions_are_asked_of_an_archive_in_vain(archive) -> None:
    run = load(archive)[0][0]
    with pytest.raises(ClassfairError, match="an archive has no predictions"):
        run.predictions()
    assert np.isnan(run.per_class("vector_norm")).all()


def test_archives_in_a_folder_are_read_with_its_cells(results, tmp_path, plugins) -> None:
    other = tmp_path / "other"
    fill(other, sam=MR2)
    export(other, results / "theirs.records.jsonl", by="A. Nother")
    told = report(results, plugins)
    assert rows_of(told.tables[0])["SAM"]["n"].text == "3"
    assert "SAM: given by A. Nother; self-reported (as given)." in told.tables[0].footnotes
    assert rows_of(told.tables[0])["SAM"]["trust"].text == "self-reported"


def test_only_a_matrix_is_exported_if_it_is_named(results, tmp_path) -> None:
    made.expect(results, [made.cell("mr2", s) for s in range(3)], "small")
    assert export(results, tmp_path / "s", "small").runs == 6
    with pytest.raises(UsageError, match="no matrix 'smal'"):
        export(results, tmp_path / "t", "smal")
    with pytest.raises(UsageError, match="cannot be written"):
        export(results, tmp_path / "nowhere" / "t")


def test_expected_cells_that_are_missing_stay_missing(archive, plugins) -> None:
    rows = rows_of(report(archive, plugins, "quick").tables[0])
    assert rows["SAM"]["seeds"].text == "0/1"


# -- hostile and torn ----------------------------------------------------------------------------


def spoiled(archive, change) -> list[str]:
    lines = lines_of(archive)
    change(lines)
    write_lines(archive, lines)
    runs, complaints = load(archive)
    assert len(runs) == 8
    return complaints


def edit(field, value):
    def change(lines) -> None:
        lines[-1]["run"][field] = value

    return change


def metric(lines) -> None:
    lines[-1]["run"]["record"]["metrics"]["hard"] = 99.0


def accuracy(lines) -> None:
    record = made.Record(**lines[-1]["run"]["record"])
    better = record.model_copy(update={"class_accuracy": [1.0] * 4}).sealed()
    lines[-1]["run"]["record"] = better.to_json()


def protocol(lines) -> None:
    lines[-1]["run"]["record"]["cell"]["protocol"] = 99


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (metric, "edited after the run that wrote it"),
        (accuracy, "the record's accuracies are not those of its answers"),
        (protocol, "of protocol 99"),
        (edit("right", "AAAA"), "answers are not of 40 images"),
        (edit("right", "?"), "torn, or no line of results"),
        (edit("labels", "0"), "no labels '0' above it"),
        (edit("classes", {"vector_norm": [1.0]}), "values of other than 4 classes"),
        (edit("record", None), "torn, or no line of results"),
    ],
)
def test_a_line_that_was_changed_is_named_and_left_out(archive, change, told) -> None:
    (complaint,) = spoiled(archive, change)
    assert told in complaint
    assert f"{archive}:{len(lines_of(archive))}" in complaint


def test_an_archive_torn_anywhere_is_never_fatal(archive, tmp_path) -> None:
    content = archive.read_bytes()
    torn = tmp_path / "torn.records.jsonl"
    for size in range(0, len(content), len(content) // 60):
        torn.write_bytes(content[:size])
        runs, complaints = load(torn)
        assert len(runs) <= 9
        assert all(f"{torn}:" in complaint for complaint in complaints)
        assert len(complaints) <= 2


def test_labels_that_inflate_without_end_are_refused(archive, monkeypatch) -> None:
    monkeypatch.setattr("classfair_leaderboard.archive._MOST", 1000)
    lines = lines_of(archive)
    bomb = base64.b64encode(zlib.compress(bytes(100_000))).decode()
    labels = next(line for line in lines if "labels" in line and "run" not in line)
    labels["labels"]["values"] = bomb
    write_lines(archive, lines)
    runs, complaints = load(archive)
    assert runs == []
    assert "labels of more than" in complaints[0]


def test_other_formats_and_trust_levels_are_refused(tmp_path) -> None:
    write_lines(
        tmp_path / "a", [{"format": 9, "about": {}}, {"format": 1, "about": {"trust": "perfect"}}]
    )
    archive = load_archive(tmp_path / "a")
    assert archive.about == About(trust="self-reported")
    assert "of format 9" in archive.complaints[0]
    assert "no trust level 'perfect'" in archive.complaints[1]
    with pytest.raises(ClassfairError, match="No such file"):
        load_archive(tmp_path / "b")


def test_predictions_written_by_hand_are_no_archive(tmp_path) -> None:
    assert isinstance(made.exactly(LABEL, ERM[0]), Predictions)
    (tmp_path / "a").write_text("[1, 2]\nnull\n\n")
    assert len(load_archive(tmp_path / "a").complaints) == 2
