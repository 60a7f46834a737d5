"""Bases for methods, and numerics that every loss needs. The one place here that imports torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classfair_registry.contracts import Batch, Phase, Setup, World


class BaseMethod(nn.Module):
    """A method whose answer is that of :meth:`evaluated`."""

    def phases(self) -> Sequence[Phase]:
        """Return the phases in order."""
        raise NotImplementedError

    def evaluated(self) -> Any:
        """Return the classifier to be judged."""
        raise NotImplementedError

    def predict(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to the [B, K] logits of :meth:`evaluated`."""
        logits: Tensor = self.evaluated()(images)
        return logits

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return nothing; methods with class weights or margins return them."""
        return {}


class PlainLoss(BaseMethod):
    """One classifier, one optimiser, one phase: a subclass writes :meth:`loss` and is done."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__()
        self.settings = settings
        self.classifier = self.make_classifier(setup)
        self.optimizer = setup.optimizer(self.classifier)

    def make_classifier(self, setup: Setup) -> Any:
        """Return the classifier to train; override to choose its head."""
        return setup.classifier()

    def loss(self, batch: Batch) -> Tensor | Mapping[str, Tensor]:
        """Return the [] loss of a batch, or its terms by name with the total under ``loss``."""
        raise NotImplementedError

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take one step on the loss and return its terms, detached."""
        terms: dict[str, Tensor] = {}

        def closure() -> Tensor:
            loss = self.loss(batch)
            terms.update({"loss": loss} if isinstance(loss, Tensor) else loss)
            return terms["loss"]

        self.optimizer.step(closure)
        return {name: value.detach() for name, value in terms.items()}

    def phases(self) -> Sequence[Phase]:
        """Return the one phase."""
        return [Phase("train", self.step, [self.optimizer])]

    def evaluated(self) -> Any:
        """Return the classifier."""
        return self.classifier


def tiny(values: Tensor) -> float:
    """Return an epsilon that is far below one but whose square survives in the tensor's dtype."""
    return float(torch.finfo(values.dtype).tiny ** 0.5)


def safe_normalize(values: Tensor, dim: int = -1) -> Tensor:
    """Return vectors of length one along ``dim``; a zero vector stays zero with gradient zero.

    Unlike ``torch.nn.functional.normalize`` it has no huge gradient at zero and no epsilon that
    underflows in half precision.
    """
    square = values.square().sum(dim, keepdim=True)
    zero = square <= tiny(values) ** 2
    return torch.where(zero, 0.0, values * torch.where(zero, 1.0, square).rsqrt())


def class_mask(labels: Tensor, num_classes: int) -> Tensor:
    """Return [B, K] whether a sample is of a class, without a device sync.

    Unlike ``torch.nn.functional.one_hot`` it gives a label outside 0 .. K-1 a row without any.
    """
    return labels[:, None] == torch.arange(num_classes, device=labels.device)


def class_sums(values: Tensor, labels: Tensor, num_classes: int) -> Tensor:
    """Return [K, ...] sums of ``values`` [B, ...] over the samples of each class."""
    sums = values.new_zeros(num_classes, *values.shape[1:])
    return sums.index_add(0, labels, values)


def class_counts(labels: Tensor, num_classes: int) -> Tensor:
    """Return the [K] float32 numbers of samples of each class, without a device sync."""
    ones = torch.ones_like(labels, dtype=torch.float32)
    return class_sums(ones, labels, num_classes)


def weighted_mean(values: Tensor, weights: Tensor, world: World) -> Tensor:
    """Return this process's part of the weighted mean over the global batch.

    Divided by the process's share, because gradients are averaged by share: so any number of
    processes takes the step that one would take with the whole batch.

    Args:
        values: [B] of this process.
        weights: [B] without gradient, not all zero over the processes.
        world: the processes.

    Returns:
        [] sum(weights * values) / sum(weights); alone, exactly that.
    """
    return (weights * values).sum() / (world.all_reduce(weights.sum()) * world.share)
