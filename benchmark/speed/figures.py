"""Rows of the table: what each is measured against, what it should reach, and how it is told."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

from speed.measure import Effort, Measured, Spread


@dataclasses.dataclass(frozen=True)
class Target:
    """What a figure should reach.

    Attributes:
        bound: inclusive.
        of: ``ratio`` of our time to the rival's, at most; ``speedup``, its inverse, at least;
            ``seconds`` of ours, at most; ``exponent`` of its growth, at most.
    """

    bound: float
    of: Literal["ratio", "speedup", "seconds", "exponent"] = "ratio"

    def value(self, measured: Measured) -> float:
        """Return what is held against the bound."""
        if self.of == "exponent":
            return measured.exponent
        if self.of == "seconds" or measured.ratio is None:
            return measured.ours.median
        return measured.ratio.median if self.of == "ratio" else measured.ratio.inverse().median

    def met(self, measured: Measured) -> bool:
        """Whether the bound is kept."""
        value = self.value(measured)
        return value >= self.bound if self.of == "speedup" else value <= self.bound

    def __str__(self) -> str:
        return {
            "ratio": f"<= {self.bound:g}",
            "speedup": f">= {self.bound:g} x faster",
            "seconds": f"<= {self.bound:g} s",
            "exponent": f"<= size^{self.bound:g}",
        }[self.of]


@dataclasses.dataclass(frozen=True)
class Row:
    """A figure of the table.

    Attributes:
        name: for ``--only``.
        figure: what is timed.
        rival: what it is held against.
        target: what it should reach.
        measure: does it; may raise, which costs this row alone.
        threads: of torch, or None for the effort's.
    """

    name: str
    figure: str
    rival: str
    target: Target
    measure: Callable[[Effort], Measured]
    threads: int | None = None


@dataclasses.dataclass(frozen=True)
class Result:
    """A row with what was found, or with why nothing was."""

    row: Row
    measured: Measured | None = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return plain values; the same keys for every row."""
        row, found = self.row, self.measured
        return {
            "name": row.name,
            "figure": row.figure,
            "rival": row.rival,
            "threads": row.threads,
            "target": {"of": row.target.of, "bound": row.target.bound},
            "ours": dataclasses.asdict(found.ours) if found else None,
            "rival_seconds": dataclasses.asdict(found.rival) if found and found.rival else None,
            "ratio": dataclasses.asdict(found.ratio) if found and found.ratio else None,
            "curve": [{"size": size, "seconds": s} for size, s in found.curve] if found else [],
            "value": row.target.value(found) if found else None,
            "met": row.target.met(found) if found else None,
            "note": found.note if found else "",
            "error": self.error,
        }


def table(results: Sequence[Result], title: str) -> Table:
    """Return the table of all figures."""
    made = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    for heading in ("figure", "ours", "limit or rival", "ratio", "target", "met?"):
        made.add_column(heading, overflow="fold")
    for result in results:
        made.add_row(*cells(result))
    return made


def cells(result: Result) -> tuple[str, ...]:
    """Return a row's texts."""
    row, found = result.row, result.measured
    if found is None:
        return row.figure, result.error, row.rival, "", str(row.target), "not measured"
    rival = row.rival + (f", {spread(found.rival)}" if found.rival else "")
    figure = row.figure + (f" ({found.note})" if found.note else "")
    met = "yes" if row.target.met(found) else "NO"
    return figure, ours(found), rival, ratio(row.target, found), str(row.target), met


def ours(found: Measured) -> str:
    """Return our time, or its curve."""
    if found.curve:
        return ", ".join(f"{size:,}: {duration(value)}" for size, value in found.curve)
    return spread(found.ours)


def ratio(target: Target, found: Measured) -> str:
    """Return the ratio as the target counts it, with its quartiles."""
    if target.of == "exponent":
        return f"size^{found.exponent:.2f}"
    if found.ratio is None:
        return ""
    told, unit = (found.ratio, "") if target.of != "speedup" else (found.ratio.inverse(), " x")
    return f"{told.median:.3g}{unit} ({told.low:.3g} .. {told.high:.3g})"


def spread(values: Spread) -> str:
    """Return the median with the half distance of the quartiles in per cent of it."""
    half = (values.high - values.low) / 2 / values.median
    return f"{duration(values.median)} ±{half:.0%}"


def duration(value: float) -> str:
    """Return seconds in the unit that suits them."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def show(made: Table) -> None:
    """Print a table: as wide as the terminal, or as it likes where there is none."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    console.print(made)
