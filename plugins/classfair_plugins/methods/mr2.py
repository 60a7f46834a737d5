"""MR2: margin regularisation for less class-wise disparity (Zhu et al., ICLR 2026).

Idea. A class whose features are large and spread out contributes more to a bound on the error, so
it is given a larger margin, and the spread itself is penalised. K classes, features phi (as the
head is given them), logits z, class mean mu_k.

Equations. With a_k = ||mu_k||^2 + ||s_k||^2 (squared norm of the mean, mean squared deviation)

    (1)  gamma_k = c_bar K a_k^(1/3) / sum_j a_j^(1/3)      so the margins average c_bar
         l_ce(x, y) = -log softmax(z / gamma_y)[y]          all logits, by the label's margin
    (2)  l_rep(x, y) = log(1 + sum_{x+} exp(||phi(x) - phi(x+)||^2 - 2 s_bar)),
         x+ the other samples of class y, s_bar = mean_k ||s_k||^2
    (4)  mean over samples of l_ce + lambda l_rep.

The norms are exponential moving averages over batches (decay 0.9). Predictions use plain logits.

From the paper (the default): the above with p = 2, c_bar = 2, lambda = 0.5, one average over the
whole run. p = 3 is meant for cosine classifiers, whose features all have the same Euclidean norm.
The paper has no form for batches: here x+ are the other samples of the class in the (global) batch,
a sample without any costs log 1 = 0, and the mean is over the batch. Statistics are updated with
the batch before the margins are read, a class's first values are taken as they are, and no gradient
flows through statistics, margins or s_bar.

From the official code, by name. ``preset`` chooses a whole set of rules; a setting that is null
follows it, one that is given overrides it. official-head is the CIFAR code as released,
official-2025-05 the earlier version left compiled beside it: weaker exponents, another scale,
averages over classes, moving averages that start anew at each pass with unseen classes as zeros.
The ImageNet code differs from official-head by c_bar: 1, s_bar: live-p, decay: 0.999, restart:
false, and takes its features before the head normalises them, which has no setting here. The L_p
form (squared p-norm of the mean, mean squared p-norm of the deviations) is the code's; the paper's
Eq. (17) was not legible to us. Distances in l_rep are Euclidean for every p.

Ablations. Table 3: (b) ``representation: false, margins: uniform``; (c) ``representation: false``;
(d) ``logit: false, s_bar: zero``; (e) ``logit: false``. c_bar 0 (Fig. 5) means no logit margin.

Cost. That of ERM, plus a B x B matrix of distances and one of K x D means.

Traps. Taken literally Eq. (2) has exponents in the hundreds, hence a log-sum-exp with a zero
appended, of distances between features centred on their class, so that a common offset cannot
cancel their digits away. In batches with few samples a class the deviation is biased by (n - 1) / n
and zero for a single sample, so s_bar is well below its true value (about a third at batch 128 and
100 classes). With many samples a class in a batch and few steps, l_rep of the defaults can shrink
all features before the classes part: ResNet-8 on digits (10 classes, batch 64, 190 steps) stays at
35 %, and reaches 97 % with lambda 0.1 and c_bar 1. With the code's temperature the loss is nearly
linear and its margin 2 s_bar without effect. Margins stop at ``MARGIN_FLOOR`` times c_bar, where a
class of zero features would have none. In a probe the features are fixed and l_rep is left out, as
in the paper.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Reader, Setup, Task
from classfair_registry.plain import PlainLoss, class_counts, class_sums
from classfair_registry.settings import build, describe, resolve, setting
from classfair_registry.specs import Capabilities, MethodSpec

INFINITE = 1e6
"""The p from which on a p-norm is the maximum norm; records are JSON, which has no infinity."""

MARGIN_FLOOR = 1e-3
"""Smallest margin as a share of c_bar, so that logits over margins stay finite."""


@dataclasses.dataclass(frozen=True)
class Rules:
    """The rules that a preset sets, all of them; see :class:`Settings` for their meaning."""

    p: float
    c_bar: float
    lambda_: float
    s_bar: str
    pair_temperature: str
    pair_scale: str
    pair_average: str
    unseen: str
    restart: bool


PRESETS: Mapping[str, Rules] = {
    "paper": Rules(2.0, 2.0, 0.5, "live", "one", "one", "samples", "skip", restart=False),
    "official-2025-05": Rules(2.0, 1.0, 0.1, "live", "10d", "d", "classes", "zero", restart=True),
    "official-head": Rules(5.0, 2.0, 0.1, "zero", "10d", "d/10", "classes", "zero", restart=True),
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """A rule that is null is the preset's."""

    preset: Literal["paper", "official-2025-05", "official-head"] = setting(
        "paper", "which set of rules those below follow where they are null", source="our choice"
    )
    c_bar: float | None = setting(
        None,
        "mean of the margins, 0 for no logit margin; null: the preset's 2, 1, 2",
        source="paper, Fig. 5: best near 2, chosen from 1, 2, 3",
        minimum=0.0,
        search=(1.0, 2.0, 3.0),
    )
    lambda_: float | None = setting(
        None,
        "weight of the representation loss; null: the preset's 0.5, 0.1, 0.1",
        source="paper, Fig. 6: best near 0.5, chosen from 0.1 to 0.9; code: 0.1",
        minimum=0.0,
        search=(0.1, 0.3, 0.5, 0.7, 0.9),
    )
    p: float | None = setting(
        None,
        "norm of the class statistics, 1e6 for the maximum norm; null: the preset's 2, 2, 5",
        source="paper, section 5.2: 2, and 3 for cosine classifiers; code: 5",
        minimum=1.0,
        maximum=INFINITE,
        search=(2.0, 3.0, 5.0),
    )
    decay: float = setting(
        0.9,
        "share of the old value in the moving averages",
        source="paper, section 5: 0.9 in all experiments; ImageNet code: 0.999",
        minimum=0.0,
        maximum=0.9999,
    )
    logit: bool = setting(True, "use the logit margins", source="paper, Eq. (4); Table 3 (d, e)")
    representation: bool = setting(
        True, "use the representation loss", source="paper, Eq. (4); Table 3 (b, c)"
    )
    margins: Literal["class", "uniform"] = setting(
        "class", "a margin for each class by Eq. (1), or c_bar for all", source="paper, Table 3 (b)"
    )
    s_bar: Literal["live", "live-p", "zero"] | None = setting(
        None,
        "margin of the representation loss: mean squared Euclidean deviation, that in the p-norm, "
        "or none; null: the preset's live, live, zero",
        source="paper, Eq. (2); Table 3 (d); ImageNet code: live-p",
    )
    pair_temperature: Literal["one", "10d"] | None = setting(
        None,
        "what exponents are divided by: 1, or 10 times the feature width; "
        "null: the preset's one, 10d, 10d",
        source="paper, Eq. (2); code",
    )
    pair_scale: Literal["one", "d", "d/10"] | None = setting(
        None,
        "factor of the representation loss, d the feature width; null: the preset's one, d, d/10",
        source="paper, Eq. (2); code (its division by K is in pair_average)",
    )
    pair_average: Literal["samples", "classes"] | None = setting(
        None,
        "mean over the batch, or over all K classes of the means of those with two samples or "
        "more; null: the preset's samples, classes, classes",
        source="paper, Eq. (4); code",
    )
    unseen: Literal["skip", "zero"] | None = setting(
        None,
        "classes that no batch held yet: left out of the means of Eqs. (1) and (2), or zero in "
        "them; null: the preset's skip, zero, zero",
        source="our choice; code: zero",
    )
    restart: bool | None = setting(
        None,
        "forget the moving averages at each pass; null: the preset's false, true, true",
        source="paper: kept; CIFAR code: rebuilt every epoch",
    )


def rules_of(settings: Settings) -> Rules:
    """Return the preset's rules with those that ``settings`` gives in their place."""
    names = [field.name for field in dataclasses.fields(Rules)]
    given = {name: getattr(settings, name) for name in names}
    own = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(PRESETS[settings.preset], **own)


def square_norm(values: Tensor, p: float) -> Tensor:
    """Return the squared p-norms of [..., D] as [...].

    Divided by the largest entry first, so that a power neither overflows nor vanishes.
    """
    size = values.abs()
    largest = size.amax(-1, keepdim=True)
    if p >= INFINITE:
        return largest.squeeze(-1).square()
    unit = size / torch.where(largest > 0, largest, 1.0)
    return (unit.pow(p).sum(-1).pow(1 / p) * largest.squeeze(-1)).square()


def batch_statistics(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    p: float,
    total: Callable[[Tensor], Tensor] = lambda values: values,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return counts, means and norms of the classes in a batch.

    Args:
        features: [B, D] of this process, without gradient.
        labels: [B].
        num_classes: K.
        p: of the norms.
        total: sums over processes.

    Returns:
        [K] counts, [K, D] means, and [3, K]: ||mu||_p^2, the mean of ||phi - mu||_p^2, and that of
        ||phi - mu||_2^2; zero for an absent class.
    """
    counts = total(class_counts(labels, num_classes)).to(features)
    present = counts.clamp(min=1)
    means = total(class_sums(features, labels, num_classes)) / present[:, None]
    apart = features - means[labels]
    squares = torch.stack([square_norm(apart, p), square_norm(apart, 2.0)], 1)
    spreads = total(class_sums(squares, labels, num_classes)) / present[:, None]
    return counts, means, torch.stack([square_norm(means, p), *spreads.unbind(1)])


def moving_average(old: Tensor, new: Tensor, seen: Tensor, present: Tensor, decay: float) -> Tensor:
    """Return [..., K] averages: untouched for absent classes, ``new`` at a class's first sight."""
    mixed = torch.where(seen, decay * old + (1 - decay) * new, new)
    return torch.where(present, mixed, old)


def class_margins(variability: Tensor, seen: Tensor, c_bar: float, unseen: str) -> Tensor:
    """Return the [K] margins of Eq. (1).

    Args:
        variability: [K] a_k, not negative; zero for unseen classes.
        seen: [K] bool.
        c_bar: positive mean of the margins (of the seen classes if ``unseen`` is ``skip``).
        unseen: ``skip`` or ``zero``; skipped classes have margin c_bar.
    """
    root = variability.pow(1 / 3) * seen
    mean = root.sum() / seen.sum().clamp(min=1) if unseen == "skip" else root.mean()
    relative = torch.where(mean > 0, root / torch.where(mean > 0, mean, 1.0), 1.0)
    return c_bar * torch.where(seen, relative.clamp(min=MARGIN_FLOOR), 1.0)


def margin_cross_entropy(logits: Tensor, labels: Tensor, margins: Tensor) -> Tensor:
    """Return the [] mean of the cross-entropy of logits [B, K] over their label's margin."""
    return F.cross_entropy(logits / margins[labels, None], labels)


def pair_losses(
    anchors: Tensor, others: Tensor, positive: Tensor, s_bar: Tensor, temperature: float = 1.0
) -> Tensor:
    """Return the [B] representation losses of Eq. (2); 0 for an anchor without positives.

    Args:
        anchors: [B, D], best centred on something near, since distances come from inner products.
        others: [N, D], shifted alike.
        positive: [B, N] bool, which of the others an anchor is compared with.
        s_bar: [].
        temperature: divides the exponents.
    """
    lengths = anchors.square().sum(1)[:, None] + others.square().sum(1)
    distances = (lengths - 2 * anchors @ others.T).clamp(min=0)
    exponents = (distances - 2 * s_bar) / temperature
    exponents = exponents.masked_fill(~positive, -torch.inf)
    return F.pad(exponents, (1, 0)).logsumexp(1)


def margins_of(statistics: Tensor, seen: Tensor, settings: Settings) -> Tensor:
    """Return the [K] margins that the settings ask for; ones without logit margins.

    ``statistics`` [3, K] are averages of those of :func:`batch_statistics`, ``seen`` is [K] bool.
    """
    rules = rules_of(settings)
    c_bar = rules.c_bar if settings.logit else 0.0
    if c_bar == 0 or settings.margins == "uniform":
        return torch.full_like(statistics[0], c_bar or 1.0)
    return class_margins(statistics[0] + statistics[1], seen, c_bar, rules.unseen)


def mean_spread(statistics: Tensor, seen: Tensor, rules: Rules) -> Tensor:
    """Return s_bar, [], from [3, K] averages, once a class has been seen."""
    if rules.s_bar == "zero":
        return torch.zeros_like(statistics[0, 0])
    spreads = statistics[1 if rules.s_bar == "live-p" else 2]
    return spreads.sum() / seen.sum() if rules.unseen == "skip" else spreads.mean()


def pair_constants(rules: Rules, width: int) -> tuple[float, float]:
    """Return temperature and scale of the representation loss for features of a width."""
    temperature = {"one": 1.0, "10d": 10.0 * width}[rules.pair_temperature]
    return temperature, {"one": 1.0, "d": float(width), "d/10": width / 10}[rules.pair_scale]


class MR2(PlainLoss):
    """Larger margins for classes of variable features, and less variable features.

    Minimises the mean of -log softmax(z / gamma_y)[y] + lambda log(1 + sum over the other samples
    x+ of the class of exp(||phi(x) - phi(x+)||^2 - 2 s_bar)), where gamma_k is proportional to
    (||mu_k||^2 + ||s_k||^2)^(1/3) and averages c_bar. ``preset`` switches from the paper's rules to
    those of the released code.
    """

    statistics: Tensor
    seen: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__(setup, settings)
        self.rules = rules_of(settings)
        self.world, self.num_classes = setup.world, setup.task.num_classes
        self.pairs = uses_pairs(setup.task, settings)
        like = next(self.classifier.parameters())
        self.register_buffer("statistics", like.new_zeros(3, self.num_classes))
        self.register_buffer("seen", like.new_zeros(self.num_classes, dtype=torch.bool))

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the two losses and their weighted sum, each []."""
        features = self.classifier.features(batch.images)
        counts, means = self._observe(features.detach(), batch.labels)
        margins = margins_of(self.statistics, self.seen, self.settings)
        logit = margin_cross_entropy(self.classifier.head(features), batch.labels, margins)
        if not self.pairs:
            return {"loss": logit}
        representation = self._representation(features, batch, counts, means)
        total = logit + self.rules.lambda_ * representation
        return {"loss": total, "logit": logit, "representation": representation}

    @torch.no_grad()
    def _observe(self, features: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Update the moving averages; return the batch's counts [K] and means [K, D]."""
        counts, means, new = batch_statistics(
            features, labels, self.num_classes, self.rules.p, self.world.all_reduce
        )
        present, decay = counts > 0, self.settings.decay
        self.statistics.copy_(moving_average(self.statistics, new, self.seen, present, decay))
        self.seen.logical_or_(present)
        return counts, means

    def _representation(
        self, features: Tensor, batch: Batch, counts: Tensor, means: Tensor
    ) -> Tensor:
        """Return the mean representation loss of this process's samples among all, []."""
        temperature, scale = pair_constants(self.rules, features.shape[1])
        s_bar = mean_spread(self.statistics, self.seen, self.rules)
        # Within a class a common shift changes no distance.
        centred, gather = features - means[batch.labels], self.world.all_gather
        positive = batch.labels[:, None] == gather(batch.labels)
        positive &= batch.index[:, None] != gather(batch.index)
        losses = pair_losses(centred, gather(centred), positive, s_bar, temperature)
        if self.rules.pair_average == "classes":
            losses = losses * (counts.sum() / (self.num_classes * counts[batch.labels]))
        return scale * losses.mean()

    def phases(self) -> Sequence[Phase]:
        """Return the one phase."""
        restart = self._restart if self.rules.restart else None
        return [Phase("train", self.step, [self.optimizer], each_pass=restart)]

    def _restart(self, _data: Reader, _number: int, _passes: int) -> None:
        self.statistics.zero_()
        self.seen.zero_()

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the margins gamma, [K]."""
        return {"gamma": margins_of(self.statistics, self.seen, self.settings)}


def uses_pairs(task: Task, settings: Settings) -> bool:
    """Whether the representation loss is on and can change the model."""
    wanted = settings.representation and rules_of(settings).lambda_ > 0
    return wanted and task.regime != "probe"


def reduces_to(task: Task, given: Mapping[str, Any]) -> str | None:
    """Return ``erm`` where neither loss differs from the plain cross-entropy."""
    settings = build(Settings, resolve(describe(Settings), given, "mr2"))
    rules = rules_of(settings)
    plain = not settings.logit or rules.c_bar == 0
    plain = plain or (settings.margins == "uniform" and rules.c_bar == 1)
    return "erm" if plain and not uses_pairs(task, settings) else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return MR2."""
    return [
        MethodSpec(
            name="mr2",
            title="MR2",
            make=MR2,
            summary="Class-wise logit margins by feature variability, and compact features.",
            reference="Zhu et al.: Reducing Class-Wise Performance Disparity via Margin "
            "Regularization. ICLR 2026 (arXiv 2602.00205)",
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True),
            reduces_to=reduces_to,
        )
    ]
