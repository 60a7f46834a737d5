"""Tables as Markdown, for reading: two decimals, ``mean ± std``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from classfair_registry import hookimpl
from classfair_registry.specs import ReporterSpec
from classfair_registry.tables import Column, Entry, Table

_ARROWS = {"higher": " ↑", "lower": " ↓"}
_ESCAPES = str.maketrans({char: f"\\{char}" for char in "\\|*`<>[]"})


def render(tables: Sequence[Table]) -> str:
    """Return one section a table: heading, caption, table, footnotes."""
    return "\n".join(_section(table) for table in tables)


def _section(table: Table) -> str:
    parts = [f"## {_plain(table.title)}", _plain(table.caption), _grid(table)]
    parts.append("\n".join(f"- {_plain(note)}" for note in table.footnotes))
    return "\n\n".join(part for part in parts if part) + "\n"


def _grid(table: Table) -> str:
    """Return the lines of the table, not padded to equal widths.

    Padding to the widest entry, as table libraries do, would let a new row change every other line.
    """
    head = [_heading(column) for column in table.reading]
    rule = [":---" if column.text else "---:" for column in table.reading]
    rows = [[_cell(row.get(c.key, Entry())) for c in table.reading] for row in table.rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def _heading(column: Column) -> str:
    return _plain(column.title) + _ARROWS.get(column.better, "")


def _cell(entry: Entry) -> str:
    mean, std = entry.rounded()
    text = f"{mean} ± {std}" if std else _plain(mean)
    marked = f"**{text}**" if entry.bold and text else text
    return f"{marked} {_plain(entry.mark)}" if entry.mark else marked


def _plain(text: str) -> str:
    """Return text on one line that Markdown shows as it is."""
    return " ".join(text.translate(_ESCAPES).split())


@hookimpl
def classfair_reporters() -> Iterable[ReporterSpec]:
    """Provide it."""
    yield ReporterSpec("markdown", ".md", render, "Markdown tables, mean ± std.")
