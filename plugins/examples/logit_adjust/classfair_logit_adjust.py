"""Logit adjustment as a classfair method.

Menon, Jayasumana, Rawat, Jain, Veit, Kumar: Long-tail Learning via Logit Adjustment, ICLR 2021.

Idea: the answer that is best for the mean over classes leaves the class frequencies out. Put them
into the softmax while training, and the network need not learn them. With pi_k the share of class k
among the training images,

    L = mean_i CE(z_i + tau log pi, y_i),        predictions from z alone.

tau = 1 is consistent for the mean over classes; the paper's other form, post hoc, subtracts
tau log pi from the logits of a plain network instead. Equal shares cancel: the method is ERM there.
Its cost is that of ERM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Setup, Task
from classfair_registry.plain import PlainLoss
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of logit adjustment."""

    tau: float = setting(
        1.0,
        "strength of the adjustment",
        source="paper",
        minimum=0.0,
        search=(0.5, 1.0, 1.5, 2.0),
    )


def log_priors(counts: Sequence[int]) -> Tensor:
    """Return the [K] logarithms of the class shares; a class without images counts as one."""
    images = torch.tensor(counts, dtype=torch.float32).clamp(min=1)
    return (images / images.sum()).log()


class LogitAdjust(PlainLoss):
    """Add tau times the log class frequency to the logits while training, not when predicting."""

    adjustment: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.register_buffer("adjustment", settings.tau * log_priors(setup.task.counts))

    def loss(self, batch: Batch) -> Tensor:
        """Return the cross-entropy of the adjusted logits."""
        return F.cross_entropy(self.classifier(batch.images) + self.adjustment, batch.labels)

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return what is added to each class's logit."""
        return {"adjustment": self.adjustment}


def reduces_to(task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return ``erm`` where all classes get the same."""
    return "erm" if task.balanced or settings["tau"] == 0 else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return the method."""
    return [
        MethodSpec(
            name="logit_adjust",
            title="Logit adjustment",
            make=LogitAdjust,
            summary="Logit-adjusted softmax: class frequencies inside the training softmax",
            reference="Menon et al.: Long-tail Learning via Logit Adjustment, ICLR 2021",
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True, decomposable=True),
            reduces_to=reduces_to,
        )
    ]
