"""Comparisons as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from classfair_leaderboard.compare import PRIMARY, Compared, Comparison, Difference
from classfair_registry.tables import Column, Entry, Table

_EXPLORED = ("easy", "medium", "hard", "gap", "worst")
_HIDDEN = ("overall", "mean_class", "worst10", "class_std")


def to_table(told: Comparison) -> Table:
    """Return a comparison as a table: intervals as text for reading, as numbers for data."""
    columns = _columns(told)
    return Table(
        name=told.name,
        title=told.title,
        columns=columns,
        rows=tuple(_row(row, columns) for row in told.rows),
        caption=told.caption,
        footnotes=told.footnotes,
    )


def _columns(told: Comparison) -> tuple[Column, ...]:
    apart = told.ranking != PRIMARY and any("hard_primary" in row.differences for row in told.rows)
    hard = "hard_primary" if apart else "hard"
    explored = [key for key in _EXPLORED if key != hard]
    shown = (told.headline, hard, *explored)
    titles = {"hard_primary": f"hard ({PRIMARY})", "mean_class": "mean class"}
    reading = {
        key: Column(f"d_{key}", f"Δ {titles.get(key, key)}", text=True, only="reading")
        for key in shown
    }
    p = {key: Column(f"p_{key}", "p", text=True, only="reading") for key in (told.headline, hard)}
    data = [
        Column(f"{key}_{part}", f"{key} {part}", "points", only="data")
        for key in dict.fromkeys((*shown, "hard_primary", *_HIDDEN))
        for part in ("difference", "low", "high", "p", "p_holm", "correlation")
    ]
    return (
        Column("method", "method", text=True),
        *(column for key in p for column in (reading[key], p[key])),
        Column("no_trade_off", "no trade-off", text=True),
        *(reading[key] for key in explored),
        Column("n", "n", text=True),
        *data,
    )


def _row(row: Compared, columns: tuple[Column, ...]) -> Mapping[str, Entry]:
    free = {True: "yes", False: "no", None: ""}[row.no_trade_off]
    found = {
        "method": Entry(text=row.name),
        "no_trade_off": Entry(text=free),
        "n": Entry(text=str(row.n)),
    }
    for key, difference in row.differences.items():
        found |= dict(_entries(key, difference))
    if "hard_primary" in row.differences:
        found["p_hard"] = found["p_hard_primary"]
    return {column.key: found[column.key] for column in columns if column.key in found}


def _entries(key: str, told: Difference) -> Iterator[tuple[str, Entry]]:
    yield f"d_{key}", Entry(text=interval_text(told))
    yield f"p_{key}", Entry(text=p_text(told.p_holm))
    numbers = {
        "difference": told.mean,
        "low": told.low,
        "high": told.high,
        "p": told.p,
        "p_holm": told.p_holm,
        "correlation": told.correlation,
    }
    for part, value in numbers.items():
        yield f"{key}_{part}", Entry(mean=value, n=len(told.by_seed))


def interval_text(told: Difference) -> str:
    """Return ``+1.20 [+0.40, +2.00] ++-``: mean, interval if there is one, signs of the seeds."""
    if told.mean is None:
        return ""
    bounds = "" if told.low is None else f" [{told.low:+z.2f}, {told.high:+z.2f}]"
    return f"{told.mean:+z.2f}{bounds} {told.signs}".rstrip()


def p_text(p: float | None) -> str:
    """Return a p value with three decimals."""
    if p is None:
        return ""
    return "<0.001" if p < 0.0005 else f"{p:.3f}"
