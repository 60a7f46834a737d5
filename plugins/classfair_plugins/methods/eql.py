r"""EQL: the equalization loss, which spares rare classes the gradients of being the wrong answer.

Tan, Wang, Li, Li, Ouyang, Yin, Yan: Equalization Loss for Long-Tailed Object Recognition,
CVPR 2020.

Idea: each sample of a frequent class pushes down the logits of all others. A rare class is pushed
far more often than it is pulled, so these pushes are left out for the *tail*: the classes whose
share f_k of the training images is below lambda (strictly), T_k = 1.

``form: softmax`` (SEQL, equations 9 to 11, for classification) leaves each negative out with
probability gamma, drawn for every sample and class at every step:

    w_ik = 1 - beta_ik T_k (1 - t_ik),  beta_ik ~ Bernoulli(gamma),  t = onehot(y)
    L    = mean_i -log( exp z_iy / sum_k w_ik exp z_ik )

``form: sigmoid`` (equations 6 and 7, for detection) leaves all of them out, E_i being 0 for
background and 1 for any class:

    w_ik = 1 - E_i T_k (1 - t_ik),      L = (1/B) sum_i sum_k w_ik BCE(z_ik, t_ik)

As the paper: both forms, the strict threshold, gamma = 0.95 and lambda = 3.0e-3 of CIFAR-100-LT
(headline) below 1000 classes, lambda = 4.3e-4 of ImageNet-LT from there on. As the official code
(tztztztztz/eql.detectron2), which has the sigmoid form alone: the bias of the head starts at
-ln((1 - pi) / pi) with pi = 0.001, and lambda is 1.77e-3 (1.76e-3 in the paper) of the *images
that contain* a class. As the authors' snippet for the softmax form (its issue 9): one draw for each
sample and class, where the paper is silent, and with ``tail_count`` a threshold on raw counts at
which a class *is* tail. A left-out logit is minus infinity here, not -1e7, which half precision
lacks. Left out: the initial weights of the detection head, N(0, 0.01), and the image-level label
sets of LVIS.

Cost: that of ERM, and one draw of B x K numbers if there is a tail.

Traps:
    - Balanced classes with lambda <= 1 / K have no tail: the softmax form then *is* ERM, bit for
      bit, and draws nothing. A row that differs from ERM's there differs by chance or by settings.
    - With lambda > 1 / K every class is tail: each negative survives with probability 1 - gamma, as
      in a sampled softmax, and losses look far too small. Both cases are logged.
    - The sigmoid form is not softmax cross entropy even without a tail.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Setup, Task
from classfair_registry.plain import PlainLoss, class_mask
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of EQL."""

    form: Literal["softmax", "sigmoid"] = setting(
        "softmax", "softmax with dropped negatives, or one sigmoid a class", source="paper, SEQL"
    )
    gamma: float = setting(
        0.95,
        "probability with which the softmax form drops a negative of a tail class",
        source="paper, CIFAR-100-LT; 0.9 for ImageNet-LT",
        minimum=0.0,
        maximum=1.0,
        search=(0.75, 0.99),
    )
    lambda_: float | None = setting(
        None,
        "a class is tail below this share of the training images; null is 3.0e-3 for fewer than "
        "1000 classes, else 4.3e-4, and 1.77e-3 in the sigmoid form",
        source="paper, CIFAR-100-LT and ImageNet-LT; official code",
        minimum=0.0,
        maximum=1.0,
        search=(4.3e-4, 5e-3),
        log=True,
    )
    tail_count: int | None = setting(
        None,
        "if given, a class with at most so many training images is tail, whatever lambda",
        source="null: the paper's rule; the authors' ImageNet-LT snippet counts",
        minimum=0,
    )
    prior: float | None = setting(
        0.001,
        "probability that each sigmoid starts with, by its bias; null leaves the head's own",
        source="official code",
        minimum=1e-6,
        maximum=0.5,
    )


def threshold(form: str, num_classes: int) -> float:
    """Return the lambda of the form's source; for softmax that of the data set of that size."""
    if form == "sigmoid":
        return 1.77e-3
    return 3.0e-3 if num_classes < 1000 else 4.3e-4


def tail_by_share(shares: Sequence[float], lambda_: float) -> list[bool]:
    """Return T_k = [f_k < lambda], strictly (equation 6)."""
    return [share < lambda_ for share in shares]


def tail_by_count(counts: Sequence[int], tail_count: int) -> list[bool]:
    """Return T_k = [n_k <= tail_count], the rule of the authors' snippet."""
    return [count <= tail_count for count in counts]


def tail_classes(
    counts: Sequence[int], form: str, lambda_: float | None, tail_count: int | None
) -> list[bool]:
    """Return for each class whether it is tail under the settings."""
    if tail_count is not None:
        return tail_by_count(counts, tail_count)
    shares = [count / sum(counts) for count in counts]
    return tail_by_share(shares, threshold(form, len(counts)) if lambda_ is None else lambda_)


def initial_bias(prior: float) -> float:
    """Return the logit at which a sigmoid gives ``prior``."""
    return -math.log((1 - prior) / prior)


def dropped(labels: Tensor, tail: Tensor, draws: Tensor, gamma: float) -> Tensor:
    """Return the [B, K] negatives of tail classes whose uniform draw is below gamma."""
    return ~class_mask(labels, len(tail)) & tail & (draws < gamma)


def softmax_losses(logits: Tensor, labels: Tensor, drop: Tensor) -> Tensor:
    """Return [B] losses with the ``drop``-ped classes out of the denominator (equation 9)."""
    return F.cross_entropy(logits.masked_fill(drop, -math.inf), labels, reduction="none")


def sigmoid_losses(logits: Tensor, labels: Tensor, tail: Tensor) -> Tensor:
    """Return [B] sums over classes (equations 6 and 7); the label K is background."""
    target = class_mask(labels, len(tail))
    foreground = (labels < len(tail))[:, None]
    weight = ~(foreground & tail & ~target)
    each = F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none")
    return (weight * each).sum(1)


class EQL(PlainLoss):
    """Leave out the gradients that push rare classes down as the wrong answer.

    A class is tail if its share of the training images is below lambda. ``softmax`` drops its logit
    as a negative with probability gamma, for each sample; ``sigmoid`` drops its negative term
    always. Without a tail, as on balanced classes with lambda <= 1 / K, the softmax form is ERM
    bit for bit.
    """

    tail: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world = setup.world
        counts, form = setup.task.counts, settings.form
        tail = tail_classes(counts, form, settings.lambda_, settings.tail_count)
        self.register_buffer("tail", torch.tensor(tail))
        self.some, rare = any(tail), sum(tail)
        level = logging.INFO if 0 < rare < len(tail) else logging.WARNING
        _log.log(level, "eql: %d of %d classes are tail", rare, len(tail))

    def make_classifier(self, setup: Setup) -> Any:
        """Return the recipe's classifier, its bias set to the prior in the sigmoid form."""
        classifier = setup.classifier()
        bias = getattr(classifier.head, "bias", None)
        if self.settings.form == "sigmoid" and self.settings.prior is not None and bias is not None:
            torch.nn.init.constant_(bias, initial_bias(self.settings.prior))
        return classifier

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean over samples."""
        logits, labels = self.classifier(batch.images), batch.labels
        if self.settings.form == "sigmoid":
            return sigmoid_losses(logits, labels, self.tail).mean()
        if not self.some:
            return F.cross_entropy(logits, labels)
        draws = self.world.rand(*logits.shape)
        drop = dropped(labels, self.tail, draws, self.settings.gamma)
        return softmax_losses(logits, labels, drop).mean()

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return 1 for tail classes and 0 for the others."""
        return {"tail": self.tail.float()}


def reduces_to(task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return ``erm`` for the softmax form where it drops nothing."""
    form = settings["form"]
    tail = tail_classes(task.counts, form, settings["lambda"], settings["tail_count"])
    drops = any(tail) and settings["gamma"] > 0
    return None if form == "sigmoid" or drops else "erm"


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return EQL."""
    return [
        MethodSpec(
            name="eql",
            title="EQL",
            make=EQL,
            summary="Leaves rare classes out of the softmax as negatives, at random",
            reference=(
                "Tan, Wang, Li, Li, Ouyang, Yin, Yan: Equalization Loss for Long-Tailed Object "
                "Recognition, CVPR 2020"
            ),
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True),
            reduces_to=reduces_to,
            example={"lambda": 0.34, "gamma": 0.5},
        )
    ]
