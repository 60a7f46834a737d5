"""From a results folder to an archive."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from classfair_leaderboard.archive import About, archived, save
from classfair_leaderboard.reporting import read
from classfair_registry.errors import ClassfairError, UsageError


@dataclasses.dataclass(frozen=True)
class Exported:
    """What an export did.

    Attributes:
        runs: that were written.
        complaints: about those that were not.
    """

    runs: int
    complaints: tuple[str, ...]


def export(results: Path, out: Path, matrix: str | None = None, by: str = "") -> Exported:
    """Write the finished runs of a results folder, and what its matrices expect, as an archive.

    Args:
        results: the folder, or another archive.
        out: the file.
        matrix: only the cells of this one; its ranking runs come along.
        by: who gives the results; then they are marked as reported by them.

    Raises:
        UsageError: for an unknown matrix or folder, or where nothing can be written.
    """
    found = read(results, matrix)
    runs = {run.record.cell.key: run for group in found.groups for run in group.runs}
    runs |= {run.record.cell.key: run for group in found.groups for run in group.ranking_runs}
    kept, complaints = [], list(found.complaints)
    for run in runs.values():
        try:
            kept.append(run.kept or archived(run.record, run.predictions()))
        except ClassfairError as error:
            complaints.append(f"{error}; not exported")
    about = About(by, "self-reported", "as given") if by else About(how="run by the maintainers")
    try:
        save(out, kept, found.matrices, about)
    except OSError as error:
        raise UsageError(f"{out}: cannot be written ({error.strerror})") from error
    return Exported(len(kept), tuple(complaints))
