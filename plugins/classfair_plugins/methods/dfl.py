r"""DFL: discriminative feature learning with the centre loss.

Wen, Zhang, Li, Qiao: A Discriminative Feature Learning Approach for Deep Face Recognition,
ECCV 2016.

Idea: besides separating classes, pull the features of a class together. Each class has a centre c_k
in feature space, and each feature x_i is pulled towards its own:

    L = mean_i CE_i + lambda / 2 mean_i ||x_i - c_{y_i}||^2

Centres are no parameters: after the loss of a batch, with n_k of its samples in class k,

    c_k <- c_k + alpha sum_{i: y_i = k} (x_i - c_k) / (1 + n_k),

so an absent class keeps its centre, a class seen once moves by alpha / 2 of the distance, and
lambda has no part in it. Features are those that the head is given; the loss sees the centres as
they were before the update.

As the paper: the rule above, alpha = 0.5, lambda = 0.003. As the official Caffe layer
(ydwen/caffe-face): the mean over the batch, where the paper prints a sum, which is B times stronger
at the same lambda. That code hands the step to Caffe's SGD instead, where alpha is the scheduled
learning rate (0.1 or 0.01) with momentum and, for faces, weight decay on centres; its lambda is
0.008 for faces and 0.01 for digits. Here centres have neither. ``rule`` has two widespread PyTorch
ports as they are:

    kaiyangzhou   no 1/2 in the loss (twice the pull); c_k += alpha 2 sum (x_i - c_k) / B
    jxgu1016      the paper's step divided by the batch size B

For one sample of a class at B = 128 and alpha = 0.5 a centre moves by 0.25 of the distance in the
paper, by 0.0078 and 0.0020 in the ports. Ours: centres start at zero (as in the centre loss of the
L-GM code; Caffe draws small values), or where a class is first seen (``start``).

Cost: that of ERM, and K x D numbers.

Traps:
    - Random centres far from the features, or a large lambda on unnormalised wide features, make
      losses in the hundreds and NaN; hence the mean form and these two starts.
    - On a cosine head the features have length one, so the pull is at most 2 lambda a sample.
    - The pull is largest where features spread most, which is usually in the hard classes.
    - In a probe the features are fixed: the pull is a constant, and the method is ERM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Setup, Task
from classfair_registry.plain import PlainLoss, class_counts, class_sums
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of DFL."""

    lambda_: float = setting(
        0.003,
        "weight of the pull towards the centre, averaged over the batch",
        source="paper; official code: 0.008 for faces, 0.01 for digits",
        minimum=0.0,
        search=(1e-4, 1e-1),
        log=True,
    )
    alpha: float = setting(
        0.5,
        "step of the centres",
        source="paper; both PyTorch ports",
        minimum=0.0,
        search=(0.1, 1.0),
    )
    rule: Literal["paper", "kaiyangzhou", "jxgu1016"] = setting(
        "paper", "how centres move, and the scale of the pull that goes with it", source="paper"
    )
    start: Literal["zero", "first-seen"] = setting(
        "zero",
        "first centre of a class: the origin, or its mean in the first batch that has it",
        source="centre loss of the L-GM code; first-seen is ours",
    )


def pull(features: Tensor, centers: Tensor, rule: str) -> Tensor:
    """Return the mean of ||x - c||^2 / 2, [], without the half for ``kaiyangzhou``.

    Args:
        features: [B, D].
        centers: [B, D], that of each feature's class.
        rule: see the module.
    """
    squares = (features - centers).square().sum(1).mean()
    return squares if rule == "kaiyangzhou" else squares / 2


def center_step(residuals: Tensor, counts: Tensor, rule: str) -> Tensor:
    """Return the [K, D] moves of the centres for alpha = 1; zero for absent classes.

    Args:
        residuals: [K, D] sums of x - c over the samples of each class in the global batch.
        counts: [K] numbers of these samples.
        rule: see the module.
    """
    if rule == "kaiyangzhou":
        return 2 * residuals / counts.sum()
    steps = residuals / (1 + counts[:, None])
    return steps / counts.sum() if rule == "jxgu1016" else steps


class DFL(PlainLoss):
    """Pull the features of a class together, towards a centre that follows them.

    L = mean CE + lambda / 2 mean ||x_i - c_{y_i}||^2, and after each batch c_k moves by alpha times
    sum (x_i - c_k) / (1 + n_k) over its n_k samples of class k. Centres get no gradient and no
    weight decay. In a probe the features are fixed and this is ERM.
    """

    centers: Tensor
    seen: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world, self.num_classes = setup.world, setup.task.num_classes
        like = next(self.classifier.parameters())
        width = self.classifier.backbone.num_features
        self.register_buffer("centers", like.new_zeros(self.num_classes, width))
        self.register_buffer("seen", like.new_zeros(self.num_classes, dtype=torch.bool))

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the loss with its two terms, and move the centres."""
        features = self.classifier.features(batch.images)
        sums, counts = self._class_sums(features.detach(), batch.labels)
        if self.settings.start == "first-seen":
            self._place(sums, counts)
        ce = F.cross_entropy(self.classifier.head(features), batch.labels)
        distance = pull(features, self.centers[batch.labels], self.settings.rule)
        self._move(sums, counts)
        total = ce + self.settings.lambda_ * distance
        return {"loss": total, "ce": ce, "pull": distance}

    def _class_sums(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return [K, D] sums of features and [K] counts of the global batch."""
        sums = class_sums(features, labels, self.num_classes)
        counts = class_counts(labels, self.num_classes).to(sums.dtype)
        total = self.world.all_reduce(torch.cat([sums, counts[:, None]], 1))
        return total[:, :-1], total[:, -1]

    def _place(self, sums: Tensor, counts: Tensor) -> None:
        """Put the centres of classes that were never seen to the means of the batch."""
        present = counts > 0
        means = sums / counts.clamp(min=1)[:, None]
        new = (present & ~self.seen)[:, None]
        self.centers.copy_(torch.where(new, means, self.centers))
        self.seen.logical_or_(present)

    def _move(self, sums: Tensor, counts: Tensor) -> None:
        residuals = sums - counts[:, None] * self.centers
        step = center_step(residuals, counts, self.settings.rule)
        self.centers.add_(self.settings.alpha * step)

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the norms of the centres, [K]."""
        return {"center_norm": self.centers.norm(dim=1)}


def reduces_to(task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return ``erm`` without the pull, or where it cannot change the features."""
    return "erm" if settings["lambda"] == 0 or task.regime == "probe" else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return DFL."""
    return [
        MethodSpec(
            name="dfl",
            title="DFL",
            make=DFL,
            summary="Centre loss: pulls features towards the centre of their class",
            reference=(
                "Wen, Zhang, Li, Qiao: A Discriminative Feature Learning Approach for Deep Face "
                "Recognition, ECCV 2016"
            ),
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True),
            reduces_to=reduces_to,
            example={"lambda": 0.1, "start": "first-seen"},
        )
    ]
