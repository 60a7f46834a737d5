"""Checks of what a method claims of several processes and of CUDA graphs."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from classfair_registry.testing.loop import state
from classfair_registry.testing.network import Network
from classfair_registry.testing.processes import in_processes
from classfair_registry.testing.subject import Broken, Subject, copy, difference
from classfair_registry.testing.worlds import World, in_lockstep

_PASSES = 3
_TOLERANCE = 1e-3
"""Of the largest entry of a tensor. Sums in another order part by a few 1e-5 here after nine steps;
a statistic of a rank's own samples instead of all parts by more than 1e-2."""

_MEND = (
    "reduce statistics with world.all_reduce, gather pairs with world.all_gather, draw with "
    "world.rand, and divide sums over a global normaliser by world.share"
)


def equals_one_process(subject: Subject) -> None:
    """On two and three processes it does what one process does with the whole batch.

    The batches of 13 and 14 do not divide; batches of 19 leave a last one of two.
    """
    cases: list[tuple[int, Any, int]] = [(2, "sync", 13), (3, "none", 19)]
    if not subject.quick:
        cases = list(itertools.product((2, 3), ("sync", "none"), (13, 19)))
    for size, norm, batch_size in cases:
        kind = {"network": Network(norm=norm, dropout=0.0), "batch_size": batch_size}

        def job(world: World, kind: Mapping[str, Any] = kind) -> dict[str, Tensor]:
            toy = subject.toy(passes=_PASSES, world=world, **kind)
            return copy(state(subject.run(toy).method))

        compare(job(World()), in_lockstep(size, job))


def compare(alone: Mapping[str, Any], ranks: list[dict[str, Any]]) -> None:
    """Raise Broken unless all ranks hold the same state, and nearly that of one process."""
    size = len(ranks)
    for rank, held in enumerate(ranks):
        changed = difference(ranks[0], held)
        if changed:
            raise Broken(f"of {size} processes, 0 and {rank} end with another {changed!r}; {_MEND}")
    for name, wanted in alone.items():
        parted = distance(wanted, ranks[0][name])
        if parted > _TOLERANCE:
            raise Broken(
                f"{size} processes end with another {name!r} than one process with the whole batch "
                f"(by {parted:.1g} of its largest value); {_MEND}"
            )


def distance(wanted: Any, found: Any) -> float:
    """Return the largest difference over the largest value."""
    if not isinstance(wanted, Tensor):
        return 0.0 if wanted == found else float("inf")
    if wanted.shape != found.shape:
        return float("inf")
    if not wanted.numel():
        return 0.0
    scale = wanted.double().abs().max().clamp(min=1e-3)
    return float(((wanted.double() - found.double()).abs().max() / scale).nan_to_num(float("inf")))


def equals_one_process_over_gloo(subject: Subject) -> None:
    """The same on two and three operating-system processes over gloo."""
    kind: dict[str, Any] = {"network": Network(norm="sync", dropout=0.0), "passes": _PASSES}
    alone = state(subject.run(subject.toy(**kind)).method)
    for size in (2, 3):
        compare(alone, in_processes(size, subject.spec, subject.resolved, kind))
