"""What the tests of the leaderboard share."""

import pytest

from classfair_registry.manager import Plugins


@pytest.fixture(scope="session")
def plugins() -> Plugins:
    found = Plugins()
    found.add_built_in()
    return found
