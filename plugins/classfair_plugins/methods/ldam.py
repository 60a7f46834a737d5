r"""LDAM: label-distribution-aware margins, with deferred re-weighting (DRW).

Cao, Wei, Gaidon, Arechiga, Ma: Learning Imbalanced Datasets with Label-Distribution-Aware Margin
Loss, NeurIPS 2019.

Idea: a rare class generalises worse, so ask for a larger margin there. The margin that minimises
the paper's bound shrinks with the fourth root of the number of training images n_k:

    D_k = max_m (n_min / n_k)^(1/4)                                          (equations 9 to 11)
    L_i = -log softmax_{y_i}( s (cos_i - D_{y_i} onehot_{y_i}) )             (equations 12 and 13)

with cos_ik the cosine of feature and class vector. DRW trains without class weights first, and
from a point on with w_k, scaled to sum to the number of classes K:

    w_k ~ (1 - beta) / (1 - beta^n_k),     L = sum_i w_{y_i} L_i / sum_i w_{y_i}

As the paper: margins, loss, max_m = 0.5. As the official code (kaidic/LDAM-DRW), which these
defaults follow where the two differ: the scale s = 30, absent from equation 12; class-balanced
weights with beta = 0.9999, where the paper prints 1 / n_k (``beta: 1`` here); re-weighting from
epoch 160 of 200, a fraction here because recipes differ in length. Left to the recipe: the official
schedule (warm-up, decays at 160 and 180). Left out: reporting the best test epoch.

Cost: that of ERM. No memory beyond K numbers.

Traps:
    - On equal counts every margin is max_m whatever the count, and the loss is an additive-margin
      softmax, *not* cross entropy; DRW is an exact no-op there. So compare with the cosine head at
      ``max_m: 0`` before crediting the margin with what the head does.
    - The scale is the head's: its logits are s cos already, and the margin is taken as s D_k. With
      ``head: recipe`` the recipe's logits are used as they are, so set s to what its head
      multiplies cosines by (for CLIP 100), or read it as the margin's size over max_m.
    - A class without training images counts as one with a single image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Setup, Task
from classfair_registry.plain import PlainLoss, class_mask, weighted_mean
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of LDAM."""

    head: Literal["cosine", "recipe"] = setting(
        "cosine", "cosine head of scale s, or the recipe's own head", source="official code"
    )
    s: float = setting(
        30.0,
        "scale of the cosines and so of the margins",
        source="official code; 10 works about as well (its issue 13)",
        minimum=1.0,
        search=(10.0, 30.0),
        log=True,
    )
    max_m: float = setting(
        0.5,
        "margin of the rarest class, as a cosine",
        source="paper, CIFAR and Tiny ImageNet; 0.3 for iNaturalist",
        minimum=0.0,
        search=(0.1, 0.5),
    )
    drw_start: float = setting(
        0.8,
        "share of the training after which classes are weighted; 1 is never",
        source="official code: epoch 160 of 200",
        minimum=0.0,
        maximum=1.0,
        search=(0.6, 0.8, 1.0),
    )
    beta: float = setting(
        0.9999,
        "of the effective number of images: 0 weighs classes alike, 1 by 1 / n_k",
        source="official code; the paper prints 1 / n_k",
        minimum=0.0,
        maximum=1.0,
        search=(0.99, 0.999, 0.9999, 1.0),
    )


def margins(counts: Sequence[int], max_m: float) -> Tensor:
    """Return the [K] float64 margins D_k = max_m (n_min / n_k)^(1/4) (equations 9 to 11)."""
    n = torch.tensor(counts, dtype=torch.float64).clamp(min=1)
    return max_m * (n.min() / n) ** 0.25


def class_weights(counts: Sequence[int], beta: float) -> Tensor:
    """Return the [K] float64 weights (1 - beta) / (1 - beta^n_k), scaled to sum to K.

    ``beta`` = 1 is the limit 1 / n_k. Equal counts give exactly 1 after rounding to float32.
    """
    n = torch.tensor(counts, dtype=torch.float64).clamp(min=1)
    weights = 1 / n if beta == 1 else (1 - beta) / (1 - beta**n)
    return weights / weights.mean()


def subtract_margin(logits: Tensor, labels: Tensor, margin: Tensor) -> Tensor:
    """Return [B, K] logits whose entry of the true class is lowered by that class's margin [K]."""
    own = class_mask(labels, len(margin))
    return torch.where(own, logits - margin, logits)


class LDAM(PlainLoss):
    """Ask for a larger margin where a class is rarer, then weigh classes the same way (DRW).

    L_i = CE(s (cos_i - D_y onehot_y), y) with D_k = max_m (n_min / n_k)^(1/4), on a cosine head;
    from ``drw_start`` on a mean weighted by w_k ~ (1 - beta) / (1 - beta^n_k). On balanced data
    every margin is max_m and every weight one: an additive-margin softmax, not cross entropy.
    """

    margin: Tensor
    weight: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world = setup.world
        counts = setup.task.counts
        self.register_buffer("margin", margins(counts, settings.max_m).float())
        self.register_buffer("weight", class_weights(counts, settings.beta).float())

    def make_classifier(self, setup: Setup) -> Any:
        """Return the recipe's network with a cosine head of scale s, unless set otherwise."""
        if self.settings.head == "recipe":
            return setup.classifier()
        return setup.classifier(head="cosine", scale=self.settings.s)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over samples, weighted by class from ``drw_start`` on."""
        logits = self.classifier(batch.images)
        lowered = subtract_margin(logits, batch.labels, self.settings.s * self.margin)
        losses = F.cross_entropy(lowered, batch.labels, reduction="none")
        deferred = batch.progress >= self.settings.drw_start
        weight = torch.where(deferred, self.weight, 1.0)[batch.labels]
        return weighted_mean(losses, weight, self.world)

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the margins and the deferred class weights."""
        return {"margin": self.margin, "weight": self.weight}


def reduces_to(task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return ``erm`` for the recipe's head without margin and with equal class weights."""
    equal = task.balanced or settings["drw_start"] == 1 or settings["beta"] == 0
    plain = settings["head"] == "recipe" and settings["max_m"] == 0
    return "erm" if plain and equal else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return LDAM."""
    return [
        MethodSpec(
            name="ldam",
            title="LDAM",
            make=LDAM,
            summary="Cosine head with a margin that grows as a class gets rarer, then DRW",
            reference=(
                "Cao, Wei, Gaidon, Arechiga, Ma: Learning Imbalanced Datasets with "
                "Label-Distribution-Aware Margin Loss, NeurIPS 2019"
            ),
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True),
            reduces_to=reduces_to,
            example={"drw_start": 0.5, "beta": 0.9},
        )
    ]
