"""Reporters on a table that holds every kind of entry."""

import csv
import dataclasses
import io
import subprocess
import sys

import pytest

from classfair_plugins.reporters import csv_table, markdown
from classfair_registry.tables import Column, Entry, Table

COLUMNS = (
    Column("method", "method", text=True),
    Column("overall", "overall", "%", "higher"),
    Column("gap", "gap", "points", "lower"),
    Column("seeds", "n", text=True, only="reading"),
    Column("n", "n", text=True, only="data"),
    Column("hidden", "hidden", only="data"),
)
MEAN, STD = 200 / 3, 0.1 + 0.2
TABLE = Table(
    name="digits--1a2b3c4d",
    title="digits_resnet8",
    columns=COLUMNS,
    rows=(
        {
            "method": Entry(text="ERM"),
            "overall": Entry(MEAN, STD, 3, bold=True),
            "gap": Entry(-0.001, n=1),
            "seeds": Entry(text="3"),
            "n": Entry(text="3"),
            "hidden": Entry(1e-17, 2e300, 3),
        },
        {"method": Entry(text="a|b *c*\n<d>"), "overall": Entry(n=2), "seeds": Entry(text="2/3")},
    ),
    caption="Shows the machinery,\nnot the methods.",
    footnotes=("One note.", "Another | note."),
)


def test_markdown_is_as_expected_to_the_letter() -> None:
    assert markdown.render([TABLE]) == (
        "## digits_resnet8\n"
        "\n"
        "Shows the machinery, not the methods.\n"
        "\n"
        "| method | overall ↑ | gap ↓ | n |\n"
        "| :--- | ---: | ---: | :--- |\n"
        "| ERM | **66.67 ± 0.30** | 0.00 | 3 |\n"
        "| a\\|b \\*c\\* \\<d\\> |  |  | 2/3 |\n"
        "\n"
        "- One note.\n"
        "- Another \\| note.\n"
    )


def test_markdown_of_several_tables_keeps_their_order() -> None:
    text = markdown.render([TABLE, Table("b", "second", COLUMNS, ())])
    assert text.index("## digits_resnet8") < text.index("## second")


def test_markdown_lines_do_not_depend_on_other_rows() -> None:
    wider = ({"method": Entry(text="a much longer name")}, *TABLE.rows)
    before = markdown.render([TABLE]).splitlines()
    after = markdown.render([dataclasses.replace(TABLE, rows=wider)]).splitlines()
    assert [line for line in after if "longer" not in line] == before


def test_csv_numbers_read_back_exactly() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table.render([TABLE]))))
    assert float(rows[0]["overall_mean"]) == MEAN
    assert float(rows[0]["overall_std"]) == STD
    assert float(rows[0]["hidden_mean"]) == 1e-17
    assert float(rows[0]["hidden_std"]) == 2e300


def test_csv_has_every_column_for_data_and_none_for_reading() -> None:
    header = csv_table.render([TABLE]).splitlines()[0]
    assert (
        header == "table,method,overall_mean,overall_std,gap_mean,gap_std,n,hidden_mean,hidden_std"
    )


def test_csv_is_empty_where_there_is_no_value() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table.render([TABLE]))))
    assert rows[0]["gap_std"] == ""
    assert rows[1]["overall_mean"] == rows[1]["n"] == ""


def test_csv_keeps_text_with_separators_and_line_breaks() -> None:
    rows = list(csv.DictReader(io.StringIO(csv_table.render([TABLE]))))
    assert rows[1]["method"] == "a|b *c*\n<d>"
    assert {row["table"] for row in rows} == {"digits--1a2b3c4d"}


def test_csv_of_tables_with_other_columns_has_the_union() -> None:
    other = Table("b", "b", (Column("extra", "extra"),), ({"extra": Entry(1.0)},))
    rows = list(csv.DictReader(io.StringIO(csv_table.render([TABLE, other]))))
    assert rows[2]["extra_mean"] == "1.0"
    assert rows[0]["extra_mean"] == rows[2]["overall_mean"] == ""


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        (Entry(), ("", "")),
        (Entry(12.345), ("12.35", "")),
        (Entry(12.0, 0.004), ("12.00", "0.00")),
        (Entry(-0.001), ("0.00", "")),
        (Entry(1.0, 2.0, text="none"), ("none", "")),
    ],
)
def test_entries_are_rounded_for_reading(entry: Entry, expected: tuple[str, str]) -> None:
    assert entry.rounded() == expected


def test_reporters_import_without_torch() -> None:
    code = (
        "import sys, classfair_plugins.reporters.markdown, classfair_plugins.reporters.csv_table;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
