r"""DRO: group distributionally robust optimisation, with the classes as groups.

Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group Shifts: On the
Importance of Regularization for Worst-Case Generalization, ICLR 2020.

Idea: minimise the loss of the worst group. An adversary keeps weights q over the groups, starting
at 1 / K, and raises those whose loss is high; the network minimises the loss so weighted. With L_k
the mean cross entropy of class k in the batch, 0 if it is absent, and sg the stop-gradient:

    q_k <- q_k exp(eta sg(L_k + C / sqrt(N_k))),  then q <- q / sum(q)          (algorithm 1)
    L    = sum_k q_k L_k                          with the q just updated

As the paper and as the official code (kohpangwei/group_DRO): update, eta = 0.01, adjustment C,
0 by default, over the square root of a class's number of training images N_k. As the code, not as
the paper's listing, which draws one group a step for exposition: batches hold all groups. Options
of the code: ``normalize_losses`` puts the losses over their sum into the exponent, and
``mode: greedy`` is the conditional value at risk over groups: the classes with the highest running
mean get N_k / (alpha N) each until the weight 1 is used up. Ours: ``present`` divides the loss by
the weight of the classes in the batch; the update is a softmax of logarithms, so that no loss is
too large for it; one C for all classes, so the code's rule that a single zero entry switches all
of them off has nothing to act on. Left out: the automatic adjustment, which reads validation data,
and the sampler that balances groups, which on balanced classes only resamples.

MR2 (ICLR 2026) substitutes class labels for group labels, as here.

Cost: that of ERM, and a few vectors of K numbers.

Traps:
    - On equal counts C changes nothing, as it is the same factor for each class, unless
      ``normalize_losses`` is on. Do not search over it there.
    - A class that is absent from the batch keeps the exponent 0 and adds nothing to the loss, so
      the gradient shrinks by the weight that is present: to 0.72 for 100 classes in batches of 128,
      to 0.40 for 1000 in 512. ``present: true`` undoes that; no official code does.
    - Even at q = 1 / K the loss is the mean over classes, not over samples: the only image of its
      class in a batch weighs as much as three of another.
    - ``mode: greedy`` trains on a share alpha of the classes at a time, so mind small alpha.
    - q sums up losses over the whole run. When training losses vanish it stays where it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Setup
from classfair_registry.plain import PlainLoss, class_counts, class_sums, tiny
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of DRO."""

    eta: float = setting(
        0.01,
        "step size of the class weights",
        source="official code",
        minimum=0.0,
        search=(1e-3, 1e-1),
        log=True,
    )
    adjustment: float = setting(
        0.0,
        "C: adds C / sqrt(N_k) to a class's loss in the exponent; no effect on equal counts",
        source="official code; the paper searches 0 to 5",
        minimum=0.0,
        search=(0.0, 5.0),
    )
    normalize_losses: bool = setting(
        False, "put losses over their sum into the exponent", source="official code"
    )
    present: bool = setting(
        False,
        "divide the loss by the weight of the classes in the batch",
        source="official code; true is ours",
    )
    mode: Literal["exponentiated", "greedy"] = setting(
        "exponentiated",
        "exponentiated gradient, or all weight on the classes with the highest running loss",
        source="paper, algorithm 1",
    )
    alpha: float = setting(
        0.2,
        "greedy: share of the training images that the weighted classes hold",
        source="official code",
        minimum=1e-6,
        maximum=1.0,
    )
    gamma: float = setting(
        0.1,
        "greedy: weight of the batch in the running mean of a class's loss",
        source="official code",
        minimum=0.0,
        maximum=1.0,
    )
    min_weight: float = setting(
        0.0,
        "greedy: share of the weight that is spread over all classes by their size",
        source="official code",
        minimum=0.0,
        maximum=1.0,
    )


def adjusted(means: Tensor, sizes: Tensor, adjustment: float | Tensor) -> Tensor:
    """Return L_k + C_k / sqrt(N_k) for class means [K] and numbers of training images [K]."""
    return means + adjustment / sizes.clamp(min=1).sqrt()


def over_their_sum(losses: Tensor) -> Tensor:
    """Return [K] losses that sum to one, or zeros where all are zero."""
    total = losses.sum()
    return torch.where(total > 0, losses / torch.where(total > 0, total, 1.0), 0.0)


def exponentiated(q: Tensor, losses: Tensor, eta: float) -> Tensor:
    """Return q exp(eta L) over its sum, [K], without overflow."""
    return (q.log() + eta * losses).softmax(0)


def running_mean(
    average: Tensor, seen: Tensor, means: Tensor, counts: Tensor, gamma: float
) -> Tensor:
    """Return [K] running means: the first mean of a class as it is, absent classes unchanged."""
    step = torch.where(seen, gamma, torch.ones_like(means)) * (counts > 0)
    return average + step * (means - average)


def greedy(reference: Tensor, sizes: Tensor, alpha: float, min_weight: float) -> Tensor:
    """Return [K] weights that sum to one, on the classes with the highest ``reference``.

    Each takes its share of the training images over ``alpha`` while there is weight left.
    """
    share = sizes / sizes.sum()
    order = reference.argsort(descending=True, stable=True)
    taken = share[order].cumsum(0)
    ordered = (alpha - taken + share[order]).clamp(min=0).minimum(share[order]) / alpha
    weights = torch.zeros_like(share).scatter(0, order, ordered)
    return min_weight * share + (1 - min_weight) * weights


class DRO(PlainLoss):
    """Weigh classes by q, which an adversary moves towards those with a high loss.

    q_k <- q_k exp(eta L_k), normalised, and then L = sum_k q_k L_k with L_k the mean cross entropy
    of class k in the batch. A class that is absent has L_k = 0; on equal counts the adjustment C
    has no effect.
    """

    q: Tensor
    average: Tensor
    seen: Tensor
    sizes: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world = setup.world
        self.num_classes = setup.task.num_classes
        self.register_buffer("q", torch.full((self.num_classes,), 1 / self.num_classes))
        self.register_buffer("average", torch.zeros(self.num_classes))
        self.register_buffer("seen", torch.zeros(self.num_classes, dtype=torch.bool))
        self.register_buffer("sizes", torch.tensor(setup.task.counts, dtype=torch.float32))

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Update q from the batch and return the loss that it weighs, and how uneven q is."""
        labels = batch.labels
        losses = F.cross_entropy(self.classifier(batch.images), labels, reduction="none")
        means, counts = self._class_means(losses.detach(), labels)
        self._update(means, counts)
        present = counts > 0
        mass = (self.q * present).sum() if self.settings.present else self.q.sum()
        weights = self.q / mass.clamp(min=tiny(mass)) / counts.clamp(min=1)
        # The counts are global, so this is a sum of local terms over a global normaliser.
        loss = (weights[labels] * losses).sum() / self.world.share
        entropy = torch.special.entr(self.q).sum()
        return {"loss": loss, "ce": losses.mean(), "q_max": self.q.max(), "q_entropy": entropy}

    def _class_means(self, losses: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean loss, 0 if absent, and the count of each class in the global batch."""
        sums = class_sums(losses, labels, self.num_classes)
        counts = class_counts(labels, self.num_classes).to(sums.dtype)
        sums, counts = self.world.all_reduce(torch.stack([sums, counts]))
        return sums / counts.clamp(min=1), counts

    @torch.no_grad()
    def _update(self, means: Tensor, counts: Tensor) -> None:
        chosen = self.settings
        average = running_mean(self.average, self.seen, means, counts, chosen.gamma)
        self.average.copy_(average)
        self.seen.logical_or_(counts > 0)
        if chosen.mode == "greedy":
            reference = adjusted(self.average, self.sizes, chosen.adjustment)
            self.q.copy_(greedy(reference, self.sizes, chosen.alpha, chosen.min_weight))
            return
        exponent = adjusted(means, self.sizes, chosen.adjustment)
        if chosen.normalize_losses:
            exponent = over_their_sum(exponent)
        self.q.copy_(exponentiated(self.q, exponent, chosen.eta))

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the class weights q."""
        return {"q": self.q}


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return DRO."""
    return [
        MethodSpec(
            name="dro",
            title="DRO",
            make=DRO,
            summary="Group DRO over classes: weights that grow where the loss is high",
            reference=(
                "Sagawa, Koh, Hashimoto, Liang: Distributionally Robust Neural Networks for Group "
                "Shifts, ICLR 2020"
            ),
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True),
            example={"eta": 0.1, "adjustment": 1.0, "present": True},
        )
    ]
