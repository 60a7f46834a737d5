"""Reading a results folder: what is used, what is named and left out."""

import json

import made_records as made
import numpy as np
import pytest

from classfair_leaderboard.load import load, load_matrices
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.records import PROTOCOL

LABEL = np.repeat(np.arange(3), 4)
SOME = made.exactly(LABEL, [1, 0.5, 0.25])


def test_runs_come_with_record_and_predictions(tmp_path) -> None:
    made.write(tmp_path, made.cell("mr2", 1), SOME)
    (run,), complaints = load(tmp_path)
    assert complaints == []
    assert (run.record.cell.method.name, run.seed) == ("mr2", 1)
    assert run.accuracy.tolist() == [1, 0.5, 0.25]
    assert run.count.tolist() == [4, 4, 4]
    assert run.predictions().digest() == SOME.digest()


def test_predictions_are_read_only_when_asked_for(tmp_path, monkeypatch) -> None:
    made.write(tmp_path, made.cell(), SOME)
    monkeypatch.setattr("classfair_registry.predictions.load_arrays", lambda path: 1 / 0)
    (run,), _ = load(tmp_path)
    with pytest.raises(ZeroDivisionError):
        run.predictions()


def test_a_class_without_images_has_no_accuracy(tmp_path) -> None:
    record = {"class_accuracy": [1.0, None], "class_count": [2, 0]}
    made.write(tmp_path, made.cell(), SOME, **record)
    (run,), _ = load(tmp_path)
    assert run.accuracy[0] == 1
    assert np.isnan(run.accuracy[1])


def test_other_folders_and_files_are_passed_over(tmp_path) -> None:
    made.write(tmp_path, made.cell(), SOME)
    made.expect(tmp_path, [made.cell()])
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / ".hidden" / "record.json").write_text("{")
    runs, complaints = load(tmp_path)
    assert (len(runs), complaints) == (1, [])


def test_no_results_folder_is_a_mistake_of_the_user(tmp_path) -> None:
    with pytest.raises(UsageError, match="no results folder"):
        load(tmp_path / "nowhere")


def test_a_record_torn_at_any_length_is_named_and_left_out(tmp_path) -> None:
    folder = made.write(tmp_path, made.cell("mr2"), SOME, metrics={"overall": 58.3})
    whole = (folder / "record.json").read_bytes()
    for length in range(len(whole.rstrip())):
        (folder / "record.json").write_bytes(whole[:length])
        runs, (complaint,) = load(tmp_path)
        assert runs == []
        assert complaint.startswith(f"{folder / 'record.json'}: ")
        assert complaint.endswith("the record is left out")
    made.write(tmp_path, made.cell("sam"), SOME)
    assert [run.record.cell.method.name for run in load(tmp_path)[0]] == ["sam"]
    (folder / "record.json").write_bytes(whole)
    assert len(load(tmp_path)[0]) == 2


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"cell": 1}', '"a"', "[" * 100_000])
def test_json_that_is_no_record_is_named_and_left_out(tmp_path, text) -> None:
    (tmp_path / "cell").mkdir()
    (tmp_path / "cell" / "record.json").write_text(text)
    runs, (complaint,) = load(tmp_path)
    assert runs == []
    assert "torn, or not a record" in complaint


def test_predictions_torn_at_any_length_are_named_and_left_out(tmp_path) -> None:
    folder = made.write(tmp_path, made.cell(), SOME)
    whole = (folder / "predictions.npz").read_bytes()
    for length in range(0, len(whole), 97):
        (folder / "predictions.npz").write_bytes(whole[:length])
        runs, (complaint,) = load(tmp_path)
        assert runs == []
        assert "predictions.npz: changed after the run" in complaint
    (folder / "predictions.npz").unlink()
    assert "predictions.npz: No such file" in load(tmp_path)[1][0]


def edit(path, change) -> None:
    values = json.loads(path.read_text())
    change(values)
    path.write_text(json.dumps(values))


def test_an_edited_record_is_noticed(tmp_path) -> None:
    changes = [
        lambda v: v["metrics"].update(hard=99.0),
        lambda v: v["class_accuracy"].__setitem__(0, 0.99),
        lambda v: v["cell"].update(seed=7),
        lambda v: v.update(own_digest="0" * 64),
    ]
    for change in changes:
        path = made.write(tmp_path, made.cell(), SOME) / "record.json"
        edit(path, change)
        runs, complaints = load(tmp_path)
        assert runs == []
        assert complaints == [
            f"{path}: the record was edited after the run that wrote it; the record is left out"
        ]


def test_a_field_that_is_missing_or_unknown_is_named(tmp_path) -> None:
    path = made.write(tmp_path, made.cell(), SOME) / "record.json"
    edit(path, lambda v: v.pop("metrics"))
    assert "metrics: Field required" in load(tmp_path)[1][0]
    path = made.write(tmp_path, made.cell(), SOME) / "record.json"
    edit(path, lambda v: v.update(extra=1))
    assert "extra: Extra inputs are not permitted" in load(tmp_path)[1][0]


def test_a_record_of_another_protocol_is_named_even_if_its_form_is_unknown(tmp_path) -> None:
    made.write(tmp_path, made.cell("sam", protocol=PROTOCOL + 1), SOME)
    (tmp_path / "old").mkdir()
    old = {"cell": {"protocol": 0}, "numbers": []}
    (tmp_path / "old" / "record.json").write_text(json.dumps(old))
    runs, complaints = load(tmp_path)
    assert runs == []
    assert sorted(text.split(": ")[1][:13] for text in complaints) == [
        "of protocol 0",
        f"of protocol {PROTOCOL + 1}",
    ]


def test_the_newest_of_several_records_of_a_cell_counts_once(tmp_path) -> None:
    cell = made.cell("mr2", 3)
    for month, (folder, hard) in enumerate([("a", 0.25), ("c", 0.75), ("b", 0.5)], 1):
        finished = {"finished": f"2026-{month:02}-01T00:00:00+00:00"}
        predictions = made.exactly(LABEL, [1, 1, hard])
        made.write(tmp_path, cell, predictions, folder, provenance=finished)
    (run,), (complaint,) = load(tmp_path)
    assert run.accuracy[2] == 0.5
    assert complaint == (
        f"{tmp_path / 'b'}: 3 records of this cell; this newest one counts, not a, c"
    )


def test_a_torn_newer_record_does_not_displace_a_complete_one(tmp_path) -> None:
    made.write(tmp_path, made.cell(), SOME, "a")
    late = {"finished": "2027-01-01T00:00:00+00:00"}
    folder = made.write(tmp_path, made.cell(), SOME, "b", provenance=late)
    (folder / "record.json").write_text("{")
    runs, _ = load(tmp_path)
    assert [run.folder.name for run in runs] == ["a"]


def test_matrices_are_read_and_torn_ones_named(tmp_path) -> None:
    made.expect(tmp_path, [made.cell()], "good")
    (tmp_path / "matrices" / "bad.json").write_text("{")
    matrices, (complaint,) = load_matrices(tmp_path)
    assert list(matrices) == ["good"]
    assert complaint.startswith(str(tmp_path / "matrices" / "bad.json"))
    assert complaint.endswith("the matrix is left out")
    assert load_matrices(tmp_path / "nowhere") == ({}, [])


def test_an_unreadable_predictions_file_is_an_error_of_its_own(tmp_path) -> None:
    folder = made.write(tmp_path, made.cell(), SOME)
    (run,), _ = load(tmp_path)
    (folder / "predictions.npz").write_bytes(b"gone")
    with pytest.raises(ClassfairError, match=r"predictions\.npz"):
        run.predictions()
