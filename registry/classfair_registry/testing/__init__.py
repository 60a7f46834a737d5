"""The conformance kit: a toy world to train methods in, and checks of what a method promises.

In the tests of a package with a method of its own:

    import pytest
    from classfair_registry.testing import conformance_cases, run_case

    @pytest.mark.parametrize("case", conformance_cases("my_method"), ids=str)
    def test_conforms(case):
        run_case(case)

Anything here imports torch; nothing imports pytest or the engine.
"""

from classfair_registry.testing.loop import Position, load, save, state, train
from classfair_registry.testing.network import Network
from classfair_registry.testing.toy import Toy, UndeclaredSplit
from classfair_registry.testing.worlds import World, in_lockstep

__all__ = [
    "Network",
    "Position",
    "Toy",
    "UndeclaredSplit",
    "World",
    "in_lockstep",
    "load",
    "save",
    "state",
    "train",
]
