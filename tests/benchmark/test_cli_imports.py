"""Which verbs answer without torch, and what a child process imports of the main module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from toys import TOY_PLUGIN, expanded, finish

from classfair.results import Results

TOY = ("--plugin", str(TOY_PLUGIN))
WITHOUT_TORCH = """
import sys
from classfair.cli import run
code = run(sys.argv[1:])
assert "torch" not in sys.modules, "torch was imported"
sys.exit(code)
"""


def python(program: str, *arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--help",),
        ("run", "--help"),
        ("list", "methods"),
        ("list", "plugins", "--json"),
        ("describe", "method", "mr2"),
        ("describe", "backbone", "resnet8"),
        ("plan", "quickstart"),
        ("plan", "fashion15"),
        ("status", "results"),
        ("report", "results", "--out", "out", *TOY),
        ("compare", "results", *TOY),
    ],
    ids=" ".join,
)
def test_verbs_that_read_never_import_torch(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    if "results" in arguments:
        expansion = expanded(tmp_path)
        Results(tmp_path / "results").prepare()
        Results(tmp_path / "results").expect(expansion.info)
        for cell in expansion.cells:
            finish(tmp_path / "results", cell)
    ended = python(WITHOUT_TORCH, *arguments, folder=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout
    assert "\x1b" not in ended.stdout


def test_the_main_module_imports_nothing_of_the_command_line(tmp_path: Path) -> None:
    program = "import sys, classfair.__main__; print([m for m in sys.modules if 'typer' in m])"
    assert python(program, folder=tmp_path).stdout == "[]\n"


def test_a_mistake_is_one_message_and_no_traceback(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "classfair", "plan", "quikstart"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("classfair: no experiment 'quikstart'; did you mean quickstart")
    assert len(ended.stderr.splitlines()) == 1
