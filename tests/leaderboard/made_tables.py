"""Results folders of four classes and three seeds, for tests of the tables made from them."""

from pathlib import Path

import made_records as made
import numpy as np

from classfair_leaderboard.marks import in_words
from classfair_registry.records import CellInfo
from classfair_registry.tables import Entry, Table

LABEL = np.repeat(np.arange(4), 10)
"""Four classes are cut into thirds of 2, 1, 1."""
ERM = [[0.9, 0.8, 0.6, 0.1], [0.9, 0.8, 0.5, 0.2], [0.9, 0.8, 0.4, 0.3]]
MR2 = [[0.9, 0.6, 0.5, 0.6], [0.9, 0.6, 0.5, 0.4], [0.9, 0.6, 0.5, 0.2]]


def fill(results: Path, **methods: list[list[float]]) -> list[CellInfo]:
    """Write the runs of methods with these class accuracies, one a seed; return their cells."""
    cells = []
    for name, accuracies in methods.items():
        for seed, accuracy in enumerate(accuracies):
            cells.append(made.cell(name, seed))
            made.write(results, cells[-1], made.exactly(LABEL, accuracy))
    return cells


def add_ranking_runs(results: Path, accuracies: list[list[float]]) -> list[CellInfo]:
    cells = [made.cell("erm", 10_000 + n, ranking_run=True) for n in range(len(accuracies))]
    for cell, accuracy in zip(cells, accuracies, strict=True):
        made.write(results, cell, made.exactly(LABEL, accuracy))
    return cells


def rows_of(table: Table) -> dict[str, dict[str, Entry]]:
    """Return the rows by method, without marks."""
    return {str(row["method"].text): dict(row) for row in in_words(table).rows}
