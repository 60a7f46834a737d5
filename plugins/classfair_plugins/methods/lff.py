"""LfF: learning from failure (Nam et al., NeurIPS 2020).

Idea. Train two networks at once. A biased one is driven to what is easy by a loss that favours
samples it already gets right; a debiased one, which is the one that is judged, is trained with
larger weights on the samples that the biased one finds relatively hard.

Equations. p the biased network's probability of the label, CE_B and CE_D the cross-entropies of
the two networks:

    biased    mean of (1 - p^q) / q, the generalised cross-entropy, with gradient p^q dCE_B
    debiased  mean of W CE_D, where W = u_B / (u_B + u_D + 1e-8) is a constant.

u is a sample's moving average of CE over that network's visits (its first value taken whole, then
0.7 of the old one), divided by the largest average of its class over the whole training split,
taken after the update; samples that were not visited yet count as zero.

From the official code (the default): the moving averages and the class maximum, which the paper's
W = CE_B / (CE_B + CE_D) leaves out; both updates on one augmented batch, with losses of that very
forward pass; a surrogate q sg(p^q) CE_B, whose gradient is q times the paper's. ``surrogate:
paper`` drops the factor q: under SGD a step of the biased network that is 1/q larger. From us:
where all averages of a class are zero W is 0.5; the code divides zero by zero there.

Cost. Two forward and two backward passes, two sets of weights and optimiser states: 2. The class
maximum is one scatter over the training split a step instead of the code's scan for each class.

Traps. Scaling all losses of a class changes no W, so LfF shifts weight within a class and never to
a hard class as such. The only visited sample of a class has W 0.5, so with many classes much of the
first pass is unweighted. W is not renormalised: about half on average, as if the debiased network
learnt at half the rate. Without the stop-gradient in the surrogate it is another loss.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Setup
from classfair_registry.plain import BaseMethod
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec

EPSILON = 1e-8


@dataclasses.dataclass(frozen=True)
class Settings:
    """See the equations."""

    q: float = setting(
        0.7,
        "how strongly the biased network prefers what it gets right",
        source="paper and official code",
        minimum=0.01,
        maximum=1.0,
        search=(0.3, 1.0),
    )
    decay: float = setting(
        0.7,
        "share of the old value in a sample's moving averages",
        source="official code, train.py",
        minimum=0.0,
        maximum=0.999,
        search=(0.5, 0.9),
    )
    surrogate: Literal["official", "paper"] = setting(
        "official",
        "loss of the biased network: q sg(p^q) CE, or (1 - p^q) / q, whose gradient is 1/q larger",
        source="official code, module/loss.py",
    )


def surrogate_losses(logits: Tensor, labels: Tensor, q: float, form: str) -> Tensor:
    """Return the [B] losses of the biased network for logits [B, K]."""
    losses = F.cross_entropy(logits, labels, reduction="none")
    if form == "official":
        return q * torch.exp(-q * losses.detach()) * losses
    return -torch.expm1(-q * losses) / q


def moving_average(old: Tensor, new: Tensor, visited: Tensor, decay: float) -> Tensor:
    """Return averages of [..., B] values; ``new`` where [B] ``visited`` is false."""
    return torch.where(visited, decay * old + (1 - decay) * new, new)


def relative_losses(table: Tensor, labels: Tensor, index: Tensor, num_classes: int) -> Tensor:
    """Return [B] averages at ``index`` as shares of the largest of their class, in [0, 1].

    Args:
        table: [N] averages of all training samples, not negative.
        labels: [N].
        index: [B].
        num_classes: K.
    """
    largest = table.new_zeros(num_classes).scatter_reduce(0, labels, table, "amax")[labels[index]]
    return table[index] / torch.where(largest > 0, largest, 1.0)


def difficulty_weights(biased: Tensor, debiased: Tensor) -> Tensor:
    """Return the [B] weights W for relative losses [B] of the two networks."""
    total = biased + debiased
    return torch.where(total > 0, biased / (total + EPSILON), 0.5)


class LfF(BaseMethod):
    """A debiased network, weighted towards what a biased one finds relatively hard.

    The biased network minimises (1 - p^q) / q; the debiased one W CE with W = u_B / (u_B + u_D),
    where u is a moving average of a sample's loss over the largest one of its class.
    """

    table: Tensor
    visited: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.world, self.task = setup.world, setup.task
        self.classifier, self.biased = setup.classifier(init=0), setup.classifier(init=1)
        self.optimizer = setup.optimizer(self.classifier)
        self.biased_optimizer = setup.optimizer(self.biased)
        like = next(self.classifier.parameters())
        self.register_buffer("table", like.new_zeros(2, setup.task.num_train))
        self.register_buffer("visited", like.new_zeros(setup.task.num_train, dtype=torch.bool))

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """Update both networks; return their losses and the sum."""
        losses: list[Tensor] = []

        def biased_loss() -> Tensor:
            logits, settings = self.biased(batch.images), self.settings
            losses.append(F.cross_entropy(logits.detach(), batch.labels, reduction="none"))
            return surrogate_losses(logits, batch.labels, settings.q, settings.surrogate).mean()

        def debiased_loss() -> Tensor:
            each = F.cross_entropy(self.classifier(batch.images), batch.labels, reduction="none")
            losses.append(each.detach())
            return (self._weights(batch.index, torch.stack(losses)) * each).mean()

        biased = self.biased_optimizer.step(biased_loss)
        debiased = self.optimizer.step(debiased_loss)
        return {"loss": biased + debiased, "biased": biased, "debiased": debiased}

    @torch.no_grad()
    def _weights(self, index: Tensor, losses: Tensor) -> Tensor:
        """Enter [2, B] losses of this process's samples and all others'; return [B] weights."""
        everyone = self.world.all_gather(index)
        new = self.world.all_gather(losses.T.contiguous()).T
        old, visited = self.table[:, everyone], self.visited[everyone]
        self.table[:, everyone] = moving_average(old, new, visited, self.settings.decay)
        self.visited[everyone] = True
        labels, classes = self.task.labels, self.task.num_classes
        assert isinstance(labels, Tensor)
        return difficulty_weights(*(relative_losses(t, labels, index, classes) for t in self.table))

    def phases(self) -> Sequence[Phase]:
        """Return the one phase."""
        return [Phase("train", self.step, [self.optimizer, self.biased_optimizer])]

    def evaluated(self) -> Any:
        """Return the debiased network."""
        return self.classifier


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return LfF."""
    return [
        MethodSpec(
            name="lff",
            title="LfF",
            make=LfF,
            summary="Two networks; the judged one learns most from what the biased one fails at.",
            reference="Nam et al.: Learning from Failure: De-biasing Classifier from Biased "
            "Classifier. NeurIPS 2020",
            cost=2.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True),
        )
    ]
