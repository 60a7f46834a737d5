r"""Tables as LaTeX for papers: booktabs rules, bold and marks, ``mean`` with a small ``± std``.

A file to ``\input``; the preamble needs ``\usepackage{booktabs}`` and ``\usepackage[T1]{fontenc}``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from classfair_registry import hookimpl
from classfair_registry.specs import ReporterSpec
from classfair_registry.tables import Column, Entry, Table

_ARROWS = {"higher": r" $\uparrow$", "lower": r" $\downarrow$"}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "`": r"\textasciigrave{}",
    "±": r"$\pm$",
    "Δ": r"$\Delta$",
    "◆": r"$^{\star}$",
    "…": r"\dots{}",
    "\u00d7": r"$\times$",
    "\u2212": "$-$",
    "\u2013": "--",
    "\u2014": "---",
    "\u2019": "'",
    **{char: f"\\{char}" for char in "&%$#_{}"},
}
_LAST_LATIN = 0xFF


def render(tables: Sequence[Table]) -> str:
    """Return one ``table`` environment a table, separated by blank lines."""
    return "% Needs \\usepackage{booktabs} and \\usepackage[T1]{fontenc}.\n" + "\n".join(
        "\n".join(_table(table)) + "\n" for table in tables
    )


def _table(table: Table) -> Iterator[str]:
    columns = table.reading
    yield r"\begin{table}"
    yield r"\centering\small\setlength{\tabcolsep}{4pt}"
    yield rf"\caption{{{escaped(table.title)}. {escaped(table.caption)}}}"
    yield rf"\begin{{tabular}}{{{''.join('l' if column.text else 'r' for column in columns)}}}"
    yield r"\toprule"
    yield f"{' & '.join(_heading(column) for column in columns)} \\\\"
    yield r"\midrule"
    for row in table.rows:
        yield f"{' & '.join(_cell(row.get(c.key, Entry())) for c in columns)} \\\\"
    yield r"\bottomrule"
    yield r"\end{tabular}"
    for note in table.footnotes:
        yield rf"\par\smallskip{{\footnotesize {escaped(note)}}}"
    yield r"\end{table}"


def _heading(column: Column) -> str:
    return escaped(column.title) + _ARROWS.get(column.better, "")


def _cell(entry: Entry) -> str:
    mean, std = entry.rounded()
    text = escaped(mean) if entry.text is not None else mean.replace("-", "$-$")
    bold = rf"\textbf{{{text}}}" if entry.bold and text else text
    spread = rf"{{\scriptsize\,$\pm$\,{std}}}" if std else ""
    # Braces, so that a first cell that begins with a bracket is no argument of the row's end.
    return f"{{{bold}}}{spread}{escaped(entry.mark)}" if bold else ""


def escaped(text: str) -> str:
    """Return text on one line that LaTeX prints as it is.

    What the usual fonts lack is spelled as its code point, since it would stop the run.
    """
    return "".join(_char(char) for char in " ".join(text.split()))


def _char(char: str) -> str:
    if char in _SPECIAL:
        return _SPECIAL[char]
    if not char.isprintable() or ord(char) > _LAST_LATIN:
        return rf"\texttt{{U+{ord(char):04X}}}"
    return char


@hookimpl
def classfair_reporters() -> Iterable[ReporterSpec]:
    """Provide it."""
    yield ReporterSpec("latex", ".tex", render, "LaTeX tables for papers (booktabs).")
