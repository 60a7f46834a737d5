"""Tables as LaTeX and HTML."""

import html.parser
import shutil
import subprocess

import pytest

from classfair_plugins.reporters import html_table, latex
from classfair_registry.tables import Column, Entry, Table

HOSTILE = "<script>alert('x')</script> \\input{a} 50% & $x_1$ #~^{} \"é\" 中 |[0]"
TABLE = Table(
    name="digits--1a2b3c4d",
    title="digits_resnet8",
    columns=(
        Column("method", "method", text=True),
        Column("overall", "overall", "%", "higher"),
        Column("gap", "gap", "points", "lower"),
        Column("hidden", "hidden", only="data"),
    ),
    rows=(
        {
            "method": Entry(text="ERM", mark="◆"),
            "overall": Entry(66.667, 0.3, 3, bold=True),
            "gap": Entry(-5.0, n=1),
        },
        {"method": Entry(text=HOSTILE), "overall": Entry(n=2)},
        {"method": Entry(text="[1]"), "overall": Entry(1.0, 2.0, 3)},
    ),
    caption="Accuracies in %; ± over n seeds, Δ.",
    footnotes=("A note & another_one.", HOSTILE),
)
DOCUMENT = r"""
\documentclass[landscape]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs}
\begin{document}
\input{leaderboard}
\end{document}
"""


def test_latex_is_as_expected_to_the_letter() -> None:
    lines = latex.render([TABLE]).splitlines()
    assert r"\begin{tabular}{lrr}" in lines
    assert r"method & overall $\uparrow$ & gap $\downarrow$ \\" in lines
    assert r"{ERM}$^{\star}$ & {\textbf{66.67}}{\scriptsize\,$\pm$\,0.30} & {$-$5.00} \\" in lines
    assert r"{[1]} & {1.00}{\scriptsize\,$\pm$\,2.00} &  \\" in lines
    rules = [line for line in lines if line.endswith("rule")]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    assert r"\caption{digits\_resnet8. Accuracies in \%; $\pm$ over n seeds, $\Delta$.}" in lines


def test_latex_prints_every_special_character_as_it_is() -> None:
    text = latex.escaped(HOSTILE)
    assert r"\textbackslash{}input\{a\}" in text
    assert r"50\% \& \$x\_1\$ \#\textasciitilde{}\textasciicircum{}\{\}" in text
    assert r"\texttt{U+4E2D}" in text
    assert latex.escaped("a\n\tb\x00") == r"a b\texttt{U+0000}"


@pytest.mark.latex
@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex is installed")
def test_latex_compiles(tmp_path) -> None:
    (tmp_path / "leaderboard.tex").write_text(latex.render([TABLE, TABLE]))
    (tmp_path / "paper.tex").write_text(DOCUMENT)
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 5000


class Reader(html.parser.HTMLParser):
    """Collects tags and text, and checks that tags close."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data


def test_html_is_well_formed_and_escapes_all_text() -> None:
    reader = Reader()
    reader.feed(html_table.render([TABLE]))
    assert reader.open == []
    assert "script" not in reader.tags
    assert reader.text.count(HOSTILE) == 2
    assert reader.tags.count("tr") == 4


def test_html_names_rows_and_columns_for_screen_readers() -> None:
    text = html_table.render([TABLE])
    assert text.count('<th scope="col"') == 3
    assert text.count('<th scope="row"') == 3
    assert '<span title="lower is better">↓</span>' in text
    assert "<b>66.67</b> <small>± 0.30</small>" in text
    assert '<html lang="en">' in text
    assert "http" not in text
