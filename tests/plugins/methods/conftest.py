"""Worked numbers of the methods, from the notes on their papers and official code."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parents[2] / "data"


@pytest.fixture(scope="session")
def worked_example() -> Callable[[str], dict[str, Any]]:
    """Return a function that gives the inputs, expected values and tolerance of an example."""
    files = ("examples_part1.json", "examples_part2.json")
    every = [item for name in files for item in json.loads((DATA / name).read_text())]
    return {item["id"]: item for item in every}.__getitem__
