"""Where each number of a table comes from."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Mapping
from typing import Any

from classfair_leaderboard import notes
from classfair_leaderboard.aggregate import Group
from classfair_leaderboard.load import Run
from classfair_registry.manager import Plugins


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where the numbers of one run come from.

    Attributes:
        seed: of the run.
        facts: label and text of each fact, in order.
        settings: the method's, as JSON text.
    """

    seed: int
    facts: Mapping[str, str]
    settings: str


def origins(group: Group, plugins: Plugins) -> dict[str, list[Origin]]:
    """Return the origins of all runs of a group by the name of their row; ranking runs last."""
    found: dict[str, list[Origin]] = {}
    for row in group.rows:
        found.setdefault(notes.row_name(row, plugins), []).extend(_origin(run) for run in row.runs)
    if group.ranking_runs:
        found["ERM, ranking the classes"] = [_origin(run) for run in group.ranking_runs]
    return {name: runs for name, runs in found.items() if runs}


def recipe_text(group: Group) -> str:
    """Return the recipe of a group as JSON text."""
    return _json(group.cell.recipe)


def _origin(run: Run) -> Origin:
    facts = {name: text for name, text in _facts(run).items() if text}
    return Origin(run.seed, facts, _json(run.record.cell.method.settings))


def _facts(run: Run) -> dict[str, str]:
    record, cell = run.record, run.record.cell
    machine, provenance = record.machine, record.provenance
    packages = machine.get("packages")
    versions = packages if isinstance(packages, Mapping) else {}
    commit = str(provenance.get("commit") or "")
    seconds = sum(record.cost.seconds.values())
    command = provenance.get("command")
    trust = f"{run.about.trust} {run.about.by} {run.about.how}".strip() if run.about else ""
    return {
        "method": f"{cell.method.name}, revision {cell.method.revision}, {cell.method.plugin} "
        f"{cell.method.version}",
        "data": f"{record.dataset.get('title', '')} {record.dataset.get('split', '')}, fingerprint "
        f"{cell.fingerprint[:16]}",
        "weights": cell.weights or "",
        "hardware": ", ".join(
            str(machine[key]) for key in ("device_name", "driver", "platform") if machine.get(key)
        ),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "determinism": f"{machine.get('determinism', '')}, {machine.get('threads', '?')} threads",
        "commit": f"{commit}{' with changes' if provenance.get('dirty') else ''}",
        "command": shlex.join(map(str, command)) if isinstance(command, list) else "",
        "finished": str(provenance.get("finished") or ""),
        "cost": f"{record.cost.steps} steps, {record.cost.images_forward} images forward, "
        f"{record.cost.images_backward} backward, {seconds:.0f} s, "
        f"{record.cost.peak_memory / 1e6:.0f} MB",
        "judged": ", ".join(f"{key} {value}" for key, value in record.selection.items()),
        "trust": trust,
        "key": cell.key,
        "result": record.result_digest,
    }


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)
