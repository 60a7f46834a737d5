"""What an outside result must hold before it stands in a leaderboard, and how far it is trusted."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import stdtrit

from classfair_leaderboard.aggregate import variant
from classfair_leaderboard.archive import About, Archived, Level, agree, archived, save
from classfair_leaderboard.intervals import LEVEL
from classfair_leaderboard.load import Run, load
from classfair_registry.errors import ClassfairError, UsageError
from classfair_registry.manager import Plugins
from classfair_registry.predictions import Predictions
from classfair_registry.records import CellInfo

FEWEST = 3
"""Seeds below which a submission is told that ± says little."""
CLOSE = 1e-6
"""By how much a recomputed metric may differ from a recorded one, relatively."""
_OF_ANSWERS = (
    "overall",
    "mean_class",
    "easy",
    "medium",
    "hard",
    "gap",
    "worst",
    "worst10",
    "worst_crossfit",
    "class_std",
    "class_std_adj",
    "harmonic",
    "geometric",
)
"""Metrics that depend on nothing but which answers are right."""


@dataclasses.dataclass(frozen=True)
class RowCheck:
    """What was found about one method on one recipe.

    Attributes:
        method: its label.
        recipe: name of the recipe.
        seeds: given.
        trust: how far it may be trusted; ``self-reported`` if anything is wrong.
        wrong: what must be mended.
        remarks: what should be known.
    """

    method: str
    recipe: str
    seeds: tuple[int, ...]
    trust: Level
    wrong: tuple[str, ...]
    remarks: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Check:
    """What was found about a submission.

    Attributes:
        rows: one a method and recipe.
        wrong: lines and files that cannot be used at all.
        runs: those that can.
    """

    rows: tuple[RowCheck, ...]
    wrong: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def accepted(self) -> bool:
        """Whether nothing is wrong."""
        return not self.wrong and not any(row.wrong for row in self.rows) and bool(self.rows)

    @property
    def trust(self) -> Level:
        """The least trust of any row."""
        levels: tuple[Level, ...] = ("self-reported", "recomputed", "re-run")
        return min((row.trust for row in self.rows), key=levels.index, default="self-reported")


KeyOf = Callable[[CellInfo], tuple[str, str]]
"""Returns the run key and the recipe key that a cell must have; raises ClassfairError."""


def check(path: Path, plugins: Plugins, key_of: KeyOf, rerun: Path | None = None) -> Check:
    """Check a submission: an archive, or a results folder.

    Args:
        path: of it.
        plugins: with the metrics.
        key_of: of the engine.
        rerun: results folder in which a seed of each method was run again.

    Raises:
        UsageError: if there is no such file or folder.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such file or folder")
    runs, wrong = load(path)
    again = load(rerun)[0] if rerun is not None else []
    rows: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for run in runs:
        if not run.record.cell.ranking_run:
            cell = run.record.cell
            rows[cell.recipe_key + cell.track, variant(cell)].append(run)
    checked = tuple(_row(same, plugins, key_of, again) for same in rows.values())
    return Check(checked, tuple(wrong), tuple(runs))


def accept(found: Check, path: Path, by: str) -> None:
    """Write a submission that was accepted as an archive, with its trust.

    Raises:
        UsageError: if something is wrong with it, or nobody gives it.
    """
    if not found.accepted:
        raise UsageError(f"{path}: not written, as something is wrong with the submission")
    if not by.strip():
        raise UsageError("--by: who gives the results?")
    how = {"self-reported": "as given", "recomputed": "metrics recomputed from the answers"}
    about = About(by, found.trust, how.get(found.trust, "a seed of each method run again here"))
    save(path, [_kept(run) for run in found.runs], [], about)


def _kept(run: Run) -> Archived:
    return run.kept or archived(run.record, run.predictions())


def _row(runs: Sequence[Run], plugins: Plugins, key_of: KeyOf, again: Sequence[Run]) -> RowCheck:
    runs = sorted(runs, key=lambda run: run.seed)
    cell, seeds = runs[0].record.cell, tuple(run.seed for run in runs)
    wrong = [text for run in runs for text in _wrong(run, plugins, key_of)]
    remarks = []
    if seeds != tuple(range(len(seeds))):
        wrong.append(f"seeds are {', '.join(map(str, seeds))}, not 0 to {len(seeds) - 1}")
    if len(seeds) < FEWEST:
        remarks.append(f"n = {len(seeds)}: fewer than {FEWEST} seeds say little about ±")
    if any(run.record.provenance.get("dirty") for run in runs):
        remarks.append("run from a work tree with changes that are in no commit")
    if any(run.kept is not None for run in runs):
        remarks.append("an archive: the hash of the predictions cannot be compared with them")
    given = all(run.kept is None or run.kept.answers is not None for run in runs)
    trust: Level = "recomputed" if given and not wrong else "self-reported"
    if not given:
        remarks.append("no answers were given, so nothing can be recomputed")
    repeated = [run for run in again if _same_row(run, cell)]
    if repeated:
        apart = [text for run in repeated for text in _apart(run, runs)]
        wrong += apart
        trust = "self-reported" if wrong else "re-run"
    return RowCheck(cell.method.label, cell.recipe_name, seeds, trust, tuple(wrong), tuple(remarks))


def _same_row(run: Run, cell: CellInfo) -> bool:
    other = run.record.cell
    return other.recipe_key == cell.recipe_key and variant(other) == variant(cell)


def _wrong(run: Run, plugins: Plugins, key_of: KeyOf) -> Iterator[str]:
    """Yield what is wrong with one run."""
    cell = run.record.cell
    try:
        key, recipe_key = key_of(cell)
        if cell.key != key:
            yield f"seed {cell.seed}: the key is not that of its settings"
        if cell.recipe_key != recipe_key:
            yield f"seed {cell.seed}: the recipe's key is not that of its recipe"
        for name, recorded, found in disagreements(run, plugins):
            yield f"seed {cell.seed}: {name} is recorded as {recorded}, but comes to {found}"
    except ClassfairError as error:
        yield f"seed {cell.seed}: {error}"


def disagreements(run: Run, plugins: Plugins) -> Iterator[tuple[str, float | None, float | None]]:
    """Yield each metric whose recorded value is not that of the predictions: name and both values.

    From an archive those metrics are computed that depend on the answers alone.

    Raises:
        ClassfairError: naming the run, if its predictions cannot be read.
    """
    if run.kept is not None and run.kept.answers is None:
        return
    names = _OF_ANSWERS if run.kept is not None else run.record.metrics
    predictions = _as_predictions(run)
    for name in names:
        if name not in run.record.metrics or not _known(plugins, name):
            continue
        recorded = run.record.metrics[name]
        found = _number(plugins.get("metrics", name).compute(predictions))
        if not _alike(recorded, found):
            yield name, recorded, found


def verify(results: Path, plugins: Plugins) -> tuple[int, list[str]]:
    """Compute the metrics of every run anew; return the runs, and a line for each odd value.

    Args, raises: see :func:`check`.
    """
    runs, wrong = load(results)
    for run in runs:
        try:
            for name, recorded, found in disagreements(run, plugins):
                wrong.append(f"{run.folder}: {name} is recorded as {recorded}, comes to {found}")
        except ClassfairError as error:
            wrong.append(str(error))
    return len(runs), wrong


def _known(plugins: Plugins, name: str) -> bool:
    return any(card.name == name for card in plugins.cards("metrics"))


def _as_predictions(run: Run) -> Predictions:
    """Return the predictions, or for an archive such as have the same right answers."""
    if run.kept is None:
        predictions = run.predictions()
        agree(run.record, run.answers())
        return predictions
    answers = run.answers()
    label, images, classes = answers.label, len(answers.label), answers.num_classes
    wrong = (label + 1) % max(classes, 2)
    blank: dict[str, Any] = {
        field.name: np.full(
            classes if field.name.startswith(("vector", "feature")) else images, np.nan
        )
        for field in dataclasses.fields(Predictions)
    }
    return Predictions(
        **blank
        | {
            "index": np.arange(images),
            "label": label,
            "top5": np.where(answers.correct, label, wrong)[:, None],
            "mean_probability": np.full((classes, classes), np.nan),
            "names": np.full(images, ""),
            "ranking": None,
        }
    )


def _number(value: Any) -> float | None:
    array = np.asarray(value, float)
    return float(array) if array.ndim == 0 and np.isfinite(array) else None


def _alike(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=CLOSE, abs_tol=CLOSE)


def _apart(again: Run, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the metrics in which a run made here is outside what the submitted ones predict."""
    for name in ("overall", "mean_class", "hard"):
        given = [run.record.metrics.get(name) for run in runs]
        mine = again.record.metrics.get(name)
        values = [value for value in given if value is not None]
        if mine is None or len(values) < 2:
            continue
        n, spread = len(values), float(np.std(values, ddof=1))
        half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * spread * math.sqrt(1 + 1 / n)
        mean = float(np.mean(values))
        if abs(mine - mean) > half + CLOSE:
            yield (
                f"seed {again.seed} run again has {name} {mine:.2f}, outside "
                f"{mean - half:.2f} to {mean + half:.2f}"
            )
