"""Every method that is found, on the engine itself: repeats and goes on to the last bit."""

from __future__ import annotations

import made
import pytest

from classfair.trainer import Stopped, Trainer
from classfair_registry.manager import discover

PLUGINS = discover()
METHODS = [card.name for card in PLUGINS.cards("methods")]


def trained(name: str, **options) -> Trainer:
    recipe = made.recipe(data={"name": "made", "validation": 0.2}, epochs=6)
    return made.trainer(PLUGINS.get("methods", name), recipe, **options)


def boundaries(name: str) -> tuple[Trainer, list[int]]:
    """Train a whole run; return it and the steps on both sides of each pass's and phase's end."""
    places = []
    whole = trained(name, on_step=lambda done, phase: places.append((phase, whole.at.passes)))
    whole.run()
    ends = [n for n in range(1, len(places)) if places[n] != places[n - 1]]
    around = {step for end in ends for step in (end - 1, end, end + 1)}
    return whole, sorted(step for step in around | {1} if 0 < step < len(places))


@pytest.mark.parametrize("name", METHODS)
def test_it_repeats_and_goes_on_bit_for_bit(name):
    whole, stops = boundaries(name)
    again = trained(name)
    again.run()
    assert made.differences(whole.state(), again.state()) == []
    for stop in stops:
        begun = trained(name, on_step=made.stop_after(stop))
        with pytest.raises(Stopped):
            begun.run()
        fresh = trained(name, seed=99)
        fresh.setup.seed = 0
        fresh.restore(made.saved_and_loaded(begun.state()))
        fresh.run()
        assert made.differences(whole.state(), fresh.state()) == [], f"stopped after step {stop}"
