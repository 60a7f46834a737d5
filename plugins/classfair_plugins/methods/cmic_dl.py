r"""CMIC-DL: deep learning constrained by conditional mutual information.

Yang, Mohajer Hamidi, Ye, Tan, Yang: Conditional Mutual Information Constrained Deep Learning for
Classification, arXiv 2309.09123; IEEE TNNLS 36(8), 2025.

Idea: look at the network's answers as points on the simplex. Those of a class should lie close
together (small conditional mutual information of input and answer given the class), those of
different classes far apart. With p_i = softmax(z_i), Q_c the mean answer of class c, D the
Kullback-Leibler divergence and H the cross entropy, in nats,

    CMI   = mean_i D(p_i || Q_{y_i})
    Gamma = (1 / n^2) sum over pairs i, j with y_i != y_j of H(p_i, p_j)

The paper minimises the cross-entropy under a bound on CMI / Gamma, by its Lagrangian, which
alternates a step on the weights at fixed Q with Q_c <- mean of p over images of class c:

    L = mean CE_i + lambda CMI - beta Gamma          both over the batch, no gradient into Q

No official code was found. The batch objective and its normaliser B^2 are the paper's. As code of
the same group (iclr2024mcmi/ICLRMCMI): logarithms stop at 1e-25, and by default -ln p_j has no
gradient in Gamma. With it (``detach: false``, the whole derivative) Gamma has a steady slope up to
that floor, and runs there within a few passes. ``normalizer: pairs``, the mean over the pairs that
differ, is that code's too. Where Q comes from (``centroids``; it starts at 1 / K):

    batch   after each step, from the batch's own answers, Q <- decay Q + (1 - decay) mean for the
            classes in it; decay 0.99. Ours, as it costs nothing.
    pass    from all training images before each pass; decay 0. As that code before fine-tuning.
    probe   after each step, from 8 training images a class, the same positions for all classes;
            decay 0.9999. The paper's batches B_c; that code runs them in train mode, which moves
            BatchNorm's statistics by class-balanced images, so here they run in eval mode.

lambda and beta are chosen for each model in the paper, near 0.7 and from 0.2 to 0.4 as far as we
know, which we could not check: search them.

Cost: that of ERM with ``batch``; one forward pass a pass more with ``pass`` (1.33); with ``probe``
8 K forward images a step: 3.1 for 100 classes at batch 128. A B x B matrix and K x K numbers.

Traps:
    - While Q is near uniform the first term is ln K - H(p): it rewards entropy, the opposite of
      concentration. At decay 0.9999 the uniform start is still 46 % of Q after 7820 steps.
    - -Gamma has no lower bound but that of the logarithm: keep beta below about 0.5, above all with
      ``detach: false``, whose logits are far too large for any margin or calibration to mean much.
    - B^2 counts pairs of one class as zeros: for K balanced classes ``pairs`` is K / (K - 1) times
      as large. A batch of one class has no pair and Gamma 0.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Reader, Setup, Task
from classfair_registry.plain import PlainLoss, class_counts, class_sums
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec

PROBED = 8
"""Images of each class in a probe (paper: the size of B_c)."""

DECAY: Mapping[str, float] = {"batch": 0.99, "pass": 0.0, "probe": 0.9999}
"""Decay of Q by where it comes from, unless the settings say otherwise."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of CMIC-DL."""

    lambda_: float = setting(
        0.7,
        "weight of the conditional mutual information",
        source="paper: near 0.7, by model; unverified",
        minimum=0.0,
        search=(0.1, 0.3, 0.5, 0.7, 0.9),
    )
    beta: float = setting(
        0.2,
        "weight of the separation of different classes",
        source="paper: 0.2 to 0.4, by model; unverified",
        minimum=0.0,
        search=(0.0, 0.1, 0.2, 0.4),
    )
    centroids: Literal["batch", "pass", "probe"] = setting(
        "batch",
        "images that the mean answers Q come from",
        source="ours; paper: probe, code of the same group: pass",
    )
    decay: float | None = setting(
        None,
        "share of the old Q at an update; null: 0.99 for batch, 0 for pass, 0.9999 for probe",
        source="code of the same group for probe and pass; ours for batch",
        minimum=0.0,
        maximum=1.0,
    )
    detach: bool = setting(
        True,
        "no gradient through the logarithm in the separation",
        source="code of the same group; paper: false",
    )
    normalizer: Literal["square", "pairs"] = setting(
        "square",
        "divide the separation by B^2 or by the number of pairs of different classes",
        source="paper; pairs: code of the same group",
    )
    floor: float = setting(
        1e-25,
        "probabilities below it count as it in logarithms",
        source="code of the same group",
        minimum=1e-37,
        maximum=1e-3,
    )


def log_answers(logits: Tensor, floor: float) -> Tensor:
    """Return ln p, [B, K], not below ln(floor)."""
    return logits.log_softmax(1).clamp(min=math.log(floor))


def concentration(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return the [B] divergences D(p_i || q_i) from logarithms [B, K]."""
    return (log_p.exp() * (log_p - log_q)).sum(1)


def separation(log_p: Tensor, others: Tensor, different: Tensor) -> Tensor:
    """Return the [B] sums of H(p_i, p_j) over the others j of different classes.

    Args:
        log_p: [B, K].
        others: [N, K] logarithms.
        different: [B, N], 1 for a pair of different classes, else 0.
    """
    return -(log_p.exp() @ others.T * different).sum(1)


def moved(q: Tensor, means: Tensor, counts: Tensor, decay: float) -> Tensor:
    """Return Q moved towards the mean answers of the classes that have any, rows normalised.

    Args:
        q: [K, K], a row for each class.
        means: [K, K].
        counts: [K] numbers of images behind them.
        decay: share of the old row.
    """
    new = torch.where(counts[:, None] > 0, decay * q + (1 - decay) * means, q)
    return new / new.sum(1, keepdim=True)


def answer_sums(p: Tensor, labels: Tensor) -> Tensor:
    """Return [K, K + 1]: for each class the sum of its answers among [B, K], and their number."""
    return class_sums(F.pad(p, (0, 1), value=1.0), labels, p.shape[1])


def same_places(by_class: Tensor, sizes: Tensor, drawn: Tensor) -> Tensor:
    """Return [K * n] images, at the same n places within each class.

    Args:
        by_class: [num_train] images in the order of their classes.
        sizes: [K] numbers of images of each class.
        drawn: [n] places as fractions below one.
    """
    place = (drawn * sizes[:, None]).long().minimum(sizes[:, None] - 1).clamp(min=0)
    start = (sizes.cumsum(0) - sizes)[:, None]
    # A class without images takes the next one's; whoever reads the labels does no harm.
    return by_class[(start + place).flatten().clamp(max=len(by_class) - 1)]


class CMICDL(PlainLoss):
    """Pull the answers of a class together and push those of different classes apart.

    L = mean CE + lambda mean D(p_i || Q_{y_i}) - beta (1 / B^2) sum over pairs of different classes
    of H(p_i, p_j), with p the softmax outputs, D the divergence, H the cross entropy and Q_c the
    mean answer of class c, a moving average without gradient.
    """

    centroids: Tensor
    by_class: Tensor
    sizes: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.world, self.num_classes = setup.world, setup.task.num_classes
        decay = settings.decay
        self.decay = DECAY[settings.centroids] if decay is None else decay
        like = next(self.classifier.parameters())
        uniform = like.new_full((self.num_classes, self.num_classes), 1 / self.num_classes)
        self.register_buffer("centroids", uniform)
        if settings.centroids == "probe":
            self.data = setup.data("train")
            by_class = self.data.labels.argsort(stable=True)
            self.register_buffer("by_class", by_class, persistent=False)
            sizes = torch.tensor(setup.task.counts, device=by_class.device)
            self.register_buffer("sizes", sizes, persistent=False)

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the loss with its three terms, and move Q."""
        settings, labels = self.settings, batch.labels
        # Drawn before anything else in the step, so that all processes draw the same.
        probe = settings.centroids == "probe"
        drawn = torch.rand(PROBED if probe else 0, device=labels.device)
        logits = self.classifier(batch.images)
        ce, log_p = F.cross_entropy(logits, labels), log_answers(logits, settings.floor)
        log_q = self.centroids[labels].clamp(min=settings.floor).log()
        cmi, gamma = concentration(log_p, log_q).mean(), self._separation(log_p, labels)
        if probe:
            self._move(self._probe(drawn))
        elif settings.centroids == "batch":
            self._move(self.world.all_reduce(answer_sums(log_p.detach().exp(), labels)))
        loss = ce + settings.lambda_ * cmi - settings.beta * gamma
        return {"loss": loss, "ce": ce, "concentration": cmi, "separation": gamma}

    def _separation(self, log_p: Tensor, labels: Tensor) -> Tensor:
        """Return this process's part of Gamma over the global batch, []."""
        others = self.world.all_gather(log_p.detach() if self.settings.detach else log_p)
        all_labels = self.world.all_gather(labels)
        different = (labels[:, None] != all_labels).to(log_p.dtype)
        pairs: Tensor | int = len(all_labels) ** 2
        if self.settings.normalizer == "pairs":
            same = class_counts(all_labels, self.num_classes).square().sum()
            pairs = (pairs - same).clamp(min=1)
        # A sum of local terms over a global normaliser.
        return separation(log_p, others, different).sum() / pairs / self.world.share

    @torch.no_grad()
    def _move(self, sums: Tensor) -> None:
        """Move Q by sums over all processes."""
        answers, counts = sums[:, :-1], sums[:, -1]
        means = answers / counts.clamp(min=1)[:, None]
        self.centroids.copy_(moved(self.centroids, means, counts, self.decay))

    @torch.no_grad()
    def _probe(self, drawn: Tensor) -> Tensor:
        """Return the sums over some training images, in eval mode: BatchNorm is left alone."""
        index = same_places(self.by_class, self.sizes, drawn)
        self.classifier.eval()
        p = self.classifier(self.data.images(index)).softmax(1)
        self.classifier.train()
        return answer_sums(p, self.data.labels[index])

    def observe(self, data: Reader, _number: int, _passes: int) -> None:
        """Move Q by the answers to all training images."""
        sums = torch.zeros_like(F.pad(self.centroids, (0, 1)), dtype=torch.float64)
        for batch in data.batches():
            sums += answer_sums(self.classifier(batch.images).double().softmax(1), batch.labels)
        self._move(self.world.all_reduce(sums))

    def phases(self) -> Sequence[Phase]:
        """Return the one phase, which observes all training images before each pass if asked."""
        each_pass = self.observe if self.settings.centroids == "pass" else None
        return [Phase("train", self.step, [self.optimizer], each_pass=each_pass)]

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the mean probability of each class for its own images, [K], as Q has it."""
        return {"q_own": self.centroids.diagonal()}


def reduces_to(_task: Task, settings: Mapping[str, Any]) -> str | None:
    """Return ``erm`` without both terms."""
    return "erm" if settings["lambda"] == 0 and settings["beta"] == 0 else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return CMIC-DL."""
    return [
        MethodSpec(
            name="cmic_dl",
            title="CMIC-DL",
            make=CMICDL,
            summary="Concentrates the answers within a class and separates those of different ones",
            reference=(
                "Yang, Mohajer Hamidi, Ye, Tan, Yang: Conditional Mutual Information Constrained "
                "Deep Learning for Classification, IEEE TNNLS 2025 (arXiv 2309.09123)"
            ),
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True),
            reduces_to=reduces_to,
            example={"normalizer": "pairs"},
        )
    ]
