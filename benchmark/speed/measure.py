"""Timing two pieces of work side by side, on a machine that others use too.

Absolute times on a shared machine differ by half within minutes, so nothing here is judged by
them: work and rival run in turn, in pairs that lie close together in time, and what counts is the
median over the pairs of each pair's own ratio.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np

Work = Callable[[], object]
"""A piece of work; what it returns is dropped."""


@dataclasses.dataclass(frozen=True)
class Spread:
    """Some measurements of one thing: median and quartiles.

    Attributes:
        median, low, high: with a quarter of the values below ``low`` and a quarter above ``high``.
        n: how many.
    """

    median: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return the spread of at least one value."""
        low, median, high = np.quantile(values, (0.25, 0.5, 0.75))
        return cls(float(median), float(low), float(high), len(values))

    def inverse(self) -> Spread:
        """Return the spread of the inverse values."""
        return Spread(1 / self.median, 1 / self.high, 1 / self.low, self.n)


@dataclasses.dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        quick: whether a few small samples will do, to see that everything runs.
        threads: of torch, where a row does not say.
    """

    quick: bool
    threads: int

    def pick(self, full: int, quick: int) -> int:
        """Return the number for this effort."""
        return quick if self.quick else full


@dataclasses.dataclass(frozen=True)
class Measured:
    """What a row found.

    Attributes:
        ours: seconds of our work.
        rival: seconds of the rival's, or of the limit; None if there is none.
        ratio: ours over rival, by pairs.
        curve: (size, seconds) of our work as it grows.
        note: anything that a reader of the figure should know.
    """

    ours: Spread
    rival: Spread | None = None
    ratio: Spread | None = None
    curve: tuple[tuple[int, float], ...] = ()
    note: str = ""

    @property
    def exponent(self) -> float:
        """The steepest growth on the curve: time ~ size ** exponent.

        Between sizes that are a factor of four apart or more: over less, one level of the caches
        that is left behind looks like a law.
        """
        size, taken = np.log(np.array(self.curve)).T
        apart = size[:, None] - size
        steepness = (taken[:, None] - taken) / np.where(apart > 0, apart, 1.0)
        return float(steepness[apart >= np.log(4) - 1e-9].max())


def seconds(work: Work) -> float:
    """Return how long the work took."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Keep the garbage collector out of what is timed."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def pairs(ours: Work, rival: Work, count: int, *, warm: int = 1) -> list[tuple[float, float]]:
    """Return the seconds of ours and of the rival, pair by pair.

    Every other pair is run in the other order, so that neither side gains from its place.
    """
    for _ in range(warm):
        ours()
        rival()
    found = []
    with undisturbed():
        for number in range(count):
            if number % 2:
                second = seconds(rival)
                found.append((seconds(ours), second))
            else:
                first = seconds(ours)
                found.append((first, seconds(rival)))
    return found


def compared(timed: Sequence[tuple[float, float]], *, units: int = 1, note: str = "") -> Measured:
    """Return times for each of the ``units`` that a piece of work consists of, and their ratio."""
    ours, rival = zip(*timed, strict=True)
    return Measured(
        ours=Spread.of([value / units for value in ours]),
        rival=Spread.of([value / units for value in rival]),
        ratio=Spread.of([one / other for one, other in timed]),
        note=note,
    )
