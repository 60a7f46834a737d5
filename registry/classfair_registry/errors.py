"""Errors that carry their own message for the user, and the exit code that goes with them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ClassfairError(Exception):
    """A failure that is the run's, not the user's: exit code 1, printed without a traceback."""

    exit_code = 1


class UsageError(ClassfairError):
    """A mistake in a name, key, type or path, found before anything runs: exit code 2."""

    exit_code = 2


class DataMissing(UsageError):
    """A data set is not where it was looked for; the message says which files are wanted."""


class DataBad(ClassfairError):
    """A data set is there but is not what its manifest says."""


class Diverged(ClassfairError):
    """A loss term became NaN or infinite.

    Args:
        term: name of the term as the method's step returned it.
        step: 0-based step of the whole run at which it was first seen.
        value: what it was.
    """

    def __init__(self, term: str, step: int, value: float) -> None:
        super().__init__(f"{term} became {value} at step {step}")
        self.term, self.step, self.value = term, step, value


def near(name: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean a, b?"`` for the known names closest to ``name``, or all of them."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    if close:
        return f"; did you mean {', '.join(close)}?"
    return f"; known: {', '.join(names)}" if names else ""
