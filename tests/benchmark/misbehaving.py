"""A plugin of one file with methods that each end a cell in another way."""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch import nn

from classfair_registry import hookimpl
from classfair_registry.plain import PlainLoss
from classfair_registry.specs import MethodSpec


class Good(PlainLoss):
    """Cross-entropy."""

    def loss(self, batch):
        return nn.functional.cross_entropy(self.classifier(batch.images), batch.labels)


class Raises(Good):
    """Raises in its third step."""

    def loss(self, batch):
        self.steps = getattr(self, "steps", 0) + 1
        if self.steps == 3:
            raise KeyError("lost my way")
        return super().loss(batch)


class Hungry(Good):
    """Runs out of memory."""

    def loss(self, batch):
        raise torch.OutOfMemoryError("tried to allocate 2 TiB")


class Greedy(Good):
    """Asks the CPU for more than there is."""

    def loss(self, batch):
        return torch.empty(1 << 60).sum()


class Diverges(Good):
    """Returns NaN from its second pass on."""

    def loss(self, batch):
        bad = torch.where(batch.progress >= 0.5, torch.nan, 0.0)
        return super().loss(batch) + bad


class Exits(Good):
    """Calls sys.exit."""

    def loss(self, batch):
        raise SystemExit(7)


class Vanishes(Good):
    """Ends the process without a word."""

    def loss(self, batch):
        os._exit(9)


class Peeks(Good):
    """Reads the test split."""

    def __init__(self, setup, settings):
        super().__init__(setup, settings)
        setup.data("test")


@hookimpl
def classfair_methods() -> Iterable[MethodSpec]:
    methods = (Good, Raises, Hungry, Greedy, Diverges, Exits, Vanishes, Peeks)
    return [
        MethodSpec(method.__name__.lower(), method.__name__, method, "for tests", "made here", 1.0)
        for method in methods
    ]
