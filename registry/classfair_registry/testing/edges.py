"""Checks that rare batches and extreme values give finite losses, gradients and states."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from classfair_registry.contracts import Phase
from classfair_registry.testing.network import Network
from classfair_registry.testing.subject import Broken, Subject, predict, require_finite
from classfair_registry.testing.toy import Toy

_PASSES = 3


def _ordered(toy: Toy, order: Callable[[Tensor], Tensor]) -> Callable[[Phase], Phase]:
    """Return a change of phases: an order that is a function of the split's labels."""

    def change(phase: Phase) -> Phase:
        labels = toy.split(phase.split).labels.cpu()
        return dataclasses.replace(phase, order=lambda _: order(labels))

    return change


def survives_absent_classes(subject: Subject) -> None:
    """Batches that lack classes, sorted by class, stay finite."""
    toy = subject.toy(passes=_PASSES)
    run = subject.run(toy, _ordered(toy, lambda labels: labels.argsort(stable=True)))
    require_finite(run, "guard means and maxima of classes that are absent from the batch")


def survives_a_class_of_one(subject: Subject) -> None:
    """A class with a single training image stays finite."""
    run = subject.run(subject.toy(passes=_PASSES, counts=(20, 19, 1)))
    require_finite(run, "guard variances and pairs of a class with one sample")


def survives_batches_of_one(subject: Subject) -> None:
    """A batch of one sample, such as a process of several may get, stays finite."""
    toy = subject.toy(passes=_PASSES, batch_size=1)
    run = subject.run(toy, _ordered(toy, lambda labels: torch.arange(min(5, len(labels)))))
    require_finite(run, "guard what needs a second sample, such as pairs and variances")


def survives_constant_features(subject: Subject) -> None:
    """Images, and so features, that are all alike stay finite."""
    for norm in ("none", "batch"):
        network = Network(norm=norm, dropout=0.0)
        run = subject.run(subject.toy(passes=_PASSES, kind="constant", network=network))
        require_finite(run, "add an epsilon to spreads and distances before dividing or rooting")


def survives_zero_features(subject: Subject) -> None:
    """Features that are zero vectors stay finite."""
    run = subject.run(subject.toy(passes=_PASSES, network=Network(feature_scale=0.0)))
    require_finite(run, "normalise with classfair_registry.plain.safe_normalize")


def survives_large_logits(subject: Subject) -> None:
    """Logits of ten thousand, from large weights or from large features, stay finite."""
    for network in (Network(logit_size=1e4), Network(feature_scale=1e4)):
        run = subject.run(subject.toy(passes=_PASSES, network=network))
        require_finite(run, "use log_softmax and logsumexp; do not exponentiate logits")


def runs_in_bfloat16(subject: Subject) -> None:
    """With a bfloat16 backbone it stays finite, and its logits are float32."""
    run = subject.run(subject.toy(passes=_PASSES, network=Network(precision="bf16")))
    require_finite(run, "compute losses and statistics in float32")
    logits = predict(run.method, run.toy.train.images)
    if logits.dtype != torch.float32:
        raise Broken(f"its logits are {logits.dtype}; run heads in float32, outside autocast")
