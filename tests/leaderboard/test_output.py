"""Tables as files and in the terminal."""

import csv
import dataclasses
import io
import subprocess
import sys

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill
from rich.console import Console

from classfair_leaderboard import RANKINGS, Report, render_terminal, report, write
from classfair_leaderboard.marks import in_words
from classfair_registry.errors import UsageError
from classfair_registry.tables import Column, Entry, Table


@pytest.mark.parametrize("ranking", [None, *RANKINGS])
def test_adding_a_row_changes_no_other_row_by_a_byte(tmp_path, plugins, ranking) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    add_ranking_runs(tmp_path, ERM)
    before = files_of(report(tmp_path, plugins, ranking=ranking), tmp_path / "out", plugins)
    fill(tmp_path, sam=[[0.7, 0.7, 0.9, 0.3]] * 2)
    again = {"metrics": {"brand_new": 1.0}, "dataset": {"headline": "overall"}}
    made.write(tmp_path, made.cell("sam", 2), made.exactly(LABEL, [1, 1, 1, 1]), **again)
    after = files_of(report(tmp_path, plugins, ranking=ranking), tmp_path / "out", plugins)
    assert len(set(after["csv"]) - set(before["csv"])) == 1
    assert set(before["csv"]) <= set(after["csv"])
    assert set(before["md"]) <= set(after["md"])


def files_of(told: Report, out, plugins) -> dict[str, list[str]]:
    """Return the lines of the files by suffix. Marks compare rows, so they are said in words."""
    said = dataclasses.replace(told, tables=tuple(in_words(table) for table in told.tables))
    paths = write(said, out, plugins)
    lines = {path.suffix[1:]: path.read_text().splitlines() for path in paths}
    return lines | {"md": [line for line in lines["md"] if line.startswith("|")]}


def test_the_headline_is_the_data_sets_and_both_are_in_the_csv(tmp_path, plugins) -> None:
    dataset = {"headline": "mean_class", "title": "Pets"}
    uneven = np.repeat(np.arange(2), [9, 1])
    made.write(tmp_path, made.cell(), made.exactly(uneven, [1, 0]), dataset=dataset)
    told = report(tmp_path, plugins)
    assert [c.key for c in told.tables[0].reading][1] == "mean_class"
    write(told, tmp_path / "out", plugins)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "leaderboard.csv").read_text()))
    assert (row["overall_mean"], row["mean_class_mean"]) == ("90.0", "50.0")
    assert "Pets: 10 test images, 1 of the smallest class." in told.tables[0].caption


def test_csv_reads_back_exactly(tmp_path, plugins) -> None:
    fill(tmp_path, mr2=MR2)
    told = report(tmp_path, plugins)
    write(told, tmp_path / "out", plugins)
    (row,) = csv.DictReader(io.StringIO((tmp_path / "out" / "leaderboard.csv").read_text()))
    for column in told.tables[0].data:
        entry = told.tables[0].rows[0][column.key]
        if not column.text and entry.mean is not None:
            assert float(row[f"{column.key}_mean"]) == entry.mean


def test_files_are_written_whole_or_not_at_all(tmp_path, plugins, monkeypatch) -> None:
    fill(tmp_path, erm=ERM)
    told = report(tmp_path, plugins)
    out = tmp_path / "deep" / "out"
    paths = write(told, out, plugins)
    assert [path.name for path in paths] == ["leaderboard.md", "leaderboard.csv"]
    before = {path: path.read_bytes() for path in paths}
    broken = dataclasses.replace(told.tables[0], rows=({"hard": "not an entry"},))
    with pytest.raises(AttributeError):
        write(Report((broken,), ()), out, plugins)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_where_nothing_can_be_written_is_a_mistake_of_the_user(tmp_path, plugins) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        write(Report((), ()), tmp_path / "file", plugins)
    with pytest.raises(UsageError, match="no reporter 'latexx'"):
        write(Report((), ()), tmp_path / "out", plugins, ["latexx"])


def printed(tables, width: int) -> list[str]:
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(render_terminal(tables))
    return console.file.getvalue().splitlines()


def test_the_terminal_shows_mean_and_deviation_on_one_line_of_a_hundred(tmp_path, plugins) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    lines = printed(report(tmp_path, plugins).tables, 100)
    assert max(map(len, lines)) <= 100
    assert lines[0].strip() == "made"
    heading = "method overall ↑ easy ↑ medium ↑ hard ↑ gap ↓ worst ↑ n cost ↓"
    assert " ".join(lines[1].split()) == heading
    erm = "ERM 60.0 ± 0.0 85.0 ± 0.0 50.0 ± 10.0 20.0 ± 10.0 65.0 ± 10.0 20.0 ± 10.0 3 1.00"
    assert " ".join(lines[3].split()) == erm


@pytest.mark.parametrize("width", [80, 60, 40])
def test_a_narrower_terminal_cuts_no_number(tmp_path, plugins, width) -> None:
    fill(tmp_path, erm=ERM, mr2=MR2)
    lines = printed(report(tmp_path, plugins).tables, width)
    assert max(map(len, lines)) <= width
    assert "…" not in "\n".join(lines)
    text = " ".join(" ".join(lines).split())
    assert "ERM 60.0 85.0" in text
    assert "± 0.0 ± 0.0" in text
    assert ("Left out for want of width" in text) == (width < 70)


def test_the_terminal_shows_names_as_they_are_written(tmp_path, plugins) -> None:
    table = Table(
        "t",
        "[bold]t[/]",
        (Column("method", "method", text=True),),
        ({"method": Entry(text="[red]odd[/] :smile:")},),
    )
    text = "\n".join(printed([table], 80))
    assert "[bold]t[/]" in text
    assert "[red]odd[/] :smile:" in text


def test_the_leaderboard_imports_without_torch() -> None:
    code = "import sys, classfair_leaderboard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
