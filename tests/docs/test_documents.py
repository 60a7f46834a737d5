"""The documents hold: links lead somewhere, commands exist, generated parts are up to date."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import typer.main

from classfair import generate
from classfair.cli import app

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    path for path in ROOT.rglob("*.md") if not {".tox", ".venv", "results"} & set(path.parts)
)
names = [str(path.relative_to(ROOT)) for path in DOCUMENTS]


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), f"{path}: {target}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=names)
def test_verbs_in_examples_exist(path):
    verbs = set(typer.main.get_command(app).commands)
    lines = re.findall(r"^    .*\bclassfair ([a-z]+)", path.read_text(), re.MULTILINE)
    inline = re.findall(r"`classfair ([a-z]+)", path.read_text())
    assert set(lines + inline) <= verbs


def test_what_is_generated_is_up_to_date(capsys):
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_ci_runs_the_commands_of_the_readme():
    found = subprocess.run(
        ["sed", "-n", r"/^<!-- commands -->$/,/^<!-- end -->$/p", "README.md"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    commands = [line.strip() for line in found.splitlines() if line.startswith("    ")]
    assert len(commands) == 2
    assert commands[0].endswith("classfair run quickstart")
    assert commands[1].endswith("tox")
    assert "README.md" in (ROOT / ".ci" / "run").read_text()


def test_the_readme_names_every_folder_of_the_map():
    text = (ROOT / "README.md").read_text()
    for folder in ("registry", "plugins", "benchmark", "leaderboard", "tests"):
        assert f"`{folder}/`" in text
