"""Running the command line inside a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from toys import TOY_MATRIX, TOY_PLUGIN, TOY_RECIPE

from classfair.cli import run

TOY = ("--plugin", str(TOY_PLUGIN))


class Commands:
    """Runs commands in a folder of their own, with the toy plugin at hand.

    Args:
        folder: the working directory, with ``m.yaml`` and ``base.yaml`` in it.
        output: pytest's capture of what is printed.
    """

    def __init__(self, folder: Path, output: pytest.CaptureFixture[str]) -> None:
        self.folder, self._output = folder, output
        (folder / "m.yaml").write_text(TOY_MATRIX)
        (folder / "base.yaml").write_text(TOY_RECIPE)

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Return exit code, standard output and standard error of a command."""
        self._output.readouterr()
        code = run(arguments)
        printed = self._output.readouterr()
        return code, printed.out, printed.err

    def out(self, *arguments: str) -> str:
        """Return what a command that succeeds prints."""
        code, out, err = self(*arguments)
        assert code == 0, err
        return out

    def json(self, *arguments: str) -> Any:
        """Return the JSON that a command that succeeds prints."""
        return json.loads(self.out(*arguments, "--json"))

    def mistake(self, *arguments: str) -> str:
        """Return the message of a command that ends with exit code 2 and prints nothing else."""
        code, out, err = self(*arguments)
        assert code == 2, err
        assert out == ""
        assert "Traceback" not in err
        return err
