"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from classfair_registry.tables import Column, Entry, Table

_NAME_WIDTH = 12
"""Longer names are folded before a number is cut."""
_ARROWS = {"higher": " ↑", "lower": " ↓"}


def render_terminal(tables: Sequence[Table]) -> RenderableType:
    """Return something that rich prints: each table with its caption and footnotes.

    Percentages have one decimal. Where ``mean ± std`` on one line does not fit the width, the
    deviation stands under the mean.
    """
    return Group(*(_Fitting(table) for table in tables))


class _Fitting:
    """A table that takes as many columns of the terminal as there are."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid = _grid(self._table, " ")
        if Measurement.get(console, options.update(width=10_000), grid).maximum > options.max_width:
            grid = _grid(self._table, "\n")
        yield Text(self._table.title, style="bold")
        yield grid
        yield Text()
        yield Text(self._table.caption, style="dim")
        yield from (Text(f"- {note}", style="dim") for note in self._table.footnotes)
        yield Text()


def _grid(table: Table, between: str) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in table.reading:
        texts = [row.get(column.key, Entry()).text or "" for row in table.rows]
        grid.add_column(
            Text(column.title + _ARROWS.get(column.better, "")),
            justify="left" if column.text else "right",
            min_width=min(_NAME_WIDTH, max(map(len, texts), default=0)) if column.text else None,
            no_wrap=not column.text,
            overflow="fold",
        )
    for row in table.rows:
        grid.add_row(*(_cell(row.get(c.key, Entry()), c, between) for c in table.reading))
    return grid


def _cell(entry: Entry, column: Column, between: str) -> Text:
    mean, std = entry.rounded(1 if column.unit else 2)
    text = Text(mean, style="bold" if entry.bold else "")
    return text.append(f"{between}± {std}", style="dim") if std else text
