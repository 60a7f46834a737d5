"""The verbs over a results folder: what they print and how they end."""

import json

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill

from classfair.cli import run


@pytest.fixture
def call(capsys):
    """Return a function that runs a command and returns exit code, output and errors."""

    def called(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return called


def test_compare_prints_a_table_of_differences(call, tmp_path) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    add_ranking_runs(tmp_path, ERM)
    code, out, err = call("compare", tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("made against ERM\n")
    assert "no trade-off" in out
    assert "MR2" in out
    assert "Primary: overall, and hard under reference_crossfit" in " ".join(out.split())


def test_compare_as_json(call, tmp_path) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    code, out, _ = call("compare", tmp_path, "--json", "--ranking", "own", "--baseline", "mr2")
    assert code == 0
    (told,) = json.loads(out)
    assert (told["baseline"], told["ranking"], told["seeds"]) == ("MR2", "own", [0, 1, 2])
    (row,) = told["rows"]
    hard = row["differences"]["hard"]
    assert np.mean(hard["by_seed"]) == pytest.approx(hard["mean"])
    assert len(hard["signs"]) == 3
    assert hard["low"] <= hard["mean"] <= hard["high"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--baseline", "emr"), "--baseline: no row of 'emr'; did you mean"),
        (("--ranking", "onw"), "--ranking: no ranking 'onw'; did you mean own"),
        (("--experiment", "quik"), "no matrix 'quik'; did you mean quick"),
    ],
)
def test_mistakes_of_compare_exit_2(call, tmp_path, arguments, told) -> None:
    made.expect(tmp_path, fill(tmp_path, erm=ERM, mr2=MR2))
    code, out, err = call("compare", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_a_record_left_out_is_named_on_standard_error(call, tmp_path) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    made.write(tmp_path, made.cell("sam"), made.exactly(LABEL, ERM[0]))
    torn = next(tmp_path.glob("sam--*")) / "record.json"
    torn.write_text(torn.read_text()[:-40])
    code, out, err = call("compare", tmp_path)
    assert code == 0
    assert "MR2" in out
    assert f"{torn}: torn" in err


def test_report_with_the_papers_numbers_and_claims(call, tmp_path) -> None:
    fill(tmp_path / "r", erm=ERM, mr2=MR2)
    code, out, err = call("report", tmp_path / "r", "--paper", "--out", tmp_path / "out")
    assert code == 0, err
    assert "The paper's claims" in out
    text = (tmp_path / "out" / "paper.md").read_text()
    assert "| MR2 raises hard |" in text
    assert "not run" in text
    code, out, _ = call("report", tmp_path / "r", "--paper", "--json")
    assert [table["name"] for table in json.loads(out)][-1] == "claims"
