"""Tables as CSV, for programs: every column, exact values, empty where there is none.

One line a row of a table. A column of numbers becomes ``KEY_mean`` and ``KEY_std``, whose text is
the shortest that reads back as the same float64. All tables share one header.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence

from classfair_registry import hookimpl
from classfair_registry.specs import ReporterSpec
from classfair_registry.tables import Column, Entry, Table


def render(tables: Sequence[Table]) -> str:
    """Return the header and one line a row."""
    columns = list({column.key: column for table in tables for column in table.data}.values())
    fields = ["table", *(name for column in columns for name in _names(column))]
    text = io.StringIO()
    writer = csv.DictWriter(text, fields, restval="", lineterminator="\n")
    writer.writeheader()
    for table in tables:
        for row in table.rows:
            values = {"table": table.name}
            for column in table.data:
                values |= _values(column, row.get(column.key, Entry()))
            writer.writerow(values)
    return text.getvalue()


def _names(column: Column) -> tuple[str, ...]:
    return (column.key,) if column.text else (f"{column.key}_mean", f"{column.key}_std")


def _values(column: Column, entry: Entry) -> dict[str, str]:
    if column.text:
        return {column.key: entry.text or ""}
    numbers = (entry.mean, entry.std)
    texts = ("" if number is None else repr(float(number)) for number in numbers)
    return dict(zip(_names(column), texts, strict=True))


@hookimpl
def classfair_reporters() -> Iterable[ReporterSpec]:
    """Provide it."""
    yield ReporterSpec("csv", ".csv", render, "CSV with exact values, one line a row.")
