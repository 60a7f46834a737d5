r"""LGM: the large-margin Gaussian mixture loss.

Wan, Zhong, Li, Chen: Rethinking Feature Distribution for Loss Functions in Image Classification,
CVPR 2018.

Idea: let the features be a mixture of one Gaussian a class, so that the distance to a class's mean
is at once its logit and a likelihood that can be raised. The linear head gives way to means mu_k
and diagonal covariances S_k; priors are 1/K and cancel.

    d_k(x) = (x - mu_k)^T S_k^-1 (x - mu_k) / 2
    s_k    = -d_k (1 + a [k = y]) - ln|S_k| / 2              training logits, a >= 0 the margin
    L      = mean CE(s, y) + lambda mean (d_y + ln|S_y| / 2)

Predictions take s without the margin. Everything gets a gradient: x, mu, S.

As the paper: the equations, learned diagonal S by ``covariance: diagonal``. As the official code
(WeitaoVan/L-GM-loss), which the defaults follow: S is the identity in its TensorFlow version and
fixed at one in its Caffe version; alpha and lambda are those of the Caffe run on CIFAR-100, where a
starts at 0.1 and doubles every 24th of the training up to alpha = 0.3 (TensorFlow: constant 0.1,
lambda 0.01); means have weight decay as everything else. Unlike that code: with learned variances
logits have the term in ln|S| and the likelihood has S, both of which Caffe leaves out; the reported
loss includes the likelihood; means have no learning rate of their own (Caffe: twice the others');
evaluation is in eval mode. A PyTorch port leaves S out of the distance in the likelihood but keeps
ln|S| there, so that variances shrink without limit: not here.

Ours: means start as the vectors of the linear head that other methods start from, scaled to the
variance 2 / D of the Caffe version; a variance is at least ``floor``, to which its logarithm is
moved back after each step.

Cost: that of ERM, with K x D means instead of a head, and as many variances.

Traps:
    - Means that start too close together, as a linear head's vectors do unscaled, first draw all
      features into one point: training then takes several times as many passes.
    - It has no limit that is ERM: with S = 1 and a = lambda = 0 it is a linear softmax with w = mu
      and the bias tied to -||mu||^2 / 2.
    - Distances come as expanded squares, in float32 and around the mean of the means, so that no
      B x K x D tensor is made and a common offset costs no digits.
    - With S = 1 nothing but the means tells classes apart; learned variances grow for hard classes.
    - The features are the backbone's own: a recipe's cosine head, which would normalise them, is
      replaced, and there is no published setting for such recipes.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Setup
from classfair_registry.plain import PlainLoss, tiny
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of LGM."""

    alpha: float = setting(
        0.3,
        "margin at the end of its ramp, relative to the distance",
        source="official Caffe code, CIFAR-100; TensorFlow: 0.1; paper: 0.01 to 1 by data set",
        minimum=0.0,
        search=(0.01, 1.0),
        log=True,
    )
    alpha_start: float = setting(
        0.1,
        "margin at the start, doubled until it is alpha; no effect if not below alpha",
        source="official Caffe code, CIFAR-100",
        minimum=1e-6,
    )
    ramp: int = setting(
        24,
        "doublings that a whole training would have; 0 is alpha from the start",
        source="official Caffe code: every 5000 of 120000 iterations",
        minimum=0,
        maximum=100,
    )
    lambda_: float = setting(
        0.1,
        "weight of the likelihood",
        source="official Caffe code, CIFAR-100; TensorFlow: 0.01",
        minimum=0.0,
        search=(1e-3, 1.0),
        log=True,
    )
    covariance: Literal["identity", "diagonal"] = setting(
        "identity", "of each class: fixed at one, or learned", source="official code; paper: both"
    )
    floor: float = setting(
        0.01,
        "smallest learned variance",
        source="ours; official Caffe code adds 1e-4",
        minimum=1e-6,
        maximum=1.0,
    )


def distances(features: Tensor, means: Tensor, log_variances: Tensor | None) -> Tensor:
    """Return d_k(x), [B, K], at least 0.

    Args:
        features: [B, D].
        means: [K, D].
        log_variances: [K, D] logarithms of the variances, or None for ones.
    """
    offset = means.detach().mean(0)  # Distances do not depend on it, but their rounding does.
    x, mu = features - offset, means - offset
    if log_variances is None:
        squares = x.square().sum(1, keepdim=True) - 2 * x @ mu.T + mu.square().sum(1)
    else:
        precisions = (-log_variances).exp()
        scaled = mu * precisions
        squares = x.square() @ precisions.T - 2 * x @ scaled.T + (mu * scaled).sum(1)
    return squares.clamp(min=0) / 2


def initial_means(vectors: Tensor) -> Tensor:
    """Return class vectors [K, D] scaled to a mean square of 2 / D."""
    scale = (2 / vectors.shape[1]) ** 0.5 / vectors.square().mean().sqrt().clamp(min=tiny(vectors))
    return vectors * scale


def margin(progress: Tensor, settings: Settings) -> Tensor:
    """Return the margin a at a progress, of the same shape."""
    if settings.ramp == 0:
        return torch.full_like(progress, settings.alpha)
    doubled = settings.alpha_start * 2 ** (progress * settings.ramp).floor()
    return doubled.clamp(max=settings.alpha)


def with_margin(distance: Tensor, half_log_det: Tensor, labels: Tensor, a: Tensor) -> Tensor:
    """Return [B, K] training logits from distances [B, K] and ln|S_k| / 2 [K]."""
    own = labels[:, None] == torch.arange(distance.shape[1], device=labels.device)
    return -torch.where(own, distance * (1 + a), distance) - half_log_det


class GaussianHead(nn.Module):
    """Means, and logarithms of variances if they are learned, in the place of a linear layer."""

    def __init__(self, means: Tensor, settings: Settings) -> None:
        super().__init__()
        self.means = nn.Parameter(means.clone())
        self.lowest = math.log(settings.floor)
        learned = settings.covariance == "diagonal"
        self.log_variances = nn.Parameter(torch.zeros_like(self.means)) if learned else None

    def distances(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the [B, K] distances and ln|S_k| / 2, [K]."""
        logs = self.log_variances
        half_log_det = self.means.new_zeros(len(self.means)) if logs is None else logs.sum(1) / 2
        return distances(features, self.means, logs), half_log_det

    def forward(self, features: Tensor) -> Tensor:
        """Map [B, D] features to [B, K] logits without margin."""
        distance, half_log_det = self.distances(features)
        return -distance - half_log_det

    @torch.no_grad()
    def project(self) -> None:
        """Move variances that fell below the floor back to it."""
        if self.log_variances is not None:
            self.log_variances.clamp_(min=self.lowest)


class GaussianClassifier(nn.Module):
    """A backbone under a Gaussian head; a ``contracts.Classifier``."""

    def __init__(self, backbone: nn.Module, head: GaussianHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def features(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, D]."""
        features: Tensor = self.backbone(images)
        return features

    def class_vectors(self) -> Tensor:
        """Return the [K, D] means."""
        return self.head.means

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, K] logits without margin."""
        logits: Tensor = self.head(self.features(images))
        return logits


class LGM(PlainLoss):
    """Model the features as one Gaussian a class, with a margin and a likelihood term.

    d_k is half the squared distance to the class mean under the class covariance; training logits
    are -d_k (1 + a [k = y]) - ln|S_k| / 2, and L = mean CE + lambda mean (d_y + ln|S_y| / 2).
    Predictions take the logits without the margin a, which grows over the training up to alpha.
    """

    def make_classifier(self, setup: Setup) -> Any:
        """Return the recipe's backbone under means that start from its linear head's vectors."""
        start = setup.classifier(head="linear")
        means = initial_means(start.class_vectors().detach())
        return GaussianClassifier(start.backbone, GaussianHead(means, self.settings))

    def loss(self, batch: Batch) -> Mapping[str, Tensor]:
        """Return the loss with its two terms."""
        features = self.classifier.features(batch.images)
        distance, half_log_det = self.classifier.head.distances(features)
        a = margin(batch.progress, self.settings)
        ce = F.cross_entropy(with_margin(distance, half_log_det, batch.labels, a), batch.labels)
        own = distance.gather(1, batch.labels[:, None])[:, 0]
        likelihood = (own + half_log_det[batch.labels]).mean()
        total = ce + self.settings.lambda_ * likelihood
        return {"loss": total, "ce": ce, "likelihood": likelihood, "margin": a}

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take one step and keep the variances above their floor."""
        terms = super().step(batch)
        self.classifier.head.project()
        return terms

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return the norm of each class's mean, and its mean variance if that is learned."""
        head = self.classifier.head
        found = {"mean_norm": head.means.norm(dim=1)}
        if head.log_variances is not None:
            found["variance"] = head.log_variances.exp().mean(1)
        return found


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return LGM."""
    return [
        MethodSpec(
            name="lgm",
            title="LGM",
            make=LGM,
            summary="Gaussian mixture features: distance logits, a margin and a likelihood",
            reference=(
                "Wan, Zhong, Li, Chen: Rethinking Feature Distribution for Loss Functions in Image "
                "Classification, CVPR 2018"
            ),
            cost=1.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True, capturable=True, decomposable=True),
            example={"covariance": "diagonal"},
        )
    ]
