r"""DRL: the distributional robustness loss (DRO-LT), on features around class prototypes.

Samuel, Chechik: Distributional Robustness Loss for Long-tail Learning, ICCV 2021.

Idea: the mean feature of a class is known only up to an error, the larger the rarer the class. So
pull features to their class's prototype mu_k as if it lay in the worst place within a radius eps_k.
With features f_i before the head, unnormalised, and mu_k their mean over the training images of
class k, without gradient,

    A_ki = -|mu_k - f_i| - eps_k [y_i = k]
    R_k  = -mean_{i: y_i = k} ( A_ki / T - log sum_{j in batch} exp(A_kj / T) )
    L    = CE + weight * mean over the classes present of R_k.

The softmax runs over the samples of the batch for each prototype, not over classes for each sample.

Three phases: cross entropy; then the *features*, with the head fixed and the loss above; then the
*classifier*, plain cross entropy on the head with the encoder fixed, in eval mode. The last two
take their samples in a class-aware order: classes in random cycles, four samples of each in a row.

As the official code (dvirsamuel/DRO-LT): the loss, CE and R with weight 1 each, CE weighted by
n_k / max n in the second phase, T = 1, radii that start at 1 and are learned at the constant rate
0.005, prototypes from augmented images in eval mode once a pass, the class-aware order, and the
lengths of the phases (200, 80 and 20 epochs, here shares of the recipe's). By settings, the paper's
variants as recalled, its text not being at hand: a fixed radius for all classes, or over sqrt(n_k);
twice the radius is ``eps: 2``; lambda CE + (1 - lambda) R is ``weight`` up to a factor. Against the
code:

    - It pairs radii with samples in the wrong order: positives are listed class by class, radii in
      the order of the batch. ``eps_order: official`` does the same; it makes no difference while
      all radii are equal or the batch is sorted by class.
    - It never clamps the radii. Their gradient is never negative, so training only shrinks them,
      and below zero they lower the loss without better features; ``clamp: false`` lets them.
    - It keeps the encoder that was best on the test set; here the last goes on.
    - It trains both later phases at constant rates, 0.005 and 0.01, with AutoAugment and Cutout;
      here rate, schedule and augmentation are the recipe's unless ``feature_lr`` and
      ``classifier_lr`` give constant rates.
    - Its pass has K max n_k samples, ours as many as the training split: the same on equal counts.
    - Exponentials are shifted, so distances of any size are safe.

Cost: one forward pass over the training data for each pass of the second phase, and a third phase
without backward pass through the encoder: about 1.05 in all. K x D numbers.

Traps:
    - On balanced data only the CE weights vanish: the loss, the order and the phases stay, so it is
      *not* ERM there.
    - R_k has a floor at the logarithm of the number of samples of the class in the batch.
    - Blocks of four fill a batch with a quarter as many classes.
    - Under AdamW the radii fall by about ``eps_lr`` a step, however small their gradient.
    - A fixed encoder leaves the second phase nothing to train, so there is no form for probes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Optimizer, Phase, Reader, Setup, World
from classfair_registry.errors import UsageError
from classfair_registry.plain import BaseMethod, class_counts, class_mask, class_sums, weighted_mean
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of DRL; cross entropy takes the share that the two later phases leave."""

    feature_share: float = setting(
        0.27,
        "share of the passes for the feature phase",
        source="official code: 80 of 200 + 80 + 20 epochs",
        minimum=0.0,
        maximum=1.0,
        search=(0.2, 0.6),
    )
    classifier_share: float = setting(
        0.07,
        "share of the passes for the classifier phase",
        source="official code: 20 of 200 + 80 + 20 epochs",
        minimum=0.0,
        maximum=1.0,
    )
    feature_lr: float | None = setting(
        None,
        "constant learning rate of the feature phase; null is the recipe's, with its schedule",
        source="our choice: one recipe for all methods; official code 0.005",
        minimum=1e-8,
    )
    classifier_lr: float | None = setting(
        None,
        "constant learning rate of the classifier phase; null is the recipe's, with its schedule",
        source="our choice: one recipe for all methods; official code 0.01",
        minimum=1e-8,
    )
    weight: float = setting(
        1.0,
        "of the robustness loss against cross entropy",
        source="official code",
        minimum=0.0,
        search=(0.1, 3.0),
        log=True,
    )
    temperature: float = setting(
        1.0, "T, divides distances", source="official README", minimum=1e-3, search=(0.5, 2.0)
    )
    eps_form: Literal["learned", "shared", "by_count"] = setting(
        "learned",
        "a learned radius for each class, one fixed radius, or a fixed one over sqrt(n_k)",
        source="official code",
    )
    eps: float = setting(1.0, "the radius, or where it starts", source="official code", minimum=0.0)
    eps_lr: float = setting(
        0.005, "constant learning rate of the radii", source="official code", minimum=1e-8
    )
    clamp: bool = setting(
        True, "keep learned radii from falling below 0", source="our choice; the code does not"
    )
    eps_order: Literal["intended", "official"] = setting(
        "intended",
        "each sample with its own class's radius, or in the order of the official code",
        source="our choice: the code's order is a mistake",
    )
    class_weights: Literal["none", "balanced"] = setting(
        "none",
        "weights of the classes in the robustness loss: none, or N / (K n_k)",
        source="official code",
    )
    prototypes_on: Literal["augmented", "plain"] = setting(
        "augmented", "training images whose features make the prototypes", source="official code"
    )
    block: int = setting(
        4, "samples of a class in a row in the later phases", source="official code", minimum=1
    )


def shares(settings: Settings) -> tuple[float, float, float]:
    """Return the shares of the three phases."""
    features, classifier = settings.feature_share, settings.classifier_share
    if features + classifier > 1:
        raise UsageError(
            f"drl: feature_share {features} and classifier_share {classifier} add up to more "
            "than 1; cross entropy takes what they leave"
        )
    # Rounded, lest a rest of 1e-17 counts as a phase.
    return round(1 - features - classifier, 9), features, classifier


def with_rate(setup: Setup, trained: Any, lr: float | None) -> Optimizer:
    """Return the recipe's optimiser, or for a given rate one that keeps it."""
    if lr is None:
        return setup.optimizer(trained)
    return setup.optimizer(trained, schedule=False, lr=lr)


def initial_radii(counts: Tensor, settings: Settings) -> Tensor:
    """Return the [K] radii for [K] numbers of training images: eps, or eps / sqrt(n_k)."""
    scale = counts.clamp(min=1).sqrt() if settings.eps_form == "by_count" else 1.0
    return torch.full_like(counts, settings.eps) / scale


def balanced_weights(counts: Tensor) -> Tensor:
    """Return [K] weights N / (K n_k), 0 for a class without training images."""
    weights = counts.sum() / (len(counts) * counts.clamp(min=1))
    return weights.where(counts > 0, 0.0)


def official_partners(labels: Tensor, world: World) -> Tensor:
    """Return [B] for each sample the label whose radius the official code gives it.

    It lists samples class by class and radii in the order of the batch, so the sample at place r of
    the sorted batch gets the radius of the class at place r of the unsorted one.
    """
    everyone = world.all_gather(labels)
    owners = world.all_gather(torch.full_like(labels, world.rank))
    start = (owners < world.rank).sum()
    places = everyone.argsort(stable=True).argsort()
    return everyone[places[start + torch.arange(len(labels), device=labels.device)]]


def distances_to(prototypes: Tensor, features: Tensor) -> Tensor:
    """Return the [K, B] Euclidean distances; at distance zero the gradient is zero."""
    # From differences, not products, which cancel for far prototypes.
    return torch.cdist(prototypes, features, compute_mode="donot_use_mm_for_euclid_dist")


def affinities(distances: Tensor, positive: Tensor, radii: Tensor, temperature: float) -> Tensor:
    """Return A / T, [K, B]: minus distance, less a sample's radius [B] at its own prototype."""
    return -(distances + radii * positive) / temperature


def class_losses(scores: Tensor, positive: Tensor, world: World) -> tuple[Tensor, Tensor]:
    """Return this process's part of R_k, [K], and the classes' counts in the global batch.

    The softmax is over the global batch: its normaliser is shared without gradient, and each
    process gets the gradient of its own samples' part of it.
    """
    own = scores.logsumexp(1)
    total = world.all_gather(own.detach()[None]).logsumexp(0)
    counts = world.all_reduce(positive.sum(1))
    pull = (scores * positive).sum(1) / counts.clamp(min=1)
    # Worth share * total, with the gradient of the samples here.
    spread = world.share * total + (own.detach() - total).exp() * (own - own.detach())
    return (spread - pull) / world.share, counts


def mean_over_classes(losses: Tensor, counts: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the [] mean of R over the classes present.

    With ``weights`` [K] it is their weighted sum over the weights of *all* classes, as in the
    official code.
    """
    present = counts > 0
    if weights is None:
        return losses.where(present, 0.0).sum() / present.sum()
    return (weights * losses).where(present, 0.0).sum() / weights.sum()


def class_aware_order(
    members: Sequence[Tensor], block: int, length: int, generator: torch.Generator
) -> Tensor:
    """Return ``length`` indices: classes in random cycles, ``block`` samples of each in a row.

    Args:
        members: the indices of each class; empty classes are left out.
        block: samples in a row.
        length: of the pass.
        generator: of the CPU.
    """
    members = [indices for indices in members if len(indices)]
    cycles = -(-length // (block * len(members)))
    classes = [torch.randperm(len(members), generator=generator) for _ in range(cycles)]
    # Each class comes once a cycle, and goes through its members in random rounds.
    streams = [_rounds(indices, cycles * block, generator) for indices in members]
    blocks = torch.stack(streams).view(len(members), cycles, block)
    turns = [blocks[order, turn] for turn, order in enumerate(classes)]
    return torch.cat(turns).flatten()[:length]


def _rounds(indices: Tensor, length: int, generator: torch.Generator) -> Tensor:
    """Return ``length`` of the indices, each once before any comes again."""
    rounds = -(-length // len(indices))
    shuffles = [torch.randperm(len(indices), generator=generator) for _ in range(rounds)]
    return indices[torch.cat(shuffles)[:length]]


def fill_with_means(prototypes: Tensor, classifier: Any, reader: Reader, world: World) -> None:
    """Set prototypes [K, D] to the classes' mean features, 0 for one without images."""
    sums = torch.zeros_like(prototypes, dtype=torch.float64)
    counts = sums.new_zeros(len(sums))
    for batch in reader.batches():
        sums += class_sums(classifier.features(batch.images).double(), batch.labels, len(sums))
        counts += class_counts(batch.labels, len(sums))
    sums, counts = world.all_reduce(sums), world.all_reduce(counts)
    prototypes.copy_(sums / counts.clamp(min=1)[:, None])


class DRL(BaseMethod):
    """Cross entropy, then features pulled to class prototypes with a safety radius, then the head.

    The second phase adds the mean over classes of
    R_k = -mean_{i in k} log softmax_{i in batch}(-|mu_k - f_i| - eps_k [y_i = k]), with prototypes
    mu_k from the training images once a pass and learned radii eps_k. The third trains the head
    alone. Not ERM on balanced data; not for probes.
    """

    prototypes: Tensor
    ce_weight: Tensor
    robust_weight: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__()
        self.settings, self.world, task = settings, setup.world, setup.task
        self.shares = shares(settings)
        # In the order of the classes, so that it can be cut where the next one begins.
        self.members = torch.as_tensor(task.labels).cpu().argsort(stable=True).split(task.counts)
        transform = "train" if settings.prototypes_on == "augmented" else "eval"
        self.read = setup.data("train", transform)
        self.classifier = setup.classifier()
        features = self.classifier.backbone.num_features
        self.register_buffer("prototypes", torch.zeros(task.num_classes, features))
        counts = torch.tensor(task.counts, dtype=torch.float32)
        self.register_buffer("ce_weight", counts / counts.max())
        self.register_buffer("robust_weight", balanced_weights(counts))
        radii, learned = initial_radii(counts, settings), settings.eps_form == "learned"
        self.eps = nn.Parameter(radii, requires_grad=learned)
        self.whole = setup.optimizer(self.classifier)
        self.encoder = with_rate(setup, self.classifier.backbone, settings.feature_lr)
        self.linear = with_rate(setup, self.classifier.head, settings.classifier_lr)
        self.radii = [with_rate(setup, [("eps", self.eps)], settings.eps_lr)] if learned else []

    def phases(self) -> Sequence[Phase]:
        """Return the three phases; only states of the last may be selected."""
        first = Phase("pretrain", self.pretrain, [self.whole], self.shares[0], selectable=False)
        second = Phase(
            "features",
            self.train_features,
            [self.encoder, *self.radii],
            self.shares[1],
            each_pass=self.update_prototypes,
            order=self.order,
            selectable=False,
        )
        third = Phase(
            "classifier", self.train_head, [self.linear], self.shares[2], order=self.order
        )
        return [first, second, third]

    def order(self, generator: torch.Generator) -> Tensor:
        """Return the class-aware order of a pass, as long as the training split."""
        length = sum(len(indices) for indices in self.members)
        return class_aware_order(self.members, self.settings.block, length, generator)

    def update_prototypes(self, _data: Reader, _number: int, _passes: int) -> None:
        """Fill the prototypes with the classes' mean features, once a pass."""
        fill_with_means(self.prototypes, self.classifier, self.read, self.world)

    def pretrain(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take a step of cross entropy on the whole network."""
        images, labels = batch.images, batch.labels
        loss = self.whole.step(lambda: F.cross_entropy(self.classifier(images), labels))
        return {"loss": loss}

    def train_features(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take a step of cross entropy and robustness loss on the encoder, then on the radii."""
        labels, weight, kept = batch.labels, self.settings.weight, {}

        def closure() -> Tensor:
            features = self.classifier.features(batch.images)
            losses = F.cross_entropy(self.classifier.head(features), labels, reduction="none")
            kept["ce"] = weighted_mean(losses, self.ce_weight[labels], self.world)
            kept["distances"] = distances_to(self.prototypes, features)
            kept["robust"] = self.robust(kept["distances"], labels, self.eps.detach())
            return kept["ce"] + weight * kept["robust"]

        loss = self.encoder.step(closure)
        self.classifier.head.zero_grad()  # the gradient went through it, but it is fixed here
        distances = kept.pop("distances").detach()
        for optimizer in self.radii:
            optimizer.step(lambda: weight * self.robust(distances, labels, self.eps))
            if self.settings.clamp:
                self.eps.detach().clamp_(min=0)
        return {"loss": loss, **{name: value.detach() for name, value in kept.items()}}

    def robust(self, distances: Tensor, labels: Tensor, eps: Tensor) -> Tensor:
        """Return the [] robustness loss for [K, B] distances and [K] radii."""
        chosen = self.settings
        positive = class_mask(labels, len(distances)).T
        official = chosen.eps_order == "official"
        radii = eps[official_partners(labels, self.world) if official else labels]
        scores = affinities(distances, positive, radii, chosen.temperature)
        losses, counts = class_losses(scores, positive, self.world)
        weights = self.robust_weight if chosen.class_weights == "balanced" else None
        return mean_over_classes(losses, counts, weights)

    def train_head(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take a step of cross entropy on the head, with the encoder in eval mode."""
        self.classifier.backbone.eval()
        with torch.no_grad():
            features = self.classifier.features(batch.images)
        head, labels = self.classifier.head, batch.labels
        return {"loss": self.linear.step(lambda: F.cross_entropy(head(features), labels))}

    def evaluated(self) -> nn.Module:
        """Return the classifier."""
        return self.classifier

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the radii."""
        return {"eps": self.eps.detach()}


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return DRL."""
    return [
        MethodSpec(
            name="drl",
            title="DRL",
            make=DRL,
            summary="DRO-LT: pulls features to class prototypes with a safety radius",
            reference=(
                "Samuel, Chechik: Distributional Robustness Loss for Long-tail Learning, ICCV 2021"
            ),
            cost=1.05,
            settings=Settings,
            regimes=("scratch", "finetune"),
            capabilities=Capabilities(distributed=True, capturable=True),
            example={"feature_share": 0.4, "classifier_share": 0.3},
        )
    ]
