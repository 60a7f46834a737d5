"""Putting results folders together and tidying them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Commands
from toys import TOY_MATRIX, expanded, finish

from classfair.housekeeping import find_waste, merge, remove
from classfair.results import Results, locked
from classfair_registry.errors import UsageError
from classfair_registry.records import CellInfo, Failure, Record


def cells_of(folder: Path, matrix: str = TOY_MATRIX) -> tuple[CellInfo, ...]:
    folder.mkdir(exist_ok=True)
    return tuple(expanded(folder, matrix).cells)


def filled(root: Path, folder: Path, chosen: slice = slice(None)) -> list[CellInfo]:
    expansion = expanded(folder)
    Results(root).prepare()
    Results(root).expect(expansion.info)
    cells = list(expansion.cells)[chosen]
    for cell in cells:
        finish(root, cell)
    return cells


def files(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


# -- merge ---------------------------------------------------------------------------------------


def test_cells_and_matrices_of_two_folders_come_together(tmp_path: Path) -> None:
    filled(tmp_path / "a", tmp_path, slice(2))
    filled(tmp_path / "b", tmp_path, slice(1, 4))
    done = merge([tmp_path / "a", tmp_path / "b"], tmp_path / "c")
    assert (len(done.copied), len(done.there), done.complaints) == (4, 1, ())
    results = Results(tmp_path / "c")
    assert results.counts()["done"] == 4
    assert {state.kind for _, state in results.states()} == {"done"}
    assert not list((tmp_path / "c").glob(".*"))


def test_merging_twice_changes_nothing(tmp_path: Path) -> None:
    filled(tmp_path / "a", tmp_path)
    merge([tmp_path / "a"], tmp_path / "b")
    before = files(tmp_path / "b")
    done = merge([tmp_path / "a"], tmp_path / "b")
    assert (done.copied, len(done.there)) == ((), 4)
    assert files(tmp_path / "b") == before


def test_another_result_of_a_cell_is_named_and_not_taken(tmp_path: Path) -> None:
    (cell,) = filled(tmp_path / "a", tmp_path, slice(1))
    filled(tmp_path / "b", tmp_path, slice(1))
    path = tmp_path / "b" / cell.folder / "record.json"
    mine = Record.load(path)
    mine.model_copy(update={"result_digest": "other", "own_digest": ""}).sealed().save(path)
    done = merge([tmp_path / "a"], tmp_path / "b")
    assert "has another result of this cell; not copied" in done.complaints[0]
    assert Record.load(path).result_digest == "other"


def test_a_record_that_was_edited_or_lost_a_file_is_not_copied(tmp_path: Path) -> None:
    first, second, third = filled(tmp_path / "a", tmp_path, slice(3))
    record = tmp_path / "a" / first.folder / "record.json"
    told = json.loads(record.read_text())
    told["metrics"]["overall"] = 99.0
    record.write_text(json.dumps(told))
    (tmp_path / "a" / second.folder / "predictions.npz").unlink()
    done = merge([tmp_path / "a"], tmp_path / "b")
    assert [Path(name).name for name in done.copied] == [third.folder]
    assert len(done.complaints) == 2


def test_a_cell_that_is_being_trained_is_left_alone(tmp_path: Path) -> None:
    (cell,) = filled(tmp_path / "a", tmp_path, slice(1))
    (tmp_path / "b" / cell.folder).mkdir(parents=True)
    with locked(tmp_path / "b" / cell.folder):
        done = merge([tmp_path / "a"], tmp_path / "b")
    assert "is being trained; not copied" in done.complaints[0]
    assert not (tmp_path / "b" / cell.folder / "record.json").exists()


def test_an_unfinished_attempt_gives_way_to_a_finished_cell(tmp_path: Path) -> None:
    (cell,) = filled(tmp_path / "a", tmp_path, slice(1))
    Failure(kind="oom", message="no room").save(
        Results(tmp_path / "b").begin(cell) / "failure.json"
    )
    merge([tmp_path / "a"], tmp_path / "b")
    assert Results(tmp_path / "b").state(cell).kind == "done"
    assert not (tmp_path / "b" / cell.folder / "failure.json").exists()


def test_a_matrix_of_both_has_the_cells_of_both(tmp_path: Path) -> None:
    filled(tmp_path / "a", tmp_path)
    longer = expanded(tmp_path, TOY_MATRIX.replace("[0, 1]", "[0, 1, 2]"))
    Results(tmp_path / "b").prepare()
    Results(tmp_path / "b").expect(longer.info)
    done = merge([tmp_path / "b"], tmp_path / "a")
    assert "2 cells added" in done.complaints[0]
    assert len(Results(tmp_path / "a").cells()) == 6


def test_mistakes_of_merge(tmp_path: Path) -> None:
    filled(tmp_path / "a", tmp_path, slice(1))
    with pytest.raises(UsageError, match="no results folder"):
        merge([tmp_path / "nowhere"], tmp_path / "b")
    with pytest.raises(UsageError, match="into itself"):
        merge([tmp_path / "a"], tmp_path / "a")


# -- prune ---------------------------------------------------------------------------------------


def wasted(root: Path) -> dict[str, str]:
    return {str(w.path.relative_to(root)): w.why for w in find_waste(root)}


def test_a_tidy_folder_has_no_waste(tmp_path: Path) -> None:
    filled(tmp_path / "r", tmp_path)
    assert find_waste(tmp_path / "r") == []


def test_what_nobody_needs_is_found_and_removed(tmp_path: Path) -> None:
    root = tmp_path / "r"
    done, failed, unfinished, _ = filled(root, tmp_path)
    results = Results(root)
    (root / done.folder / "checkpoint.pt").write_bytes(b"12345")
    (root / done.folder / "record.json.rejected").write_bytes(b"1")
    (root / done.folder / ".trace.npz.x.part").write_bytes(b"1")
    (root / "notes").mkdir()
    (root / "notes" / "mine.txt").write_text("kept")
    other = cells_of(tmp_path / "x", TOY_MATRIX.replace("slope: 2", "slope: 3"))[2]
    results.begin(other)
    again = finish(root, done.model_copy(update={"recipe_name": "a_former_name"}))
    assert wasted(root) == {
        f"{done.folder}/checkpoint.pt": "of a finished cell",
        f"{done.folder}/record.json.rejected": "a record that was put aside",
        f"{done.folder}/.trace.npz.x.part": "left by a killed writer",
        other.folder: "an unfinished attempt that no matrix expects",
        again.name: "an older record of a cell",
    }
    found = find_waste(root)
    assert remove(found) == sum(waste.size for waste in found) > 5
    assert find_waste(root) == []
    assert (root / "notes" / "mine.txt").exists()
    assert results.state(failed).kind == results.state(unfinished).kind == "done"


def test_an_expected_failure_and_a_running_cell_are_kept(tmp_path: Path) -> None:
    root = tmp_path / "r"
    cells = cells_of(tmp_path)
    filled(root, tmp_path, slice(0))
    Failure(kind="oom", message="no room").save(Results(root).begin(cells[0]) / "failure.json")
    assert find_waste(root) == []
    stray = cells_of(tmp_path / "x", TOY_MATRIX.replace("slope: 2", "slope: 3"))[2]
    folder = Results(root).begin(stray)
    with locked(folder):
        assert find_waste(root) == []
    assert list(wasted(root)) == [stray.folder]


def test_folders_that_no_run_made_are_never_touched(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "record.json.rejected").write_text("mine")
    assert find_waste(tmp_path) == []
    with pytest.raises(UsageError, match="no results folder"):
        find_waste(tmp_path / "nowhere")


def test_prune_removes_with_yes_alone(command: Commands, tmp_path: Path) -> None:
    root = tmp_path / "r"
    (cell, *_) = filled(root, tmp_path)
    waste = root / cell.folder / "checkpoint.pt"
    waste.write_bytes(b"12345")
    assert "--yes removes them" in command.out("results", "prune", str(root))
    assert waste.exists()
    told = command.json("results", "prune", str(root), "--yes")
    assert (told["removed"], told["waste"][0]["bytes"]) == (True, 5)
    assert not waste.exists()


def test_merge_on_the_command_line(command: Commands, tmp_path: Path) -> None:
    filled(tmp_path / "a", tmp_path)
    out = command.out("results", "merge", str(tmp_path / "a"), str(tmp_path / "b"))
    assert out.endswith("b: 4 cells copied, 0 were there.\n")
    code, _, err = command("results", "merge", str(tmp_path / "b"))
    assert code == 2
    assert "name at least one folder" in err
