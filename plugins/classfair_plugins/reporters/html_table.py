"""Tables as one HTML document that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape

from classfair_registry import hookimpl
from classfair_registry.specs import ReporterSpec
from classfair_registry.tables import Column, Entry, Table

_ARROWS = {"higher": "↑", "lower": "↓"}
_BETTER = {"higher": "higher is better", "lower": "lower is better"}
_STYLE = """
:root { color-scheme: light dark }
body { font: 1rem/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem }
div { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap }
th.text, td.text, tbody th { text-align: left }
thead th { border-bottom: 1px solid }
tbody th { font-weight: normal }
small { opacity: .75 }
"""


def render(tables: Sequence[Table]) -> str:
    """Return a document with a section for each table."""
    sections = "\n".join("\n".join(section(table)) for table in tables)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Leaderboard</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>Leaderboard</h1>\n{sections}\n</main>\n</body>\n</html>\n"
    )


def section(table: Table) -> Iterator[str]:
    """Yield the lines of a section: heading, caption, table and footnotes, all text escaped."""
    yield f'<section>\n<h2 id="{escape(table.name)}">{escape(table.title)}</h2>'
    yield f"<p>{escape(table.caption)}</p>" if table.caption else ""
    yield f'<div tabindex="0" role="region" aria-labelledby="{escape(table.name)}">\n<table>'
    yield f"<thead><tr>{''.join(_heading(column) for column in table.reading)}</tr></thead>"
    yield "<tbody>"
    for row in table.rows:
        cells = [
            _cell(row.get(column.key, Entry()), column, first=place == 0)
            for place, column in enumerate(table.reading)
        ]
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody>\n</table>\n</div>"
    if table.footnotes:
        yield f"<ul>{''.join(f'<li>{escape(note)}</li>' for note in table.footnotes)}</ul>"
    yield "</section>"


def _heading(column: Column) -> str:
    arrow = _ARROWS.get(column.better, "")
    told = f' <span title="{_BETTER[column.better]}">{arrow}</span>' if arrow else ""
    kind = ' class="text"' if column.text else ""
    return f'<th scope="col"{kind}>{escape(column.title)}{told}</th>'


def _cell(entry: Entry, column: Column, *, first: bool) -> str:
    mean, std = entry.rounded()
    text = f"<b>{escape(mean)}</b>" if entry.bold and mean else escape(mean)
    spread = f" <small>± {std}</small>" if std else ""
    mark = f" {escape(entry.mark)}" if entry.mark else ""
    kind = ' class="text"' if column.text else ""
    tag, scope = ("th", ' scope="row"') if first else ("td", "")
    return f"<{tag}{scope}{kind}>{text}{spread}{mark}</{tag}>"


@hookimpl
def classfair_reporters() -> Iterable[ReporterSpec]:
    """Provide it."""
    yield ReporterSpec("html", ".html", render, "One HTML document, without scripts.")
