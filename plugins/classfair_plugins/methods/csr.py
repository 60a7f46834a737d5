r"""CSR: confusional spectral regularization, on clean data.

Jin, Wu, Liu, Huang, Mu: Enhancing Robust Fairness via Confusional Spectral Regularization,
ICLR 2025.

Idea: the error of the worst class is the largest column sum of the confusion matrix C, at most
sqrt(K) times its spectral norm. So push that norm down: its derivative by C is u1 v1^T, the outer
product of the top singular vectors, and C's entries, which have no gradient, are replaced by terms
that have one. Before each pass, over the training data in eval mode and with the true logit lowered
by a margin,

    C_ij = number of images of class j that are predicted as i != j,   O = u1 v1^T
    W    = 2 (O - min O) / (max O - min O) + 0.01

and in the pass, with w_i = W[argmax z_i, y_i] as a constant,

    L = (1 - alpha) mean_i CE_i + alpha mean_i w_i (ln w_i + CE_i).

The second term is the divergence from the unnormalised target w_i onehot(y_i).

This is the reading of MR2 (ICLR 2026) without adversarial perturbation: with a clean input the
robust term of TRADES vanishes and all inputs are natural. As the official code
(Alexkael/CONFUSIONAL-SPECTRAL-REGULARIZATION): alpha = 0.3, the relative margin (the true logit
times 0.9), raw counts over the *augmented* training data once a pass, W rescaled to [0.01, 2.01],
and weights for correct predictions too, from the diagonal of W. As the paper, by settings: an
additive margin gamma in {0, 0.1}, each column of C divided by its class's size, O itself for W, and
the sum over errors only.

Cost: that of ERM and one forward pass over the training data a pass, about 1.33; one singular value
decomposition of K x K a pass; K x K numbers.

Traps:
    - With the default W, the gradient is that of a mean with weights 1 - alpha + alpha w_i between
      0.703 and 1.303, near the lower end for most: a bounded re-weighting, and a smaller step.
    - w (ln w + CE) can be negative: read the term ``ce`` beside the loss.
    - Without errors, or with two equal top singular values, O is not defined, and where all classes
      are confused alike it cannot be rescaled: W is then 1 and the pass is ERM.
    - A relative margin *raises* a true logit that is negative.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Reader, Setup, Task
from classfair_registry.plain import PlainLoss, class_mask
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec

_TIE = 1e-8
"""Relative difference of top singular values, or of u1 v1^T's entries, that counts as none."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of CSR."""

    alpha: float = setting(
        0.3,
        "weight of the regularizer against cross entropy",
        source="paper and official code",
        minimum=0.0,
        maximum=1.0,
        search=(0.1, 0.9),
    )
    margin: Literal["relative", "additive", "none"] = setting(
        "relative",
        "how the true logit is lowered when errors are counted",
        source="official code; the paper's is additive",
    )
    gamma: float = setting(
        0.1,
        "size of the margin: share of the true logit, or logit units",
        source="official code and paper",
        minimum=0.0,
        search=(0.0, 0.2),
    )
    counted_on: Literal["augmented", "plain"] = setting(
        "augmented", "training images on which errors are counted", source="official code"
    )
    shares: bool = setting(
        False,
        "divide the errors of a class by its number of training images",
        source="official code; true is the paper's, the same on equal counts",
    )
    weights: Literal["rescaled", "raw"] = setting(
        "rescaled",
        "u1 v1^T rescaled to [0.01, 2.01], or as it is",
        source="official code; raw is the paper's formula",
    )
    correct: bool = setting(
        True,
        "weigh correct predictions by the diagonal of W, or by 0",
        source="official code; false is the paper's sum over errors",
    )


def lowered(logits: Tensor, labels: Tensor, margin: str, gamma: float) -> Tensor:
    """Return [B, K] logits with the true one times 1 - gamma, less gamma, or as they are."""
    own = class_mask(labels, logits.shape[1])
    if margin == "none":
        return logits
    return torch.where(
        own, logits * (1 - gamma) if margin == "relative" else logits - gamma, logits
    )


def confusion(logits: Tensor, labels: Tensor) -> Tensor:
    """Return [K, K] float64 counts of errors: row predicted, column true, zero diagonal."""
    classes = logits.shape[1]
    predicted = logits.argmax(1)
    wrong = (predicted != labels).double()
    cells = wrong.new_zeros(classes * classes).index_add(0, predicted * classes + labels, wrong)
    return cells.view(classes, classes)


def top_outer(matrix: Tensor) -> Tensor | None:
    """Return u1 v1^T of a [K, K] matrix, the gradient of its spectral norm; None if undefined."""
    u, s, vh = torch.linalg.svd(matrix)
    if s[0] - s[1] <= _TIE * s[0]:
        return None
    return torch.outer(u[:, 0], vh[0])


def class_pair_weights(errors: Tensor, weights: str, correct: bool) -> Tensor:
    """Return W, [K, K] like ``errors``, by predicted and true class; ones where undefined."""
    outer = top_outer(errors)
    if outer is None:
        return torch.ones_like(errors)
    low, high = outer.min(), outer.max()
    if weights == "raw":
        # Perron vectors have one sign: what is below zero is rounding.
        found = outer.clamp(min=0)
    elif high - low <= _TIE * high:
        return torch.ones_like(errors)
    else:
        found = 2 * (outer - low) / (high - low) + 0.01
    return found if correct else found.fill_diagonal_(0)


def regularizer(losses: Tensor, weights: Tensor) -> Tensor:
    """Return the [B] divergences w (ln w + CE) from the targets w onehot(y)."""
    return torch.xlogy(weights, weights) + weights * losses


class CSR(PlainLoss):
    """Weigh samples by how much their confusion adds to the spectral norm of the confusion matrix.

    Before each pass errors on the training data are counted by predicted and true class; the outer
    product of the top singular vectors of that matrix, rescaled to [0.01, 2.01], is W. Then
    L = (1 - alpha) mean CE + alpha mean w (ln w + CE), w = W[predicted, true]. Without errors W is
    1 and the pass is ERM.
    """

    weights: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world, self.sizes = setup.world, setup.task.counts
        transform = "train" if settings.counted_on == "augmented" else "eval"
        self.counted = setup.data("train", transform)
        classes = setup.task.num_classes
        self.register_buffer("weights", torch.ones(classes, classes))

    def count_errors(self, _data: Reader, _number: int, _passes: int) -> None:
        """Fill W from the errors of the current network, once a pass."""
        errors = torch.zeros_like(self.weights, dtype=torch.float64)
        for batch in self.counted.batches():
            logits, chosen = self.classifier(batch.images), self.settings
            judged = lowered(logits, batch.labels, chosen.margin, chosen.gamma)
            errors += confusion(judged, batch.labels)
        errors = self.world.all_reduce(errors).cpu()
        if self.settings.shares:
            errors /= torch.tensor(self.sizes).clamp(min=1)
        chosen = self.settings
        self.weights.copy_(class_pair_weights(errors, chosen.weights, chosen.correct))

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the loss with its two terms."""
        logits, alpha = self.classifier(batch.images), self.settings.alpha
        losses = F.cross_entropy(logits, batch.labels, reduction="none")
        weights = self.weights[logits.argmax(1), batch.labels]
        ce, extra = losses.mean(), regularizer(losses, weights).mean()
        return {"loss": (1 - alpha) * ce + alpha * extra, "ce": ce, "regularizer": extra}

    def phases(self) -> Sequence[Phase]:
        """Return the one phase, which counts errors before each pass."""
        return [Phase("train", self.step, [self.optimizer], each_pass=self.count_errors)]

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return W by predicted and true class, [K, K]."""
        return {"W": self.weights}


def reduces_to(_task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return ``erm`` without the regularizer."""
    return "erm" if settings["alpha"] == 0 else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return CSR."""
    return [
        MethodSpec(
            name="csr",
            title="CSR",
            make=CSR,
            summary="Weighs confusions by their part in the confusion matrix's spectral norm",
            reference=(
                "Jin, Wu, Liu, Huang, Mu: Enhancing Robust Fairness via Confusional Spectral "
                "Regularization, ICLR 2025"
            ),
            cost=1.33,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True, decomposable=True),
            reduces_to=reduces_to,
        )
    ]
