"""The leaderboard as a page that opens from disk, without a network.

``index.html`` holds everything but the figures, which lie beside it. All text that comes from
records is escaped: by the template where it is written into the page, and as data, never as markup,
where the script shows it. A policy in the page lets nothing run but that script.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from classfair_leaderboard import compare_table, notes
from classfair_leaderboard.aggregate import Group
from classfair_leaderboard.beside import paper_tables_of
from classfair_leaderboard.compare import compare_of
from classfair_leaderboard.groups import RANKINGS
from classfair_leaderboard.page.provenance import Origin, origins, recipe_text
from classfair_leaderboard.reporting import Found, find_reference, pick, report_of
from classfair_registry.errors import UsageError
from classfair_registry.files import writing
from classfair_registry.manager import Plugins, version
from classfair_registry.records import slug
from classfair_registry.tables import Column, Entry, Table

HERE = Path(__file__).parent
DRAWS = 2_000
"""Of the bootstrap, for the comparisons of the page."""


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure beside the page."""

    file: str
    title: str
    caption: str


@dataclasses.dataclass(frozen=True)
class Section:
    """What the page shows of one recipe.

    Attributes:
        name: safe as an identifier.
        title: of the recipe.
        shown: the ranking that is shown first.
        tables: the leaderboard under each ranking that there is.
        comparison: differences to ERM, if it is there.
        figures: of this recipe.
        recipe: of all runs, as JSON text.
        origins: where each number comes from, by row.
        classes: for the view by class, as JSON values.
    """

    name: str
    title: str
    shown: str
    tables: Mapping[str, Table]
    comparison: Table | None
    figures: Sequence[Figure]
    recipe: str
    origins: Mapping[str, Sequence[Origin]]
    classes: Mapping[str, Any]


def write_page(
    found: Found, plugins: Plugins, out: Path, ranking: str | None = None, *, figures: bool = True
) -> list[Path]:
    """Write ``index.html`` and its figures, and return the files.

    Args:
        found: what was read from a results folder.
        plugins: to spell methods, and with the metrics.
        out: the folder; it is made if need be.
        ranking: the one that is shown first, see :func:`classfair_leaderboard.reporting.report`.
        figures: draw them; without matplotlib the page says how to have them.

    Raises:
        UsageError: where nothing can be written.
    """
    drawn, reasons, files = _figures(found, plugins, out) if figures else ({}, [], [])
    sections = _sections(found, plugins, ranking, drawn)
    told = report_of(found, plugins, ranking)
    text = rendered(
        sections,
        ranks=told.ranks,
        paper=paper_tables_of(found, plugins),
        gains=drawn.get("gains", []),
        reasons=reasons,
        complaints=told.complaints,
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with writing(out / "index.html") as file:
            file.write(text.encode())
    except OSError as error:
        raise UsageError(f"{out}: cannot write there ({error.strerror})") from error
    return [out / "index.html", *files]


def rendered(sections: Sequence[Section], **parts: Any) -> str:
    """Return the page.

    Args:
        sections: one a recipe.
        **parts: ``ranks`` and ``paper`` tables, figures of ``gains``, ``reasons`` why others are
            not drawn, ``complaints`` about files that were left out.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(entry=_entry, value=_value, heading=_heading)
    script, style = ((HERE / name).read_text(encoding="utf-8") for name in ("page.js", "page.css"))
    data = {section.name: section.classes for section in sections}
    text: str = environment.get_template("page.html").render(
        sections=sections,
        script=script,
        style=style,
        script_hash=_hash(script),
        style_hash=_hash(style),
        # Escaped as a string of JSON may be, so that no text in it can end the element.
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c").replace("&", "\\u0026"),
        version=version(),
        **parts,
    )
    return text


def _hash(text: str) -> str:
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


# -- cells of tables -------------------------------------------------------------------------------


def _entry(row: Mapping[str, Entry], column: Column) -> Mapping[str, Any]:
    """Return what a cell shows: text, deviation, bold and mark."""
    entry = row.get(column.key, Entry())
    text, std = entry.rounded()
    return {"text": text, "std": std, "bold": entry.bold, "mark": entry.mark}


def _value(row: Mapping[str, Entry], column: Column) -> str:
    """Return the number by which a cell is sorted, empty for text or nothing."""
    entry = row.get(column.key, Entry())
    if entry.text is None:
        return "" if entry.mean is None else repr(float(entry.mean))
    hidden = row.get(f"{column.key.removeprefix('d_')}_difference")
    return repr(float(hidden.mean)) if hidden is not None and hidden.mean is not None else ""


def _heading(column: Column) -> Mapping[str, str]:
    return {
        "title": column.title,
        "arrow": {"higher": "↑", "lower": "↓"}.get(column.better, ""),
        "better": {"higher": "higher is better", "lower": "lower is better"}.get(column.better, ""),
    }


# -- sections --------------------------------------------------------------------------------------


def _sections(
    found: Found, plugins: Plugins, ranking: str | None, drawn: Mapping[str, list[Figure]]
) -> list[Section]:
    by_ranking = {name: report_of(found, plugins, name).tables for name in RANKINGS}
    compared, _ = compare_of(found, plugins, draws=DRAWS)
    comparisons = {told.name: compare_table.to_table(told) for told in compared}
    sections = []
    for place, group in enumerate(found.groups):
        reference = find_reference(group, found.frozen)
        there = [name for name in RANKINGS if reference or not name.startswith("reference")]
        sections.append(
            Section(
                name=f"t{place}",
                title=group.title,
                shown=pick(ranking, reference),
                tables={name: by_ranking[name][place] for name in there},
                comparison=comparisons.get(group.name),
                figures=drawn.get(group.name, []),
                recipe=recipe_text(group),
                origins=origins(group, plugins),
                classes=_classes(group, plugins, found),
            )
        )
    return sections


def _classes(group: Group, plugins: Plugins, found: Found) -> dict[str, Any]:
    """Return names, counts and difficulty of the classes, and each complete row's accuracies."""
    rows = [row for row in group.rows if row.runs and not row.missing]
    if not rows:
        return {"names": [], "count": [], "rows": []}
    run = rows[0].runs[0]
    count = run.count.tolist()
    names = run.record.dataset.get("classes") or []
    reference = find_reference(group, found.frozen)
    ranked = reference.of(run.seed) if reference else None
    scores = run.accuracy if ranked is None else ranked.scores
    order = np.argsort(np.argsort(-np.nan_to_num(scores), kind="stable"), kind="stable")
    told = [
        {
            "name": notes.row_name(row, plugins),
            "erm": row.is_baseline,
            "accuracy": [
                None if np.isnan(value) else round(100 * float(value), 2)
                for value in np.mean([each.accuracy for each in row.runs], axis=0)
            ],
        }
        for row in rows
        if len(row.runs[0].accuracy) == len(count)
    ]
    shown = [str(name) for name in names] if len(names) == len(count) else None
    return {
        "names": shown or [str(k) for k in range(len(count))],
        "count": count,
        "rank": [int(place) + 1 for place in order],
        "rows": told,
    }


def _figures(
    found: Found, plugins: Plugins, out: Path
) -> tuple[dict[str, list[Figure]], list[str], list[Path]]:
    """Draw and write the figures; return them by table, why others are not there, and the files."""
    if importlib.util.find_spec("matplotlib") is None:
        return {}, ["No figures: they need matplotlib (pip install 'classfair[plots]')."], []
    from classfair_leaderboard import figures

    drawn = figures.draw(found, plugins)
    files = figures.write(drawn, out, ["svg"])
    by_table: dict[str, list[Figure]] = {}
    for drawing in drawn.drawings:
        owner = next((g.name for g in found.groups if drawing.name.startswith(_prefix(g))), "gains")
        figure = Figure(f"figures/{drawing.name}.svg", drawing.title, drawing.caption)
        by_table.setdefault(owner, []).append(figure)
    return by_table, [f"Not drawn: {reason}." for reason in drawn.skipped], files


def _prefix(group: Group) -> str:
    return f"{slug(group.cell.recipe_name)}--{group.cell.recipe_key[:8]}--"


__all__ = ["Figure", "Section", "rendered", "write_page"]
