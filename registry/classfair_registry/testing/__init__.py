"""The conformance kit: a toy world to train methods in, and checks of what a method promises.

In the tests of a package with a method of its own:

    import pytest
    from classfair_registry.testing import conformance_cases, run_case

    @pytest.mark.parametrize("case", conformance_cases("my_method"), ids=str)
    def test_conforms(case):
        run_case(case)

Everything here imports torch; nothing here imports pytest or the engine.
"""

from classfair_registry.testing.kit import (
    CHECKS,
    Case,
    Check,
    CheckResult,
    check_method,
    conformance_cases,
    run_case,
)
from classfair_registry.testing.loop import Position, load, save, state, train
from classfair_registry.testing.network import Network
from classfair_registry.testing.toy import Toy, UndeclaredSplit
from classfair_registry.testing.worlds import World, in_lockstep

__all__ = [
    "CHECKS",
    "Case",
    "Check",
    "CheckResult",
    "Network",
    "Position",
    "Toy",
    "UndeclaredSplit",
    "World",
    "check_method",
    "conformance_cases",
    "in_lockstep",
    "load",
    "run_case",
    "save",
    "state",
    "train",
]
