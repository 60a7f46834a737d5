"""Class-wise difficulty-balanced loss (CDB) as a classfair method.

Sinha, Ohashi, Nakamura: Class-Wise Difficulty-Balanced Loss for Solving Class-Imbalance, ACCV 2020;
Class-Difficulty Based Methods for Long-Tailed Visual Recognition, IJCV 2022.

Idea: weigh classes by how hard they are for the network now, not by how rare they are. With A_k the
accuracy of class k, measured before each pass but the first,

    w_k = K (1 - A_k)^tau / sum_j (1 - A_j)^tau,        L = mean_i w_{y_i} CE_i

and tau fixed, or dynamic: tau = 2 sigmoid(max A / (min A + 0.01) - 1), from 1 for even classes to 2
for uneven ones, as the official ImageNet code has it (its CIFAR code leaves out the 2 and the -1).
That code (hitachi-rd-cv/CDB-loss) measures accuracy on 25 held-out images a class; here it is that
on the training images, without augmentation, so that no image is lost to training. Where all
training images are right the weights are equal. Cost: one forward pass a pass more, 1.33.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Reader, Setup
from classfair_registry.plain import PlainLoss, class_sums
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of CDB."""

    tau: float | None = setting(
        None,
        "power of the difficulty; null is dynamic, 1 to 2 by how uneven the classes are",
        source="official code; its README: 1.5",
        minimum=0.0,
        search=(0.5, 1.0, 1.5, 2.0),
    )


def class_weights(accuracy: Tensor, tau: float | None = None) -> Tensor:
    """Return [K] weights that sum to K, for accuracies [K]."""
    unevenness = accuracy.max() / (accuracy.min() + 0.01) - 1
    weights = (1 - accuracy) ** (2 * torch.sigmoid(unevenness) if tau is None else tau)
    mean = weights.mean()
    return torch.where(mean > 0, weights / torch.where(mean > 0, mean, 1.0), 1.0)


class CDB(PlainLoss):
    """Weigh each class by (1 - its training accuracy)^tau, measured once a pass."""

    weights: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world = setup.world
        self.register_buffer("weights", torch.ones(setup.task.num_classes))

    def measure(self, data: Reader, number: int, _passes: int) -> None:
        """Set the weights from the accuracy of each class; not before the first pass."""
        if number == 0:
            return
        classes = len(self.weights)
        total = torch.zeros(classes, 2, dtype=torch.float64, device=self.weights.device)
        for batch in data.batches():
            right = (self.classifier(batch.images).argmax(1) == batch.labels).double()
            pairs = torch.stack([right, torch.ones_like(right)], 1)
            total += class_sums(pairs, batch.labels, classes)
        right, images = self.world.all_reduce(total).T
        self.weights.copy_(class_weights(right / images.clamp(min=1), self.settings.tau))

    def loss(self, batch: Batch) -> Tensor:
        """Return the weighted mean cross-entropy."""
        losses = F.cross_entropy(self.classifier(batch.images), batch.labels, reduction="none")
        return (self.weights[batch.labels] * losses).mean()

    def phases(self) -> Sequence[Phase]:
        """Return the one phase."""
        return [Phase("train", self.step, [self.optimizer], each_pass=self.measure)]

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the class weights."""
        return {"weight": self.weights}


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return the method."""
    return [
        MethodSpec(
            name="cdb",
            title="CDB",
            make=CDB,
            summary="Class weights by difficulty: one minus the accuracy, to a power",
            reference="Sinha, Ohashi, Nakamura: Class-Wise Difficulty-Balanced Loss, ACCV 2020",
            cost=1.33,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True, decomposable=True),
            reduces_to=lambda _task, settings: "erm" if settings["tau"] == 0 else None,
        )
    ]
