"""Fixtures of the command line's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Commands


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Commands:
    """Return a runner of commands in a folder of its own, with a cache of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLASSFAIR_CACHE", str(tmp_path / "cache"))
    for name in ("CLASSFAIR_DATA", "CLASSFAIR_RESULTS", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return Commands(tmp_path, capsys)
