"""The generated part of a README from committed results."""

import shutil
from pathlib import Path

import made_records as made
import numpy as np
from made_tables import ERM, MR2, fill

from classfair_leaderboard.archive import About, archived, load_archive, save
from classfair_leaderboard.exporting import export
from classfair_leaderboard.readme import section

COMMITTED = Path(__file__).parents[2] / "leaderboard" / "results"


def rows(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("| ")]


def test_one_more_method_leaves_every_other_row_of_the_committed_tables_as_it_is(
    tmp_path, plugins
) -> None:
    """A better method, given by somebody else, on the recipe of the first committed run."""
    results = tmp_path / "results"
    shutil.copytree(COMMITTED, results)
    before = rows(section(results, plugins))
    archive = load_archive(min(results.glob("*.records.jsonl")))
    first = next(run.record for run in archive.runs if not run.record.cell.ranking_run)
    answers = archive.runs[0].answers
    assert answers is not None
    given = []
    for seed in range(3):
        update = {"method": made.method("brand_new"), "seed": seed, "key": f"{seed}" * 64}
        cell = first.cell.model_copy(update=update)
        right = np.random.default_rng(seed).random(len(answers.label)) < 0.95
        predictions = made.predictions(answers.label, right)
        given.append(archived(made.record(cell, predictions, {}), predictions))
    save(results / "theirs.records.jsonl", given, [], About("A. Nother", "recomputed", "here"))
    text = section(results, plugins)
    after = rows(text)
    assert [row for row in after if not row.startswith("| BRAND_NEW")] == before
    assert len(after) == len(before) + 1
    assert "BRAND_NEW: given by A. Nother; recomputed (here)." in text


def test_what_tables_were_run_on_is_said(tmp_path, plugins) -> None:
    fill(tmp_path / "r", erm=ERM, mr2=MR2)
    export(tmp_path / "r", tmp_path / "a.records.jsonl")
    text = section(tmp_path, plugins)
    assert "6 runs on a CPU; threads a run: ?; torch 2.14.1; commit unknown; 2026-01-01;" in text
    assert text.startswith("## made\n")


def test_rows_have_no_marks_and_words_have_them(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    text = section(tmp_path, plugins)
    assert not any("**" in row or "◆" in row for row in rows(text))
    assert "Pareto set of the headline and hard: " in text
