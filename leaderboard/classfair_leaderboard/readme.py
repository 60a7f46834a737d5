"""Results that are committed, as the part of a README that is generated from them.

Rows hold numbers alone, so that a new row changes no other; marks are said in words under a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from classfair_leaderboard.load import Run
from classfair_leaderboard.marks import in_words
from classfair_leaderboard.reporting import read, report
from classfair_registry.manager import Plugins


def section(results: Path, plugins: Plugins, matrix: str | None = None) -> str:
    """Return the leaderboards as markdown, each with what it was run on.

    Args:
        results: folder with archives or cells, or an archive.
        plugins: with the reporter, and to spell methods.
        matrix: only the cells of this one.

    Raises:
        UsageError: for an unknown matrix or folder.
    """
    told, found = report(results, plugins, matrix), read(results, matrix)
    render = plugins.get("reporters", "markdown").render
    parts = []
    for table, group in zip(told.tables, found.groups, strict=True):
        parts += [render([in_words(table)]).strip(), ran_on([*group.runs, *group.ranking_runs])]
    parts += [render(told.ranks).strip()] if told.ranks else []
    return "\n\n".join(parts)


def ran_on(runs: Sequence[Run]) -> str:
    """Return a sentence with the number of runs, devices, versions, commits, days and time."""
    records = [run.record for run in runs]
    devices = {str(record.machine.get("device_name", "unknown")) for record in records}
    threads = {str(record.machine.get("threads", "?")) for record in records}
    versions = {str(record.machine.get("packages", {}).get("torch", "?")) for record in records}
    commits = {str(record.provenance.get("commit", "unknown"))[:12] for record in records}
    days = {str(record.provenance.get("finished", ""))[:10] for record in records} - {""}
    minutes = sum(sum(record.cost.seconds.values()) for record in records) / 60
    time = f"{minutes / 60:.1f} hours" if minutes >= 120 else f"{minutes:.0f} minutes"
    return (
        f"{len(records)} runs on {_listed(devices)}; threads a run: {_listed(threads)}; torch "
        f"{_listed(versions)}; commit {_listed(commits)}; {_listed(days)}; {time} of runs "
        "altogether."
    )


def _listed(texts: set[str]) -> str:
    return ", ".join(sorted(texts))
