"""MR2's loss against a loop over classes, written from the paper's formula."""

from __future__ import annotations

import functools
import types
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair.world import Alone
from classfair_registry.contracts import Batch, Task
from speed.figures import Row, Target
from speed.made import CPU, plugins
from speed.measure import Effort, Measured, compared, pairs

SIZES = {(128, 100, 64): 15.0, (512, 1000, 1024): 10.0, (512, 196, 1024): 10.0}
"""How many times faster it should be, by (images in a batch, classes, width of the features)."""
C_BAR, LAMBDA, DECAY = 2.0, 0.5, 0.9


def rows() -> list[Row]:
    """Return the rows."""
    return [
        Row(
            f"loss.mr2.{batch}x{classes}x{width}",
            f"MR2 loss, forward and backward, B {batch}, K {classes}, D {width}, one thread",
            "loop over the classes",
            Target(bound, "speedup"),
            functools.partial(against_loop, batch, classes, width),
            threads=1,
        )
        for (batch, classes, width), bound in SIZES.items()
    ]


def against_loop(batch: int, classes: int, width: int, effort: Effort) -> Measured:
    """Time the method's loss against the loop's, after seeing that both give the same number."""
    given = Given(batch, classes, width)
    labels = torch.randint(0, classes, (batch,), generator=torch.Generator().manual_seed(0))
    sample = Batch(torch.arange(batch), (given.features_given,), labels, torch.zeros(()))
    method, loop = make_mr2(given), ClassLoop(classes)

    def ours() -> Tensor:
        loss: Tensor = method.loss(sample)["loss"]
        loss.backward()
        return loss.detach()

    def rival() -> Tensor:
        loss = loop(given.features_given, given.logits, labels)
        loss.backward()
        return loss.detach()

    torch.testing.assert_close(ours(), rival(), rtol=1e-4, atol=1e-4)
    return compared(pairs(ours, rival, effort.pick(25, 2)))


class Given(nn.Module):
    """A classifier whose features and logits are parameters: nothing but the loss takes time."""

    def __init__(self, batch: int, classes: int, width: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        # Scaled so that distances are near one, as exponentials of large ones overflow.
        values = torch.randn(batch, width, generator=generator) / width**0.5
        self.features_given = nn.Parameter(values)
        self.logits = nn.Parameter(torch.randn(batch, classes, generator=generator))
        self.num_classes = classes

    def features(self, _images: Tensor) -> Tensor:
        """Return the features."""
        return self.features_given

    def head(self, _features: Tensor) -> Tensor:
        """Return the logits."""
        return self.logits


def make_mr2(given: Given) -> Any:
    """Return MR2 around a classifier, with the paper's settings."""
    spec = plugins().get("methods", "mr2")
    classes = given.num_classes
    task = Task(tuple(str(k) for k in range(classes)), (1,) * classes, (1, 1, 1), "scratch")
    setup = types.SimpleNamespace(
        task=task,
        world=Alone(CPU),
        classifier=lambda: given,
        optimizer=lambda _module: None,
    )
    return spec.make(setup, spec.settings(c_bar=C_BAR, lambda_=LAMBDA, decay=DECAY))


class ClassLoop:
    """The paper's Eqs. (1), (2) and (4) as one writes them down: class after class."""

    def __init__(self, classes: int) -> None:
        self.mean_square, self.spread = torch.zeros(classes), torch.zeros(classes)
        self.seen = torch.zeros(classes, dtype=torch.bool)

    def __call__(self, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        groups = [features[labels == k] for k in range(len(self.seen))]
        for k, group in enumerate(groups):
            if len(group):
                self.observe(k, group.detach())
        loss = F.cross_entropy(logits / self.margins()[labels, None], labels)
        s_bar = self.spread[self.seen].mean()
        pairs = sum(pair_loss(group, s_bar) for group in groups if len(group))
        return loss + LAMBDA * pairs / len(labels)

    def observe(self, k: int, group: Tensor) -> None:
        """Update the moving averages of a class."""
        mean = group.mean(0)
        new = (mean.square().sum(), (group - mean).square().sum(1).mean())
        for average, value in zip((self.mean_square, self.spread), new, strict=True):
            average[k] = DECAY * average[k] + (1 - DECAY) * value if self.seen[k] else value
        self.seen[k] = True

    def margins(self) -> Tensor:
        """Return the classes' margins."""
        roots = (self.mean_square + self.spread) ** (1 / 3)
        return torch.where(self.seen, C_BAR * roots / roots[self.seen].mean(), C_BAR)


def pair_loss(group: Tensor, s_bar: Tensor) -> Tensor:
    """Return the summed representation loss of a class's samples."""
    distances = (group[:, None] - group[None]).square().sum(2)
    terms = torch.exp(distances - 2 * s_bar)
    others = 1 - torch.eye(len(group))
    return torch.log1p((terms * others).sum(1)).sum()
