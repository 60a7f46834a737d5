"""A table as plain values: the leaderboard makes it, reporters write it down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Column:
    """A column: its key in CSV, its heading, its unit and which direction is better."""

    key: str
    title: str
    unit: str = ""
    better: str = "neither"


@dataclasses.dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes:
        mean: over seeds, or None where a seed is missing or the value is not defined.
        std: sample standard deviation over seeds (ddof = 1), or None for n = 1.
        n: seeds averaged.
        text: what stands there instead of a number, for names and notes.
        bold: cannot be told from the best.
    """

    mean: float | None = None
    std: float | None = None
    n: int = 0
    text: str | None = None
    bold: bool = False


@dataclasses.dataclass(frozen=True)
class Table:
    """A table with everything a reader needs to trust it.

    Attributes:
        name: safe in a file name.
        title: heading.
        columns: in order.
        rows: one mapping from column key to entry a row.
        caption: sentences under the heading.
        footnotes: sentences under the table.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Entry], ...]
    caption: str = ""
    footnotes: tuple[str, ...] = ()
