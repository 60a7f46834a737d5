"""Whole runs of the command line on real digits: hard stops, failures, and going on."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from classfair_registry.records import Record

MISBEHAVING = Path(__file__).with_name("misbehaving.py")
MATRIX = """\
name: small
recipes: [{base: digits_resnet8, name: small, epochs: 2, data: {fraction: 0.2}}]
methods: [METHODS]
seeds: [SEEDS]
"""


AT_A_TERMINAL = """
import signal, sys
from classfair.__main__ import main
signal.signal(signal.SIGINT, signal.default_int_handler)  # Ignored in background jobs.
sys.exit(main())
"""


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "classfair", *arguments, "--results", str(folder / "results")]


def written(folder: Path, methods: str, seeds: str = "0") -> str:
    folder.mkdir(exist_ok=True)
    path = folder / "small.yaml"
    path.write_text(MATRIX.replace("METHODS", methods).replace("SEEDS", seeds))
    return str(path)


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(folder, "run", *arguments, "--device", "cpu"), capture_output=True, text=True
    )


def digests(folder: Path) -> dict[str, str]:
    """Result digests by method and seed."""
    records = [Record.load(path) for path in (folder / "results").glob("*/record.json")]
    return {f"{r.cell.method.name} {r.cell.seed}": r.result_digest for r in records}


def cells_alive(folder: Path) -> list[int]:
    """Processes that hold a cell of the folder open, found by their logs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            targets = [str(file.readlink()) for file in (process / "fd").iterdir()]
        except OSError:
            continue
        if any(target.startswith(str(folder / "results")) for target in targets):
            found.append(int(process.name))
    return found


def test_a_run_killed_at_random_moments_ends_with_the_same_digests(tmp_path):
    methods = "erm, jtt, sam"
    assert run(tmp_path / "whole", written(tmp_path / "whole", methods)).returncode == 0
    killed = tmp_path / "killed"
    path = written(killed, methods)
    moments = random.Random(7)
    for _ in range(4):
        process = subprocess.Popen(
            command(killed, "run", path, "--device", "cpu"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(moments.uniform(1.5, 6))
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 60
    while cells_alive(killed) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert cells_alive(killed) == [], "a cell trains on after its runner was killed"
    done = run(killed, path)
    assert done.returncode == 0, done.stderr
    assert digests(killed) == digests(tmp_path / "whole")


def test_a_stopped_run_says_so_and_goes_on(tmp_path):
    path = written(tmp_path, "erm, sam", "0, 1")
    _, _, _, *arguments = command(tmp_path, "run", path, "--device", "cpu")
    process = subprocess.Popen(
        [sys.executable, "-c", AT_A_TERMINAL, *arguments], stderr=subprocess.PIPE, text=True
    )
    for line in process.stderr:
        if "finished" in line:
            process.send_signal(signal.SIGINT)
            break
    said = process.stderr.read()
    assert process.wait() == 130
    assert "same command" in said
    process.stderr.close()
    before = digests(tmp_path)
    assert before
    done = run(tmp_path, path)
    assert done.returncode == 0, done.stderr
    assert len(digests(tmp_path)) == 4
    assert before.items() <= digests(tmp_path).items()
    again = run(tmp_path, path)
    assert "4 of 4 cells are done already" in again.stderr
    assert again.stdout == done.stdout


def test_cells_that_fail_say_why_and_the_others_finish(tmp_path):
    path = written(tmp_path, "good, raises, hungry, diverges, exits, vanishes")
    done = run(tmp_path, path, "--plugin", str(MISBEHAVING))
    assert done.returncode == 1
    status = subprocess.run(
        [sys.executable, "-m", "classfair", "status", str(tmp_path / "results"), "--json"],
        capture_output=True,
        text=True,
    )
    values = json.loads(status.stdout)
    assert (values["done"], values["failed"]) == (1, 5)
    shown = subprocess.run(
        [sys.executable, "-m", "classfair", "status", str(tmp_path / "results")],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    ).stdout
    for reason in ("lost my way", "2 TiB", "loss became nan at step", "exit code 7", "exit code 9"):
        assert reason in shown, shown
    assert "good" in done.stdout.lower()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["quikstart"], "quickstart"),
        (["quickstart", "--only", "method=ermm"], "did you mean erm"),
        (["quickstart", "--set", "epoch=3"], "epochs"),
        (["quickstart", "--set", "epochs=many"], "epochs"),
        (["quickstart", "--set", "mr2.c_bra=1"], "c_bar"),
        (["no/such/file.yaml"], "no/such/file.yaml"),
        (["quickstart", "--plugin", "absent.py"], "absent.py"),
    ],
)
def test_a_mistake_ends_with_two_before_anything_runs(tmp_path, arguments, said):
    done = run(tmp_path, *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.fashion
def test_a_small_network_learns_fashion(tmp_path):
    done = run(
        tmp_path,
        *("fashion_quick", "--only", "seed=0"),
        *("--set", "epochs=5", "--set", "trace.points=0"),
    )
    assert done.returncode == 0, done.stderr
    records = [Record.load(p) for p in (tmp_path / "results").glob("*/record.json")]
    accuracy = {record.cell.method.name: record.metrics["overall"] for record in records}
    assert accuracy["erm"] > 75
    assert accuracy["mr2"] > 60
