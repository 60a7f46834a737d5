"""Focal loss as a classfair method.

Lin, Goyal, Girshick, He, Dollar: Focal Loss for Dense Object Detection, ICCV 2017.

Idea: samples that are already right should weigh less. With p_y the probability of the label,

    L = mean_i (1 - p_y)^gamma (-log p_y)

The paper's form is for two classes, with a weight for the rarer one; this is the usual one for many
classes, without it. gamma = 2 is the paper's best. With gamma = 0 it is ERM, whose cost it has.
"""

from __future__ import annotations

import dataclasses

import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch
from classfair_registry.plain import PlainLoss, tiny
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the focal loss."""

    gamma: float = setting(
        2.0,
        "how fast a sample's weight falls with its probability",
        source="paper",
        minimum=0.0,
        search=(0.5, 1.0, 2.0, 5.0),
    )


def focal_loss(logits: Tensor, labels: Tensor, gamma: float) -> Tensor:
    """Return the [] focal loss of logits [B, K]."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    # 1 - p without cancellation; the floor keeps the power's slope finite for gamma < 1.
    missing = (-(-losses).expm1()).clamp(min=tiny(losses))
    return (missing**gamma * losses).mean()


class Focal(PlainLoss):
    """Weigh each sample by (1 - p)^gamma, p the probability of its label."""

    def loss(self, batch: Batch) -> Tensor:
        """Return the loss of a batch."""
        return focal_loss(self.classifier(batch.images), batch.labels, self.settings.gamma)


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return the method."""
    return [
        MethodSpec(
            name="focal",
            title="Focal",
            make=Focal,
            summary="Focal loss: samples that are already right weigh less",
            reference="Lin et al.: Focal Loss for Dense Object Detection, ICCV 2017",
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True, decomposable=True),
            reduces_to=lambda _task, settings: "erm" if settings["gamma"] == 0 else None,
        )
    ]
