"""How figures look, and what they share."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from classfair_leaderboard.aggregate import BASELINE
from classfair_leaderboard.view import View
from classfair_registry.errors import UsageError
from classfair_registry.predictions import Floats
from classfair_registry.records import slug

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which differ for every kind of colour vision.
ERM_COLOUR, METHOD_COLOUR = "#000000", "#D55E00"
THIRD_COLOURS = {"easy": "#009E73", "medium": "#0072B2", "hard": "#D55E00"}
OTHER_COLOUR = "#A0A0A0"
FAVOURITE = "mr2"
_SETTINGS = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "classfair",
}


class Skip(Exception):
    """Why a figure cannot be drawn."""


@dataclasses.dataclass(frozen=True, eq=False)
class Drawing:
    """A figure.

    Attributes:
        name: safe in a file name.
        title: what it shows, also for those who cannot see it.
        caption: what must be known to read it.
        figure: of matplotlib.
    """

    name: str
    title: str
    caption: str
    figure: Figure


def needs_matplotlib() -> None:
    """Raise UsageError with the mend if matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("figures need matplotlib: pip install 'classfair[plots]'")


@contextlib.contextmanager
def styled() -> Iterator[None]:
    """Have the suite's style, while a figure is made and while it is written.

    A glyph that the font lacks is shown as a box; that is no reason to warn.
    """
    import matplotlib as mpl

    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .*missing from font")
        yield


@contextlib.contextmanager
def drawing(width: float, height: float, columns: int = 1) -> Iterator[tuple[Figure, list[Axes]]]:
    """Give a figure without a window, and its axes side by side, in the suite's style.

    Args:
        width: in inches.
        height: in inches.
        columns: number of axes.
    """
    from matplotlib.figure import Figure as NewFigure

    with styled():
        figure = NewFigure(figsize=(width, height))
        axes = figure.subplots(1, columns, squeeze=False)
        yield figure, list(axes[0])


def named(view: View, *parts: str) -> str:
    """Return the name of a figure of one table."""
    return "--".join([slug(view.group.cell.recipe_name), view.group.cell.recipe_key[:8], *parts])


def plain(text: str, most: int = 200) -> str:
    """Return text that matplotlib shows as it is, on one line: a dollar sign begins no formula.

    Args:
        text: any.
        most: characters that are kept.
    """
    short = text if len(text) <= most else f"{text[: most - 1]}…"
    return "".join(char if char.isprintable() else " " for char in short).replace("$", r"\$")


def short(text: str) -> str:
    """Return the same, no longer than a label of a line or an axis may be."""
    return plain(text, 36)


def chosen(view: View) -> tuple[int | None, int | None]:
    """Return the places of ERM and of the method that is set against it.

    That is MR2, else the row with the best hard; None where there is none.
    """
    erm = view.row(BASELINE, None)
    favourite = view.row(FAVOURITE, None)
    if favourite is None:
        others = [i for i, row in enumerate(view.rows) if row.method.name != BASELINE]
        measure = view.measure("hard") if others else None
        if measure is not None:
            favourite = max(others, key=lambda i: float(measure.values[i].mean()))
    return erm, favourite


def some_rows(view: View, least: int = 1) -> list[int]:
    """Return the places of all complete rows.

    Raises:
        Skip: if there are fewer than ``least``.
    """
    if len(view.rows) < least:
        raise Skip(f"{len(view.rows)} complete rows, {least} needed")
    return list(range(len(view.rows)))


def lines(view: View, axes: Axes, values: Sequence[tuple[int, Floats]]) -> None:
    """Draw one line a row: ERM and the method set against it in colour, the others in grey."""
    erm, favourite = chosen(view)
    colours = {erm: ERM_COLOUR, favourite: METHOD_COLOUR}
    grey = 0
    for place, line in values:
        special = place in colours
        grey += not special
        text = short(view.name(place)) if special else "other methods" if grey == 1 else None
        axes.plot(
            range(1, len(line) + 1),
            line,
            color=colours.get(place, OTHER_COLOUR),
            lw=1.8 if special else 0.7,
            zorder=3 if special else 2,
            label=text,
        )
    legend_below(axes)


def legend_below(axes: Axes, columns: int = 4) -> None:
    """Put the legend under the axes, where it hides nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
