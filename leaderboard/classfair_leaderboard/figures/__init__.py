"""The figures of the paper, for any results; they need matplotlib (extra ``plots``).

Each figure is a function from what was read to a :class:`Drawing`, or to the reason why it cannot
be drawn: nothing is drawn from rows that miss a seed, and nothing is left out in silence.
"""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from classfair_leaderboard.figures import classes, methods, training, tsne
from classfair_leaderboard.figures.style import Drawing, Skip, needs_matplotlib, styled
from classfair_leaderboard.reporting import Found
from classfair_leaderboard.view import View
from classfair_registry.errors import UsageError
from classfair_registry.files import writing
from classfair_registry.manager import Plugins

__all__ = ["Drawing", "Drawn", "Skip", "draw", "rendered", "write"]

_OF_A_TABLE: Mapping[str, Callable[[View], Iterator[Drawing]]] = {
    "sorted accuracy": classes.sorted_accuracy,
    "spread": classes.spread,
    "norms": classes.norms,
    "per class": classes.dumbbell,
    "margins": methods.margins,
    "hard against overall": methods.hard_against_overall,
    "sweeps": methods.sweeps,
    "evolution": training.evolution,
    "t-SNE": tsne.hard_classes,
}


@dataclasses.dataclass(frozen=True)
class Drawn:
    """What was drawn.

    Attributes:
        drawings: the figures.
        skipped: why each other one was not drawn.
    """

    drawings: tuple[Drawing, ...]
    skipped: tuple[str, ...]


def draw(found: Found, plugins: Plugins) -> Drawn:
    """Draw everything that the results allow.

    Args:
        found: what was read from a results folder.
        plugins: to spell methods.

    Raises:
        UsageError: if matplotlib is not installed.
    """
    needs_matplotlib()
    views = [
        View(group, plugins, found.frozen)
        for group in found.groups
        if group.cell.track == "default"
    ]
    drawings: list[Drawing] = []
    skipped: list[str] = []
    for view in views:
        for name, make in _OF_A_TABLE.items():
            _try(f"{view.group.title}, {name}", make(view), drawings, skipped)
    _try("gains", methods.gains(views), drawings, skipped)
    return Drawn(tuple(drawings), tuple(skipped))


def _try(name: str, made: Iterator[Drawing], drawings: list[Drawing], skipped: list[str]) -> None:
    try:
        drawings.extend(made)
    except Skip as reason:
        skipped.append(f"{name}: {reason}")


def rendered(drawing: Drawing, suffix: str = "svg") -> bytes:
    """Return a figure as SVG or PNG; the same figure gives the same bytes."""
    stream = io.BytesIO()
    dates = {"svg": {"Date": None}, "png": {"Software": None}}
    with styled():
        drawing.figure.savefig(stream, format=suffix, dpi=150, metadata=dates[suffix])
    return stream.getvalue()


def write(drawn: Drawn, out: Path, suffixes: Sequence[str] = ("svg", "png")) -> list[Path]:
    """Write the figures as ``figures/NAME.svg`` and ``.png`` and return the files.

    Raises:
        UsageError: where nothing can be written.
    """
    folder, paths = out / "figures", []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for drawing in drawn.drawings:
            for suffix in suffixes:
                path = folder / f"{drawing.name}.{suffix}"
                with writing(path) as file:
                    file.write(rendered(drawing, suffix))
                paths.append(path)
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror})") from error
    return paths
