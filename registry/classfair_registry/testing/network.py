"""The toy's network: one convolution, a normalisation, one linear layer, and a head."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from classfair_registry.plain import safe_normalize
from classfair_registry.testing.worlds import World

NUM_FEATURES = 6


@dataclasses.dataclass(frozen=True)
class Network:
    """What the network is like.

    Attributes:
        norm: ``batch``, ``sync`` (BatchNorm over all processes) or ``none``.
        dropout: share of the features' inputs that is dropped in training.
        precision: of the backbone; the head is always float32.
        head: ``linear`` or ``cosine``.
        scale: of a cosine head's logits.
        feature_scale: multiplies the features; 0 makes zero vectors of them.
        logit_size: multiplies a linear head's initial weights and is a cosine head's scale,
            whatever is asked for; None leaves both.
        frozen: whether the backbone is fixed, as in a probe.
    """

    norm: Literal["batch", "sync", "none"] = "batch"
    dropout: float = 0.1
    precision: Literal["fp32", "bf16"] = "fp32"
    head: str = "linear"
    scale: float = 16.0
    feature_scale: float = 1.0
    logit_size: float | None = None
    frozen: bool = False


class SyncBatchNorm(nn.BatchNorm2d):
    """BatchNorm whose batch is that of all processes, on any device."""

    def __init__(self, channels: int, world: World) -> None:
        super().__init__(channels)
        self._world = world

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to the same shape in float32."""
        if not self.training:
            normalized: Tensor = super().forward(images)
            return normalized
        values = images.float()
        count = self._world.all_reduce(values.new_tensor(values[:, 0].numel()))
        mean = self._world.sum(values.sum((0, 2, 3))) / count
        centred = values - mean[:, None, None]
        variance = self._world.sum(centred.square().sum((0, 2, 3))) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        unit = centred * (variance + self.eps).rsqrt()[:, None, None]
        return unit * self.weight[:, None, None] + self.bias[:, None, None]

    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        if self.track_running_stats and self.running_mean is not None:
            self.num_batches_tracked.add_(1)
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)


class Backbone(nn.Module):
    """Maps [B, C, H, W] to [B, D] float32."""

    def __init__(self, shape: tuple[int, int, int], network: Network, world: World) -> None:
        super().__init__()
        channels, height, width = shape
        self.num_features = NUM_FEATURES
        self.network = network
        self.convolution = nn.Conv2d(channels, 8, 3, stride=2, padding=1)
        self.norm = self._norm(world)
        self.dropout = nn.Dropout(network.dropout)
        self.linear = nn.Linear(8 * ((height + 1) // 2) * ((width + 1) // 2), NUM_FEATURES)
        self.requires_grad_(not network.frozen)

    def _norm(self, world: World) -> nn.Module:
        if self.network.norm == "none":
            return nn.Identity()
        return nn.BatchNorm2d(8) if self.network.norm == "batch" else SyncBatchNorm(8, world)

    def train(self, mode: bool = True) -> Backbone:
        """A frozen backbone stays in eval mode."""
        super().train(mode and not self.network.frozen)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Return the features; zero or huge ones if the network is to have such."""
        low = self.network.precision == "bf16"
        with torch.autocast(images.device.type, torch.bfloat16, enabled=low):
            hidden = F.relu(self.norm(self.convolution(images)))
            features = self.linear(self.dropout(hidden.flatten(1)))
        scaled: Tensor = features.float() * self.network.feature_scale
        return scaled


class CosineHead(nn.Module):
    """Scaled products of features of length one and class vectors brought to it."""

    def __init__(self, num_classes: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.weight = nn.Parameter(torch.randn(num_classes, NUM_FEATURES))

    def forward(self, features: Tensor) -> Tensor:
        """Map [B, D] to [B, K]."""
        cosines: Tensor = F.linear(features, safe_normalize(self.weight))
        return self.scale * cosines


class Classifier(nn.Module):
    """A backbone and a head, as contracts.Classifier has it."""

    def __init__(self, backbone: Backbone, num_classes: int, network: Network) -> None:
        super().__init__()
        self.backbone = backbone
        self.head: nn.Module
        if network.head == "cosine":
            self.head = CosineHead(num_classes, network.logit_size or network.scale)
        else:
            self.head = nn.Linear(NUM_FEATURES, num_classes)
            self.head.weight.data *= network.logit_size or 1.0

    def features(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to the [B, D] features that the head is given."""
        features: Tensor = self.backbone(images)
        return safe_normalize(features) if isinstance(self.head, CosineHead) else features

    def class_vectors(self) -> Tensor | None:
        """Return the head's [K, D] weights."""
        weight: Tensor = self.head.weight
        return weight

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, K]."""
        logits: Tensor = self.head(self.features(images))
        return logits
