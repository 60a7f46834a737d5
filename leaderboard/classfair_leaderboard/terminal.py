"""Tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

from classfair_registry.tables import Column, Entry, Table

_ANY_WIDTH = 10_000
Row = Mapping[str, Entry]
_ARROWS = {"higher": " ↑", "lower": " ↓"}


def render_terminal(tables: Sequence[Table]) -> RenderableType:
    """Return something that rich prints: each table with its caption and footnotes.

    Percentages have one decimal. Where ``mean ± std`` on one line does not fit the width, the
    deviation stands under the mean; where that does not fit either, the last columns are left out
    and named.
    """
    return Group(*(_Fitting(table) for table in tables))


class _Fitting:
    """A table that takes as many columns of the terminal as there are."""

    def __init__(self, table: Table) -> None:
        self._table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        grid, left_out = self._fit(console, options)
        yield Text(self._table.title, style="bold")
        yield grid
        yield Text()
        yield Text(self._table.caption, style="dim")
        yield from (Text(f"- {note}", style="dim") for note in self._table.footnotes)
        if left_out:
            titles = ", ".join(column.title for column in left_out)
            yield Text(f"- Left out for want of width: {titles}.", style="dim")
        yield Text()

    def _fit(self, console: Console, options: ConsoleOptions) -> tuple[Grid, Sequence[Column]]:
        """Return the widest layout that fits, and the columns that it leaves out."""
        columns = self._table.reading
        layouts = [(" ", len(columns))] + [("\n", kept) for kept in range(len(columns), 1, -1)]
        for between, kept in layouts:
            grid = _grid(self._table.rows, columns[:kept], between)
            wanted = Measurement.get(console, options.update(width=_ANY_WIDTH), grid).maximum
            if wanted <= options.max_width:
                return grid, columns[kept:]
        return grid, columns[kept:]


def _grid(rows: Sequence[Row], columns: Sequence[Column], between: str) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for column in columns:
        title = Text(column.title + _ARROWS.get(column.better, ""))
        grid.add_column(title, justify="left" if column.text else "right", no_wrap=True)
    for row in rows:
        grid.add_row(*(_cell(row.get(c.key, Entry()), c, between) for c in columns))
    return grid


def _cell(entry: Entry, column: Column, between: str) -> Text:
    mean, std = entry.rounded(1 if column.unit else 2)
    text = Text(mean, style="bold" if entry.bold else "")
    if std:
        text.append(f"{between}± {std}", style="dim")
    return text.append(f" {entry.mark}") if entry.mark else text
