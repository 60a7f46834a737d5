"""The tables of results that are committed, for the READMEs."""

from __future__ import annotations

from pathlib import Path

from classfair_registry.manager import Plugins
from classfair_registry.records import Record


def section(folder: Path, plugins: Plugins) -> str:
    """Return the leaderboards of a results folder as markdown, and what they were run on."""
    import classfair_leaderboard as leaderboard

    tables = leaderboard.report(folder, plugins).tables
    text: str = plugins.get("reporters", "markdown").render(tables)
    return f"{text.strip()}\n\n{ran_on(folder)}"


def ran_on(folder: Path) -> str:
    """Return a sentence with the number of runs, devices, versions and time of a results folder."""
    records = [Record.load(path) for path in sorted(folder.glob("*/record.json"))]
    devices = sorted({str(r.machine["device_name"]) for r in records})
    versions = sorted({str(r.machine["packages"]["torch"]) for r in records})
    commits = sorted({str(r.provenance["commit"])[:12] for r in records})
    days = sorted({str(r.provenance["finished"])[:10] for r in records})
    seconds = sum(sum(r.cost.seconds.values()) for r in records)
    return (
        f"{len(records)} runs on {', '.join(devices)}, one thread a run, torch "
        f"{', '.join(versions)}, commit {', '.join(commits)}, {' and '.join(days)}; "
        f"{seconds / 60:.0f} minutes of runs altogether."
    )
