"""Backbone and head as methods get them: the backbone in the recipe's precision, the head exact."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair_registry.plain import safe_normalize


@dataclasses.dataclass
class Counter:
    """Images that went through backbones, the unit of a method's cost."""

    forward: int = 0
    backward: int = 0
    paused: bool = False

    def add(self, images: int, *, backward: bool) -> None:
        """Count one forward pass, and the backward pass that will follow it."""
        if not self.paused:
            self.forward += images
            self.backward += images if backward else 0

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Count nothing inside: what the engine looks at is not the method's cost."""
        self.paused, before = True, self.paused
        try:
            yield
        finally:
            self.paused = before


class Body(nn.Module):
    """A backbone that runs in the recipe's precision and returns float32 features.

    Args:
        network: maps [B, C, H, W] to [B, D], with ``num_features``.
        precision: ``fp32`` or ``bf16`` (autocast; parameters stay float32).
        counter: counts its images.
        frozen: never trained: no gradient, always in eval mode.
    """

    def __init__(self, network: nn.Module, precision: str, counter: Counter, frozen: bool) -> None:
        super().__init__()
        self.network = network
        self.num_features = int(network.num_features)
        self._bf16, self._counter, self._frozen = precision == "bf16", counter, frozen
        if frozen:
            self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Body:
        """Set the mode, which a frozen backbone ignores: its BatchNorm statistics are given."""
        super().train(mode and not self._frozen)
        return self

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, D] float32 (float64 stays)."""
        self._counter.add(len(images), backward=torch.is_grad_enabled() and not self._frozen)
        with torch.autocast(images.device.type, torch.bfloat16, enabled=self._bf16):
            features: Tensor = self.network(images)
        return features if features.dtype == torch.float64 else features.float()


class LinearHead(nn.Linear):
    """Logits are w_k . f + b_k."""

    def prepare(self, features: Tensor) -> Tensor:
        """Return the features as they are."""
        return features


class CosineHead(nn.Module):
    """Logits are ``scale`` times the cosine of feature and class vector, without bias."""

    def __init__(self, num_features: int, num_classes: int, scale: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(safe_normalize(torch.randn(num_classes, num_features)))
        self.scale = scale

    def prepare(self, features: Tensor) -> Tensor:
        """Return the features at length one."""
        return safe_normalize(features)

    def forward(self, features: Tensor) -> Tensor:
        """Map [B, D] features of length one to [B, K]."""
        return self.scale * F.linear(features, safe_normalize(self.weight))


class Classifier(nn.Module):
    """A backbone and a head; see ``contracts.Classifier``."""

    def __init__(self, backbone: Body, head: LinearHead | CosineHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def features(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to the [B, D] features that the head is given."""
        return self.head.prepare(self.backbone(images))

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, K] logits."""
        logits: Tensor = self.head(self.features(images))
        return logits

    def class_vectors(self) -> Tensor:
        """Return the head's [K, D] weights."""
        return self.head.weight
