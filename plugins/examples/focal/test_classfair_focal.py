"""classfair's own checks of this method: what its spec claims must hold."""

import pytest

from classfair_registry.testing import Case, conformance_cases, run_case


@pytest.mark.parametrize("case", conformance_cases("focal"), ids=str)
def test_conforms(case: Case) -> None:
    """The case's check passes, or the message says what to mend."""
    run_case(case)
