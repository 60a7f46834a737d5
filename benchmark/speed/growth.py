"""How a method's step grows with the number of classes and with the batch, without a network."""

from __future__ import annotations

import functools

import torch

from classfair_registry.contracts import Batch, Reader
from speed.figures import Row, Target
from speed.made import BATCH, FLAT, opened, plugins, recipe, setup
from speed.measure import Effort, Measured, Spread, Work, seconds, undisturbed

SHAPE = (1, 8, 8)
CLASSES = (10, 100, 1_000, 10_000)
BATCHES = (64, 128, 256, 512, 1_024)
REPEATS = 3
"""Steps that are timed at once."""


def rows() -> list[Row]:
    """Return two rows for every method that ships."""
    names = [card.name for card in plugins().cards("methods")]
    by_class = [
        Row(
            f"growth.classes.{name}",
            f"{name} step by number of classes (batch {BATCH}, width 64, no network)",
            "linear",
            Target(1.1, "exponent"),
            functools.partial(over_classes, name),
        )
        for name in names
    ]
    by_batch = [
        Row(
            f"growth.batch.{name}",
            f"{name} step by batch size (100 classes, width 64, no network)",
            "quadratic",
            Target(2.1, "exponent"),
            functools.partial(over_batches, name),
        )
        for name in names
    ]
    return [*by_class, *by_batch]


def over_classes(name: str, effort: Effort) -> Measured:
    """Time steps of all phases at several numbers of classes."""
    sizes = CLASSES[: effort.pick(len(CLASSES), 2)]
    return curve({size: steps(name, size, BATCH) for size in sizes}, effort)


def over_batches(name: str, effort: Effort) -> Measured:
    """Time steps of all phases at several batch sizes."""
    sizes = BATCHES[: effort.pick(len(BATCHES), 3)]
    return curve({size: steps(name, 100, size) for size in sizes}, effort)


def curve(work: dict[int, Work], effort: Effort) -> Measured:
    """Time the work of every size in turn, again and again."""
    for one in work.values():
        one()
    taken: dict[int, list[float]] = {size: [] for size in work}
    with undisturbed():
        for _ in range(effort.pick(11, 2)):
            for size, one in work.items():
                taken[size].append(seconds(one) / REPEATS)
    found = {size: Spread.of(values) for size, values in taken.items()}
    return Measured(
        ours=found[max(found)],
        curve=tuple((size, values.median) for size, values in found.items()),
    )


def steps(name: str, classes: int, size: int) -> Work:
    """Return a few steps of each of a method's phases on one batch."""
    data = opened(max(classes, size), classes, SHAPE)
    method, made = setup(name, data, recipe(batch_size=size), FLAT)
    phases = method.phases()
    batches = [batch_of(made.reader("train"), size, phase.views) for phase in phases]
    method.train()

    def work() -> None:
        for phase, batch in zip(phases, batches, strict=True):
            for _ in range(REPEATS):
                phase.step(batch)

    return work


def batch_of(data: Reader, size: int, views: int) -> Batch:
    """Return images from all over the split, so that many classes are in the batch."""
    index = torch.linspace(0, len(data.labels) - 1, size).long()
    return Batch(index, (data.images(index),) * views, data.labels[index], torch.zeros(()))
