"""The paper's numbers and claims beside a results folder, as tables."""

from __future__ import annotations

from pathlib import Path

from classfair_leaderboard import claims, published
from classfair_leaderboard.ranking import FROZEN
from classfair_leaderboard.reporting import Found, read
from classfair_registry.manager import Plugins
from classfair_registry.records import MatrixInfo
from classfair_registry.tables import Table


def paper_tables(
    results: Path,
    plugins: Plugins,
    matrix: str | MatrixInfo | None = None,
    *,
    frozen: Path = FROZEN,
) -> tuple[Table, ...]:
    """Return a table of printed numbers for each setting of which something ran, and the claims.

    Args, raises: see :func:`classfair_leaderboard.reporting.report`.
    """
    return paper_tables_of(read(results, matrix, frozen), plugins)


def paper_tables_of(found: Found, plugins: Plugins) -> tuple[Table, ...]:
    """Return the same for what was read."""
    told = claims.load_claims()
    findings = claims.check(found.groups, plugins, found.frozen, told)
    verdicts = published.beside(found.groups, plugins)
    return (*published.to_tables(verdicts, plugins), claims.to_table(findings, told))
