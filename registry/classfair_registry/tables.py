"""A table as plain values: the leaderboard makes it, reporters write it down."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal


@dataclasses.dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        key: its name in CSV.
        title: its heading.
        unit: of its numbers.
        better: which direction is better.
        text: whether it holds text instead of numbers.
        only: empty, or the formats that have it: those for ``reading`` or those for ``data``.
    """

    key: str
    title: str
    unit: str = ""
    better: str = "neither"
    text: bool = False
    only: Literal["", "reading", "data"] = ""


@dataclasses.dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes:
        mean: over seeds, or None where a seed is missing or the value is not defined.
        std: sample standard deviation over seeds (ddof = 1), or None for n = 1.
        n: seeds averaged.
        text: what stands there instead of a number, for names and notes.
        bold: cannot be told from the best.
        mark: a sign behind the text, which a footnote explains.
    """

    mean: float | None = None
    std: float | None = None
    n: int = 0
    text: str | None = None
    bold: bool = False
    mark: str = ""

    def rounded(self, digits: int = 2) -> tuple[str, str]:
        """Return mean and standard deviation to so many decimals, empty where there is none."""
        if self.text is not None or self.mean is None:
            return self.text or "", ""
        std = "" if self.std is None else f"{self.std:z.{digits}f}"
        return f"{self.mean:z.{digits}f}", std


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

    @property
    def reading(self) -> tuple[Column, ...]:
        """The columns that formats for reading have."""
        return tuple(column for column in self.columns if column.only != "data")

    @property
    def data(self) -> tuple[Column, ...]:
        """The columns that formats for data have."""
        return tuple(column for column in self.columns if column.only != "reading")
