"""The CIFAR family of residual networks: depth 6n + 2 with 16, 32 and 64 channels.

He, Zhang, Ren and Sun. Deep Residual Learning for Image Recognition, CVPR 2016, section 4.2: a
3 x 3 convolution, three stages of n blocks of two 3 x 3 convolutions, the second and third stage at
half the resolution of the one before, and global average pooling over 64 channels. Convolutions
start from He et al.'s normal initialisation (ICCV 2015, fan in, gain sqrt 2).

**Shortcuts**, where a stage changes the size: setting ``B`` is a 1 x 1 convolution and batch
normalisation, as in the released code of MR2; ``A`` takes every second pixel and pads the channels
with zeros, as the paper does for CIFAR and the released code of LDAM too. With a linear head with
bias for 100 classes and B, ResNet-20 has 278,324 parameters and ResNet-32 472,756.

Images may be of any size and have any number of channels.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from classfair_registry import hookimpl
from classfair_registry.settings import setting
from classfair_registry.specs import BackboneSpec

CHANNELS = (16, 32, 64)
DEPTHS = (8, 20, 32, 44, 56)


@dataclasses.dataclass(frozen=True)
class Settings:
    """Settings of the family."""

    shortcut: Literal["B", "A"] = setting(
        "B",
        "where the size changes: B, a 1 x 1 convolution; A, zeros for the new channels",
        source="released code of MR2; the ResNet paper uses A on CIFAR",
    )


class Block(nn.Module):
    """Two 3 x 3 convolutions around a shortcut: [B, inputs, H, W] to [B, outputs, H/s, W/s]."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = _conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = _conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(shortcut(x) + residual(x))."""
        residual = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(residual)) + self.shortcut(x))


class ZeroPadded(nn.Module):
    """Shortcut A: every ``stride``-th pixel, and zeros for the channels that are new."""

    def __init__(self, more_channels: int, stride: int) -> None:
        super().__init__()
        self.before, self.stride = more_channels // 2, stride
        self.after = more_channels - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, C + more, ceil(H/s), ceil(W/s)]."""
        kept = x[:, :, :: self.stride, :: self.stride]
        return F.pad(kept, (0, 0, 0, 0, self.before, self.after))


class CifarResNet(nn.Module):
    """A network of the family without its head: [B, C, H, W] to [B, 64].

    Args:
        shape: (C, H, W) of an image; only C matters.
        settings: see :class:`Settings`.
        depth: 6n + 2.
    """

    num_features = CHANNELS[-1]

    def __init__(self, shape: tuple[int, int, int], settings: Settings, depth: int) -> None:
        super().__init__()
        blocks = (depth - 2) // 6
        self.conv = _conv3x3(shape[0], CHANNELS[0])
        self.bn = nn.BatchNorm2d(CHANNELS[0])
        inputs = (CHANNELS[0], *CHANNELS[:-1])
        self.stages = nn.Sequential(
            *(
                _stage(before, outputs, blocks, settings.shortcut)
                for before, outputs in zip(inputs, CHANNELS, strict=True)
            )
        )
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight)

    def forward(self, images: Tensor) -> Tensor:
        """Return [B, 64] features: means over pixels of the last stage's ReLU."""
        return self.stages(F.relu(self.bn(self.conv(images)))).mean((2, 3))


def _conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int, shortcut: str) -> nn.Module:
    if (inputs, stride) == (outputs, 1):
        return nn.Identity()
    if shortcut == "A":
        return ZeroPadded(outputs - inputs, stride)
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


def _stage(inputs: int, outputs: int, blocks: int, shortcut: str) -> nn.Sequential:
    """Return a stage, whose first block halves the resolution if it widens the network."""
    first = Block(inputs, outputs, 1 if inputs == outputs else 2, shortcut)
    rest = (Block(outputs, outputs, 1, shortcut) for _ in range(blocks - 1))
    return nn.Sequential(first, *rest)


def _spec(depth: int) -> BackboneSpec:
    return BackboneSpec(
        name=f"resnet{depth}",
        title=f"ResNet-{depth}",
        make=functools.partial(CifarResNet, depth=depth),
        summary=f"CIFAR-style residual network of {depth} layers, 16-32-64 channels",
        reference="He et al., Deep Residual Learning for Image Recognition, CVPR 2016",
        settings=Settings,
    )


@hookimpl
def classfair_backbones() -> Iterable[BackboneSpec]:
    """Provide the family."""
    return [_spec(depth) for depth in DEPTHS]
