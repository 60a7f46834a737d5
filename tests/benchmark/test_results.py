"""What a results folder says of its cells, whatever lies in it."""

import subprocess
import sys
import textwrap
from pathlib import Path

import fake_cell
import pytest

from classfair.results import Busy, Results, is_running, locked
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.records import Failure, Record, Skipped


@pytest.fixture
def results(tmp_path):
    results = Results(tmp_path / "results")
    results.prepare()
    return results


@pytest.fixture
def cell():
    return fake_cell.make()


def finished(results, cell):
    folder = results.begin(cell)
    fake_cell.finish(folder, cell)
    return folder


def test_a_cell_without_files_is_queued(results, cell):
    state = results.state(cell)
    assert (state.kind, state.record, state.complaint) == ("queued", None, "")


def test_a_valid_record_is_done_and_comes_with_the_state(results, cell):
    finished(results, cell)
    state = results.state(cell, verify=True)
    assert state.kind == "done"
    assert state.record.cell == cell


@pytest.mark.parametrize("content", ["", "{", "{}", "[]", "null"])
def test_a_torn_record_is_no_record_and_is_named(results, cell, content):
    folder = finished(results, cell)
    (folder / "record.json").write_text(content)
    state = results.state(cell)
    assert state.kind == "queued"
    assert str(folder / "record.json") in state.complaint


def test_an_edited_record_does_not_count(results, cell):
    folder = finished(results, cell)
    path = folder / "record.json"
    path.write_text(path.read_text().replace('"overall": 0.5', '"overall": 0.9'))
    state = results.state(cell)
    assert state.kind == "queued"
    assert "edited" in state.complaint


def test_the_whole_key_must_match_not_only_the_part_in_the_folder_name(results, cell):
    twin = cell.model_copy(update={"key": cell.key[:8] + "0" * 56})
    assert twin.folder == cell.folder
    finished(results, cell)
    state = results.state(twin)
    assert state.kind == "queued"
    assert "another cell" in state.complaint


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_bytes(b"")])
def test_a_record_whose_predictions_are_gone_does_not_count(results, cell, damage):
    folder = finished(results, cell)
    damage(folder / "predictions.npz")
    state = results.state(cell)
    assert state.kind == "queued"
    assert "predictions.npz" in state.complaint


def test_changed_predictions_are_found_when_asked_to_verify(results, cell):
    folder = finished(results, cell)
    (folder / "predictions.npz").write_bytes(b"other")
    assert results.state(cell).kind == "done"
    assert "predictions.npz" in results.state(cell, verify=True).complaint


def test_a_record_may_not_name_files_elsewhere(results, cell, tmp_path):
    folder = finished(results, cell)
    (tmp_path / "outside.npz").write_bytes(b"x")
    record = Record.load(folder / "record.json")
    record = record.model_copy(update={"digests": {"../../outside.npz": "0"}})
    record.sealed().save(folder / "record.json")
    assert "leads out" in results.state(cell).complaint


def test_a_link_out_of_the_results_folder_is_not_followed(results, cell, tmp_path):
    elsewhere = Results(tmp_path / "elsewhere")
    elsewhere.prepare()
    (results.root / cell.folder).symlink_to(finished(elsewhere, cell))
    with pytest.raises(UsageError, match="leads out"):
        results.state(cell)


def test_a_linked_record_is_not_followed(results, cell, tmp_path):
    folder = finished(results, cell)
    (folder / "record.json").rename(tmp_path / "record.json")
    (folder / "record.json").symlink_to(tmp_path / "record.json")
    state = results.state(cell)
    assert state.kind == "queued"
    assert "leads out" in state.complaint


def test_a_failure_gives_its_kind_and_message(results, cell):
    Failure(kind="oom", message="80 GiB").save(results.begin(cell) / "failure.json")
    state = results.state(cell)
    assert (state.kind, state.reason, state.message) == ("failed", "oom", "80 GiB")


def test_a_torn_failure_is_still_a_failure(results, cell):
    (results.begin(cell) / "failure.json").write_text("{")
    state = results.state(cell)
    assert (state.kind, state.reason) == ("failed", "error")
    assert "failure.json" in state.message


def test_a_checkpoint_without_a_record_is_preempted(results, cell):
    (results.begin(cell) / "checkpoint.pt").write_bytes(b"x")
    assert results.state(cell).kind == "preempted"


def test_a_held_lock_is_running_even_beside_an_old_failure(results, cell):
    folder = results.begin(cell)
    Failure(kind="oom", message="80 GiB").save(folder / "failure.json")
    with locked(folder):
        assert results.state(cell).kind == "running"
    assert results.state(cell).kind == "failed"


def test_another_try_keeps_the_checkpoint_and_the_log_alone(results, cell):
    folder = results.begin(cell)
    for name in ("checkpoint.pt", "log.txt", "failure.json", "progress.json", "record.json"):
        (folder / name).write_text("{}")
    (folder / ".checkpoint.pt.x1y2.part").write_text("torn")
    results.begin(cell)
    left = {"cell.json", "checkpoint.pt", "log.txt", "record.json.rejected"}
    assert {path.name for path in folder.iterdir()} == left
    assert results.state(cell).kind == "preempted"


def test_a_second_process_cannot_have_the_lock(results, cell):
    folder = results.begin(cell)
    with locked(folder), pytest.raises(Busy, match="another process"), locked(folder, wait=0.1):
        pytest.fail("got the lock twice")
    with locked(folder, wait=0):
        assert is_running(folder)
    assert not is_running(folder)


def test_the_lock_waits_for_a_dying_predecessor_and_vanishes_with_it(results, cell):
    folder = results.begin(cell)
    code = textwrap.dedent("""
        import sys, time, os, pathlib
        from classfair.results import locked
        with locked(pathlib.Path(sys.argv[1])):
            print("held", flush=True)
            time.sleep(0.3)
            os.kill(os.getpid(), 9)
    """)
    with subprocess.Popen([sys.executable, "-c", code, folder], stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert is_running(folder)
        with locked(folder):
            assert holder.wait() == -9


def test_a_lock_is_not_inherited_by_programs_that_its_holder_starts(results, cell):
    folder = results.begin(cell)
    with locked(folder):
        child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with child:
        assert not is_running(folder)
        child.kill()


def test_asking_whether_a_cell_runs_makes_no_file(results, cell):
    assert not is_running(results.root / cell.folder)
    assert not (results.root / cell.folder).exists()


def test_a_claim_is_exclusive_until_released(results, cell):
    claim = results.claim(cell)
    assert claim is not None
    assert results.claim(cell) is None
    claim.release()
    claim.release()
    again = results.claim(cell)
    assert again is not None
    again.release()


def test_a_running_cell_cannot_be_claimed(results, cell):
    with locked(results.begin(cell)):
        assert results.claim(cell) is None
    claim = results.claim(cell)
    assert claim is not None
    claim.release()


def test_counts_cover_all_matrices_and_count_a_shared_cell_once(results):
    shared, other, failed = (fake_cell.make(seed=seed) for seed in range(3))
    skip = Skipped(method="a", recipe="b", seed=0, why="no encoder")
    results.expect(fake_cell.matrix(shared, other, name="one", skipped=[skip]))
    results.expect(fake_cell.matrix(shared, failed, name="two", skipped=[skip]))
    finished(results, shared)
    Failure(kind="oom", message="").save(results.begin(failed) / "failure.json")
    expected = {"done": 1, "failed": 1, "running": 0, "queued": 1, "preempted": 0, "skipped": 1}
    assert results.counts() == expected
    assert results.counts("one") == expected | {"failed": 0}


def test_an_unknown_matrix_is_an_error_with_near_names(results):
    results.expect(fake_cell.matrix(name="quickstart"))
    assert results.names() == ["quickstart"]
    with pytest.raises(UsageError, match="did you mean quickstart"):
        results.matrix("quickstrat")


@pytest.mark.parametrize("name", ["../escape", "a/b", ".hidden", "", "x" * 101])
def test_a_matrix_name_stays_inside_the_folder(results, name):
    with pytest.raises(UsageError, match="matrix name"):
        results.expect(fake_cell.matrix(name=name))


def test_a_matrix_that_cannot_be_read_is_named(results):
    (results.root / "matrices" / "torn.json").write_text("{")
    with pytest.raises(ClassfairError, match=r"torn\.json"):
        results.cells()


def test_a_file_in_place_of_the_folder_is_a_usage_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a folder"):
        Results(tmp_path / "file")
    with pytest.raises(UsageError, match="Not a directory"):
        Results(tmp_path / "file" / "below").prepare()


def test_a_folder_that_cannot_be_made_is_a_usage_error():
    with pytest.raises(UsageError, match="--results /proc/results: "):
        Results(Path("/proc/results")).prepare()


def test_looking_at_a_folder_that_is_not_there_makes_nothing(tmp_path, cell):
    results = Results(tmp_path / "none")
    assert results.names() == []
    assert results.counts()["queued"] == 0
    assert results.state(cell).kind == "queued"
    assert not results.root.exists()
