"""The speed benchmark runs and writes what it says; how fast anything is, is no test's business."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmark"
ROW_KEYS = {
    "name",
    "figure",
    "rival",
    "threads",
    "target",
    "ours",
    "rival_seconds",
    "ratio",
    "curve",
    "value",
    "met",
    "note",
    "error",
}


@pytest.fixture(autouse=True)
def _importable(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARK))


def test_a_quick_look_at_one_row_prints_a_table_and_writes_json(tmp_path):
    out = tmp_path / "speed.json"
    words = ["--quick", "--only", "augm*", "--threads", "1", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARK / "speed"), *words], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(out.read_text())
    assert (told["quick"], told["threads"]) == (True, 1)
    assert told["machine"]["device_name"] in done.stdout
    (row,) = told["rows"]
    assert set(row) == ROW_KEYS
    assert (row["name"], row["error"], row["threads"]) == ("augment", "", 1)
    assert row["target"] == {"of": "speedup", "bound": 8}
    assert row["met"] == (row["value"] >= 8)
    for side in ("ours", "rival_seconds", "ratio"):
        spread = row[side]
        assert 0 < spread["low"] <= spread["median"] <= spread["high"]
        assert spread["n"] > 1
    headings = ("figure", "ours", "limit or rival", "ratio", "target", "met?")
    assert all(heading in done.stdout for heading in headings)
    assert row["figure"] in done.stdout


def test_pairs_alternate_their_order():
    from speed.measure import pairs

    seen = []
    timed = pairs(lambda: seen.append("ours"), lambda: seen.append("rival"), 2, warm=0)
    assert seen == ["ours", "rival", "rival", "ours"]
    assert len(timed) == 2


def test_the_ratio_is_the_median_of_the_pairs_own_ratios():
    from speed.measure import compared

    found = compared([(2.0, 1.0), (30.0, 10.0), (4.0, 4.0)], units=2)
    assert found.ratio.median == 2
    assert (found.ours.median, found.rival.median) == (2, 2)


def test_a_speedup_is_met_from_above_and_a_ratio_from_below():
    from speed.figures import Target
    from speed.measure import compared

    half = compared([(1.0, 2.0)])
    assert Target(2, "speedup").met(half)
    assert not Target(2.1, "speedup").met(half)
    assert Target(0.5).met(half)
    assert not Target(0.4).met(half)
    assert Target(1, "seconds").met(half)
    assert not Target(0.9, "seconds").met(half)


def test_growth_is_the_steepest_over_a_factor_of_four():
    from speed.figures import Target
    from speed.measure import Measured, Spread

    one = Spread.of([1.0])
    # Doubling from 2 to 4 costs eight times, but from 1 to 4 sixteen: a square.
    squared = Measured(one, curve=((1, 1.0), (2, 2.0), (4, 16.0), (16, 32.0)))
    assert squared.exponent == pytest.approx(2)
    assert Target(2.1, "exponent").met(squared)
    assert not Target(1.1, "exponent").met(squared)


def test_a_row_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch, capsys):
    from speed import bench
    from speed.figures import Row, Target
    from speed.measure import compared

    def fails(effort):
        raise ValueError("no such thing")

    made = [
        Row("bad", "a thing", "none", Target(1), fails),
        Row("good", "another", "itself", Target(1), lambda effort: compared([(1.0, 1.0)])),
    ]
    monkeypatch.setattr(bench, "all_rows", lambda: made)
    monkeypatch.setattr(bench.torch, "set_num_threads", lambda n: None)
    out = tmp_path / "speed.json"
    assert bench.main(["--out", str(out)]) == 1
    bad, good = json.loads(out.read_text())["rows"]
    assert (bad["error"], bad["met"]) == ("ValueError: no such thing", None)
    assert (good["error"], good["met"]) == ("", True)
    assert "not measured" in capsys.readouterr().out


def test_a_pattern_that_matches_nothing_lists_the_rows(capsys):
    from speed import bench

    assert bench.main(["--only", "nothing"]) == 2
    names = capsys.readouterr().out.split()
    assert {"step.erm.bf16", "loss.mr2.128x100x64", "growth.classes.mr2"} <= set(names)
    assert len(names) == len(set(names))
