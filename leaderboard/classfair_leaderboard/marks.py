"""Marks of a table: bold for what cannot be told from the best, and the Pareto set.

Marks compare rows, so they may move when a row is added; numbers never do. :func:`in_words` takes
them out of the rows and says them in sentences, for documents whose rows must stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from classfair_leaderboard.aggregate import Group
from classfair_leaderboard.evidence import MEANS, STATISTICS, Evidence, common_seeds
from classfair_leaderboard.groups import GROUPS, RankingName, Reference
from classfair_registry.predictions import Floats
from classfair_registry.tables import Column, Entry, Table

DRAWS = 200
"""Of the bootstrap, for the metrics that need it: enough for a variance."""
PARETO = "◆"
_BOLD = "Bold: the 95 % interval of the paired difference to the best of the column holds 0"
_SET = f"{PARETO}: Pareto set: no row has better {{}} without worse hard, or the reverse"


def marked(
    table: Table,
    group: Group,
    reference: Reference | None,
    ranking: RankingName,
    headline: str,
) -> tuple[Table, list[str]]:
    """Return a table with marks, and complaints about predictions that could not be used.

    Args:
        table: with a row for each one of ``group``, in order.
        group: the rows.
        reference: by which runs its classes are ranked, or None.
        ranking: by which they are.
        headline: the metric of the Pareto set beside hard.
    """
    if len(group.rows) < 2:
        return table, []
    bold, complaints = _bold(table, group, reference, ranking)
    chosen = pareto(table.rows, headline)
    rows = tuple(
        _marked_row(row, {key for key, rows in bold.items() if place in rows}, place in chosen)
        for place, row in enumerate(table.rows)
    )
    notes = [_BOLD] if any(bold.values()) else []
    notes += [_SET.format(headline.replace("_", " "))] if chosen else []
    footnotes = (*(f"{note}." for note in notes), *table.footnotes)
    return dataclasses.replace(table, rows=rows, footnotes=footnotes), complaints


def pareto(rows: Sequence[Mapping[str, Entry]], headline: str) -> set[int]:
    """Return the places of the rows of which no other one is better in (headline, hard).

    Rows without one of the two means take no part, and there is no set of one row.
    """
    points = {
        place: (row[headline].mean, row["hard"].mean)
        for place, row in enumerate(rows)
        if row[headline].mean is not None and row["hard"].mean is not None
    }
    if len(points) < 2:
        return set()
    return {place for place, point in points.items() if not _beaten(point, points.values())}


def _beaten(point: tuple[Any, Any], others: Collection[tuple[Any, Any]]) -> bool:
    return any(other[0] >= point[0] and other[1] >= point[1] and other != point for other in others)


def _bold(
    table: Table, group: Group, reference: Reference | None, ranking: RankingName
) -> tuple[dict[str, set[int]], list[str]]:
    """Return by column the places of the rows that cannot be told from the best."""
    seeds = common_seeds(group.rows)
    if len(seeds) < 2:
        return {}, []
    evidence = Evidence(group, seeds, reference, DRAWS)
    if len(evidence.rows) < 2:
        return {}, evidence.complaints
    places = [group.rows.index(row) for row in evidence.rows]
    columns = [c for c in table.reading if c.key in {*MEANS, *STATISTICS, *GROUPS}]
    bold = {
        column.key: {places[i] for i in _among_best(evidence, column, ranking)}
        for column in columns
    }
    return bold, evidence.complaints


def _among_best(evidence: Evidence, column: Column, ranking: RankingName) -> list[int]:
    """Return the rows whose interval of the difference to the best one holds 0, and that one."""
    measure = evidence.measure(column.key, ranking)
    means: Floats = measure.values.mean(1)
    if not np.isfinite(means).all():
        return []
    best = int(means.argmin() if column.better == "lower" else means.argmax())
    found = evidence.differences(measure, best)
    if not found.kind:
        return []
    alike = (found.low <= 1e-9) & (found.high >= -1e-9)
    return sorted({best, *np.flatnonzero(alike).tolist()})


def _marked_row(row: Mapping[str, Entry], bold: set[str], in_set: bool) -> Mapping[str, Entry]:
    made = {
        key: dataclasses.replace(entry, bold=True) if key in bold else entry
        for key, entry in row.items()
    }
    if in_set:
        made["method"] = dataclasses.replace(made["method"], mark=PARETO)
    return made


def in_words(table: Table) -> Table:
    """Return a table without marks in its rows; sentences under it say what they said."""
    rows = tuple(
        {key: dataclasses.replace(entry, bold=False, mark="") for key, entry in row.items()}
        for row in table.rows
    )
    said = []
    for column in table.reading:
        names = [_name(row) for row in table.rows if row.get(column.key, Entry()).bold]
        said += [f"{column.title}: {', '.join(names)}"] if names else []
    notes = [note for note in table.footnotes if not note.startswith((_BOLD, PARETO))]
    if said:
        notes.insert(0, f"Cannot be told from the best (95 %): {'; '.join(said)}.")
    chosen = [_name(row) for row in table.rows if row["method"].mark == PARETO]
    if chosen:
        notes.insert(1 if said else 0, f"Pareto set of the headline and hard: {', '.join(chosen)}.")
    return dataclasses.replace(table, rows=rows, footnotes=tuple(notes))


def _name(row: Mapping[str, Entry]) -> str:
    return str(row["method"].text)
