"""The tables of results that are committed, for the READMEs."""

from __future__ import annotations

from pathlib import Path

from classfair_registry.manager import Plugins


def section(results: Path, plugins: Plugins, matrix: str | None = None) -> str:
    """Return the leaderboards of committed results as markdown, and what they were run on."""
    from classfair_leaderboard import readme

    return readme.section(results, plugins, matrix)
