"""``status`` and ``doctor``: what is there, and what is wrong with it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from commands import TOY, Commands
from toys import TOY_MATRIX, expanded, finish

from classfair import doctor
from classfair.results import Results
from classfair_registry.records import Failure


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Return a folder with a done, a failed, a stopped and a queued cell, and a skipped one."""
    root = tmp_path / "results"
    matrix = TOY_MATRIX.replace("[erm, ", "[erm, careful, ")
    expansion = expanded(tmp_path, matrix)
    Results(root).prepare()
    Results(root).expect(expansion.info)
    finish(root, expansion.cells[0])
    failed = Results(root).begin(expansion.cells[1])
    Failure(kind="oom", message="no room for it").save(failed / "failure.json")
    (failed / "log.txt").write_text("...\n")
    (Results(root).begin(expansion.cells[2]) / "checkpoint.pt").write_bytes(b"...")
    return root


def test_status_counts_the_cells_and_gives_reasons(command: Commands, results: Path) -> None:
    told = command.json("status", str(results))
    counts = {"done": 1, "failed": 1, "running": 0, "queued": 1, "preempted": 1, "skipped": 2}
    assert {kind: told[kind] for kind in counts} == counts
    failed = next(cell for cell in told["cells"] if cell["state"] == "failed")
    assert (failed["method"], failed["seed"]) == ("erm", 1)
    assert (failed["reason"], failed["message"]) == ("oom", "no room for it")
    assert Path(failed["log"]).read_text() == "...\n"


def test_status_says_in_a_line_why_a_cell_failed(command: Commands, results: Path) -> None:
    lines = command.out("status", str(results)).splitlines()
    assert lines[0] == "toys: 1 done, 1 failed, 0 running, 1 queued, 1 preempted, 2 skipped"
    assert lines[1].startswith("failed: erm on base, seed 1: oom: no room for it (log: ")
    assert lines[2].startswith("skipped: careful on base, seed 0: careful reads a validation")


def test_status_of_a_torn_record_names_it(command: Commands, results: Path) -> None:
    record = next(results.glob("erm--base--s0--*/record.json"))
    record.write_text("{")
    out = command.out("status", str(results))
    assert f"left out: erm on base, seed 0: {record}" in out
    assert "toys: 0 done" in out


def test_status_takes_the_folder_from_the_environment(
    command: Commands, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command.json("status")["done"] == 1
    monkeypatch.setenv("CLASSFAIR_RESULTS", str(results / "elsewhere"))
    assert "no such folder" in command.mistake("status")


def test_watch_ends_when_nothing_is_left(command: Commands, results: Path) -> None:
    matrix = json.loads((results / "matrices" / "toys.json").read_text())
    matrix["cells"] = matrix["cells"][:2]
    (results / "matrices" / "toys.json").write_text(json.dumps(matrix))
    assert "1 done, 1 failed" in command.out("status", str(results), "--watch")


def test_status_of_one_matrix_is_asked_for_by_name(command: Commands, results: Path) -> None:
    assert command.json("status", str(results), "--experiment", "toys")["done"] == 1
    message = command.mistake("status", str(results), "--experiment", "toy")
    assert "no matrix 'toy'; did you mean toys" in message


def test_status_of_an_empty_folder_says_so(command: Commands, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert command.out("status", "empty") == "No matrix was run into this folder.\n"


# -- doctor ------------------------------------------------------------------------------------


def answering(monkeypatch: pytest.MonkeyPatch, **devices: Any) -> None:
    told = {"cuda": "13.0", "names": [], "memory": [], **devices}
    answer = SimpleNamespace(stdout=f"a warning\n{json.dumps(told)}\n")
    monkeypatch.setattr(doctor.subprocess, "run", lambda *_, **__: answer)


def test_doctor_finds_the_parts_and_ends_well(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch, names=["H200"], memory=[150 * 2**30])
    found = {entry["topic"]: entry for entry in command.json("doctor", *TOY)}
    for topic in ("Python", "torch", "torchvision", "memory", "disk", "data set digits"):
        assert not found[topic]["problem"]
    assert found["accelerators"]["text"] == "H200 (150 GiB); CUDA 13.0"
    assert "from outside: toy_plugin" in found["plugins"]["text"]
    assert "local" in found["launchers"]["text"]


def test_doctor_names_a_broken_plugin_and_ends_with_exit_code_1(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    answering(monkeypatch)
    (command.folder / "broken.py").write_text("raise RuntimeError('no luck')\n")
    code, out, _ = command("doctor", "--plugin", "broken.py")
    assert code == 1
    assert "PROBLEM: " in out
    assert "RuntimeError: no luck" in out
    assert "none that torch can use; cells run on the CPU" in out


def test_doctor_says_that_torch_does_not_import(
    command: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise subprocess.CalledProcessError(1, "python", stderr="...\nImportError: no operator nms")

    monkeypatch.setattr(doctor.subprocess, "run", fails)
    code, out, _ = command("doctor")
    assert code == 1
    assert "no: ImportError: no operator nms; install a torch and a torchvision of one" in out


def test_torch_and_torchvision_really_fit_together() -> None:
    imports, devices = doctor._torch()
    assert not imports.problem, imports.text
    assert devices.topic == "accelerators"
