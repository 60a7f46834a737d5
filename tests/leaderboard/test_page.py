"""The page as text: everything is there, nothing from records is markup, nothing is fetched."""

import base64
import hashlib
import html.parser
import json
import re

import made_records as made
import numpy as np
import pytest
from made_tables import ERM, LABEL, MR2, add_ranking_runs, fill

from classfair_leaderboard.groups import RANKINGS
from classfair_leaderboard.page import write_page
from classfair_leaderboard.reporting import read
from classfair_registry.errors import UsageError

HOSTILE = "</script><script>alert('x')</script> \"onload=alert(1)\" <img src=http://evil/x> &amp; é"
VOID = {"meta", "img", "input", "br"}


class Reader(html.parser.HTMLParser):
    """Collects elements with their attributes, and checks that they close."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.scripts: list[str] = []

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def page(results, plugins, out, **given) -> Reader:
    write_page(read(results), plugins, out, **{"figures": False} | given)
    reader = Reader()
    reader.feed((out / "index.html").read_text())
    assert reader.open == []
    return reader


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    cells = fill(folder, erm=ERM, mr2=MR2)
    add_ranking_runs(folder, ERM)
    made.expect(folder, [*cells, made.cell("sam")], "quick", "Quick.")
    return folder


def test_every_ranking_every_row_and_the_comparison_are_there(results, plugins, tmp_path) -> None:
    read_page = page(results, plugins, tmp_path)
    grids = [a for a in read_page.all("div") if a.get("data-ranking")]
    assert [a["data-ranking"] for a in grids] == list(RANKINGS)
    assert [a["data-ranking"] for a in grids if "hidden" not in a] == ["reference"]
    for text in ("ERM", "MR2", "SAM: 0 of 1 seeds", "Differences to ERM", "The paper's claims"):
        assert text in read_page.text
    values = [a["data-value"] for a in read_page.all("td") if a.get("data-value")]
    assert all(np.isfinite(float(value)) for value in values)
    assert "60.0" in values


def test_the_ranking_that_is_asked_for_is_shown_first(results, plugins, tmp_path) -> None:
    read_page = page(results, plugins, tmp_path, ranking="own_crossfit")
    shown = [a for a in read_page.all("div") if a.get("data-ranking") and "hidden" not in a]
    assert [a["data-ranking"] for a in shown] == ["own_crossfit"]
    selected = [a for a in read_page.all("option") if "selected" in a]
    assert len(selected) == 1


def test_where_each_number_comes_from_is_said(results, plugins, tmp_path) -> None:
    path = next(results.glob("mr2--*--s0--*"))
    record = made.Record.load(path / "record.json")
    told = record.model_copy(
        update={
            "provenance": {
                "commit": "c0ffee" * 6,
                "dirty": True,
                "command": ["classfair", "run", "my matrix"],
                "finished": "2026-01-02T03:04:05+00:00",
            },
            "own_digest": "",
        }
    )
    told.sealed().save(path / "record.json")
    text = page(results, plugins, tmp_path).text
    for fact in (
        f"{'c0ffee' * 6} with changes",
        "classfair run 'my matrix'",
        "a CPU",
        "torch 2.14.1",
        record.cell.key,
        record.result_digest,
        "3 steps, 300 images forward, 300 backward",
        "ERM, ranking the classes: 3 runs",
        '"regime": "scratch"',
    ):
        assert fact in text, fact


def test_no_text_of_a_record_is_markup(tmp_path, plugins) -> None:
    fill(tmp_path / "r", erm=ERM)
    method = made.method("mr2", label=HOSTILE, title=HOSTILE, plugin=HOSTILE, version=HOSTILE)
    dataset = {"title": HOSTILE, "classes": [HOSTILE] * 4, "headline": "overall"}
    for seed, accuracy in enumerate(MR2):
        cell = made.cell("mr2", seed, method=method.model_copy(update={"settings": {"x": HOSTILE}}))
        machine = {"device_name": HOSTILE, "packages": {HOSTILE: HOSTILE}}
        provenance = {"finished": HOSTILE, "command": [HOSTILE], "commit": HOSTILE}
        given = {"dataset": dataset, "machine": machine, "provenance": provenance}
        made.write(tmp_path / "r", cell, made.exactly(LABEL, accuracy), **given)
    (tmp_path / "r" / HOSTILE.replace("/", "")).mkdir()
    (tmp_path / "r" / HOSTILE.replace("/", "") / "record.json").write_text("{")
    made.expect(tmp_path / "r", [made.cell("dro")], "quick", HOSTILE)
    read_page = page(tmp_path / "r", plugins, tmp_path / "out", figures=True)
    assert len(read_page.all("script")) == 2
    assert all("evil" not in str(a.get("src")) for a in read_page.all("img"))
    for _, attributes in read_page.elements:
        assert not any(name.startswith("on") for name in attributes)
    assert read_page.text.count("alert('x')") > 10
    data = json.loads(read_page.scripts[0])
    assert data["t0"]["names"] == [HOSTILE] * 4 or data["t0"]["rows"][1]["name"] == HOSTILE


def test_nothing_runs_but_the_script_of_the_page_and_nothing_is_fetched(
    results, plugins, tmp_path
) -> None:
    read_page = page(results, plugins, tmp_path)
    text = (tmp_path / "index.html").read_text()
    policy = read_page.all("meta")[1]["content"]
    script, style = (
        re.search(rf"<{tag}>(.*?)</{tag}>", text, re.DOTALL).group(1) for tag in ("script", "style")
    )
    for kind, content in (("script", script), ("style", style)):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert "default-src 'none'" in policy
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert not any("style" in attributes for _, attributes in read_page.elements)
    assert read_page.all("link") == []


def test_tables_and_controls_have_names_for_screen_readers(results, plugins, tmp_path) -> None:
    read_page = page(results, plugins, tmp_path, figures=True)
    assert read_page.all("html")[0]["lang"] == "en"
    assert all(a["scope"] in ("col", "row") for a in read_page.all("th"))
    assert len(read_page.all("caption")) == len(read_page.all("table"))
    assert all(len(a["alt"]) > 20 for a in read_page.all("img"))
    controls = len(read_page.all("select")) + len(read_page.all("input"))
    assert len(read_page.all("label")) == controls
    regions = [a for a in read_page.all("div") if a.get("role") == "region"]
    assert all(a["tabindex"] == "0" and a["aria-label"] for a in regions)
    ids = [a["id"] for _, a in read_page.elements if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {a["href"][1:] for a in read_page.all("a") if a["href"].startswith("#")}
    assert targets <= set(ids)


def test_figures_lie_beside_the_page(results, plugins, tmp_path) -> None:
    pytest.importorskip("matplotlib", reason="figures need the extra plots")
    files = write_page(read(results), plugins, tmp_path / "out")
    read_page = page(results, plugins, tmp_path / "out", figures=True)
    sources = [a["src"] for a in read_page.all("img")]
    assert len(sources) == len(files) - 1 > 3
    assert all((tmp_path / "out" / source).is_file() for source in sources)


def test_without_matplotlib_the_page_says_how_to_have_figures(
    results, plugins, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    read_page = page(results, plugins, tmp_path, figures=True)
    assert "pip install 'classfair[plots]'" in read_page.text
    assert read_page.all("img") == []


def test_the_same_results_give_the_same_page(results, plugins, tmp_path) -> None:
    page(results, plugins, tmp_path / "a")
    page(results, plugins, tmp_path / "b")
    assert (tmp_path / "a" / "index.html").read_bytes() == (
        tmp_path / "b" / "index.html"
    ).read_bytes()


def test_an_empty_folder_makes_a_page_that_says_so(tmp_path, plugins) -> None:
    (tmp_path / "r").mkdir()
    read_page = page(tmp_path / "r", plugins, tmp_path)
    assert "Nothing was left out." in read_page.text
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write there"):
        write_page(read(tmp_path / "r"), plugins, tmp_path / "file", figures=False)
