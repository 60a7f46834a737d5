"""Every method that is found keeps the promises of the contract, on the settings of its example."""

from __future__ import annotations

import pytest

from classfair_registry.manager import discover
from classfair_registry.testing import check_method

PLUGINS = discover()
NAMES = [card.name for card in PLUGINS.cards("methods")]


def test_methods_are_found():
    assert "erm" in NAMES
    assert not PLUGINS.broken


@pytest.mark.parametrize("name", NAMES)
def test_a_method_conforms(name):
    results = check_method(PLUGINS.get("methods", name))
    wrong = [f"{result.name}: {result.sentence}" for result in results if not result.passed]
    assert not wrong, "\n".join(wrong)
