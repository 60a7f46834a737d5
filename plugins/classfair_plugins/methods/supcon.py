"""SupCon: supervised contrastive learning (Khosla et al., NeurIPS 2020).

Idea. Learn features by pulling together what has the same label and pushing apart all else, then
train a linear classifier on them.

Equations. Two augmented views of each of B images give 2B features, which a projection MLP
(d -> d -> 128, one ReLU) maps to unit vectors z. For anchor i, P(i) the other rows of its label,

    L_i = -(T / T_0) mean_{p in P(i)} log( exp(z_i.z_p / T) / sum_{a != i} exp(z_i.z_a / T) )

and the loss is the mean over all 2B anchors: the form with the mean outside the logarithm, an
anchor without positives costs 0, positives stay in the denominator, the anchor itself does not.
Its floor is not 0: with r positives and collapsed classes it is (T / T_0) log r.

Stages. ``two-stage``: the recipe's passes train encoder and projection; then a new linear layer is
trained by cross-entropy on the encoder's features, not the projection's, with the encoder frozen in
evaluation mode. ``joint``: one stage in which the linear layer is trained on both views' features
behind a stop-gradient. Cross-entropy and contrast on one encoder would be another method.

From the official PyTorch code: the factor T / T_0, the mean over anchors (the paper sums), features
that are not normalised before projection and classifier (the paper's are), no weight decay in the
probe. From the paper: ``joint``, section 4.5. Augmentation, optimiser and schedule are the
recipe's; the code's are stronger and far longer (1000 epochs, batches of 1024).

Cost. Two views: 2 in the first stage and (2B)^2 similarities; the probe, beyond the recipe's
passes, is forward only, about a third.

Traps. With 128 images of 100 classes an anchor has 3.5 positives, so the loss is close to an
unsupervised one. The factor T / T_0 scales the step. Vectors that are not of length one make the
loss explode. In a probe regime the encoder is fixed and only the linear layer is trained, as ERM
does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Setup, Task
from classfair_registry.plain import BaseMethod, safe_normalize
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """See the equations."""

    mode: Literal["two-stage", "joint"] = setting(
        "two-stage",
        "a probe after the contrastive stage, or a classifier trained beside it",
        source="official code; paper, section 4.5: joint",
    )
    temperature: float = setting(
        0.1,
        "T",
        source="official README, CIFAR (the script's own default is 0.07)",
        minimum=0.001,
        search=(0.05, 0.5),
        log=True,
    )
    base_temperature: float = setting(
        0.07, "T_0, a scale of the loss", source="official code", minimum=0.001
    )
    projection: int = setting(128, "width of the projection", source="paper; code", minimum=1)
    probe_share: float = setting(
        0.25,
        "passes of the probe as a share of the recipe's",
        source="between 100 of 1000 epochs (PyTorch code) and 90 of 350 (Google's, ImageNet)",
        minimum=0.01,
        maximum=1.0,
    )
    probe_lr: float | None = setting(
        None,
        "learning rate of the probe, null for the recipe's",
        source="our choice; official code: 5 for batches of 512",
        minimum=1e-6,
        search=(0.01, 5.0),
        log=True,
    )
    probe_decay: float = setting(
        0.0, "weight decay of the probe", source="official code", minimum=0.0
    )


def contrastive_losses(
    anchors: Tensor,
    others: Tensor,
    positive: Tensor,
    itself: Tensor,
    temperature: float,
    base_temperature: float,
) -> Tensor:
    """Return the [M] losses of anchors; 0 for one without positives.

    Args:
        anchors: [M, d] of length one.
        others: [A, d] of length one.
        positive: [M, A] bool, which of the others have the anchor's label, itself excepted.
        itself: [M, A] bool, which of the others is the anchor.
        temperature: T.
        base_temperature: T_0.
    """
    similarity = anchors @ others.T / temperature
    # The lowest number, not minus infinity, so that a row of nothing else has no NaN gradient.
    similarity = similarity.masked_fill(itself, torch.finfo(similarity.dtype).min)
    log_share = similarity - similarity.logsumexp(1, keepdim=True)
    total = torch.where(positive, log_share, 0.0).sum(1)
    return -temperature / base_temperature * total / positive.sum(1).clamp(min=1)


class SupCon(BaseMethod):
    """Features that agree within a class, learnt by contrast, and a linear classifier on them.

    The loss of an anchor is -(T / T_0) times the mean over the others of its label of their log
    softmax similarity to it, over two augmented views of each image.
    """

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__()
        self.settings, self.world, self.task = settings, setup.world, setup.task
        self.classifier = setup.classifier()
        encoder = [(f"backbone.{n}", p) for n, p in self.classifier.backbone.named_parameters()]
        head = [(f"head.{n}", p) for n, p in self.classifier.head.named_parameters()]
        if setup.task.regime == "probe":
            self.optimizer = setup.optimizer(head)
            return
        self.projection = _projection(self.classifier, settings.projection)
        encoder += [(f"projection.{n}", p) for n, p in self.projection.named_parameters()]
        if settings.mode == "joint":
            self.optimizer = setup.optimizer([*encoder, *head])
            return
        self.encoder_optimizer = setup.optimizer(encoder)
        overrides = {"weight_decay": settings.probe_decay, "lr": settings.probe_lr}
        given: dict[str, Any] = {k: v for k, v in overrides.items() if v is not None}
        self.optimizer = setup.optimizer(head, **given)

    def phases(self) -> Sequence[Phase]:
        """Return the contrastive stage and the probe, or the one stage that there is."""
        if self.task.regime == "probe":
            return [Phase("probe", self._probe, [self.optimizer])]
        if self.settings.mode == "joint":
            return [Phase("joint", self._joint, [self.optimizer], views=2)]
        pretrain = [self.encoder_optimizer]
        return [
            Phase("pretrain", self._pretrain, pretrain, views=2, selectable=False),
            Phase("probe", self._probe, [self.optimizer], share=self.settings.probe_share),
        ]

    def _contrast(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the mean loss of this process's anchors among all, [], and [VB, D] features."""
        features = self.classifier.features(torch.cat(list(batch.views)))
        rows, gather = safe_normalize(self.projection(features)), self.world.all_gather
        labels = batch.labels.repeat(len(batch.views))
        name = torch.cat([batch.index + v * self.task.num_train for v in range(len(batch.views))])
        itself = name[:, None] == gather(name)
        positive = (labels[:, None] == gather(labels)) & ~itself
        temperatures = self.settings.temperature, self.settings.base_temperature
        losses = contrastive_losses(rows, gather(rows), positive, itself, *temperatures)
        return losses.mean(), features

    def _pretrain(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": self.encoder_optimizer.step(lambda: self._contrast(batch)[0])}

    def _joint(self, batch: Batch) -> Mapping[str, Tensor]:
        terms: dict[str, Tensor] = {}

        def closure() -> Tensor:
            contrast, features = self._contrast(batch)
            logits = self.classifier.head(features.detach())
            answer = F.cross_entropy(logits, batch.labels.repeat(len(batch.views)))
            terms.update(contrast=contrast.detach(), cross_entropy=answer.detach())
            return contrast + answer

        return {"loss": self.optimizer.step(closure), **terms}

    def _probe(self, batch: Batch) -> Mapping[str, Tensor]:
        self.classifier.backbone.eval()
        with torch.no_grad():
            features = self.classifier.features(batch.images)

        def closure() -> Tensor:
            return F.cross_entropy(self.classifier.head(features), batch.labels)

        return {"loss": self.optimizer.step(closure)}

    def evaluated(self) -> Any:
        """Return the encoder with the linear classifier."""
        return self.classifier


def _projection(classifier: Any, width: int) -> nn.Module:
    """Return the projection MLP on the classifier's device, the same on any device."""
    hidden = int(classifier.backbone.num_features)
    with torch.device("cpu"):
        layers = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, width))
    return layers.to(next(classifier.parameters()).device)


def reduces_to(task: Task, _given: Mapping[str, Any]) -> str | None:
    """Return ``erm`` in a probe, where the encoder is fixed."""
    return "erm" if task.regime == "probe" else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return SupCon."""
    return [
        MethodSpec(
            name="supcon",
            title="SupCon",
            make=SupCon,
            summary="Supervised contrastive features, then a linear classifier on them.",
            reference="Khosla et al.: Supervised Contrastive Learning. NeurIPS 2020",
            cost=2.0,
            settings=Settings,
            budget="the probe's passes come after the recipe's (two-stage)",
            capabilities=Capabilities(distributed=True),
            reduces_to=reduces_to,
            example={"probe_share": 0.5, "projection": 8},
        )
    ]
