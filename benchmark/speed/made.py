"""Made-up images, and trainings of them that can be taken a pass at a time."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from classfair.data import Opened, open_data
from classfair.recipe import Data, Recipe
from classfair.seeds import seed_torch
from classfair.setup import Setup
from classfair.trainer import Stopped, Trainer
from classfair.world import Alone
from classfair_registry.manager import Plugins
from classfair_registry.settings import build, describe, resolve
from classfair_registry.specs import BackboneSpec, DatasetSpec, Manifest, Splits

CPU = torch.device("cpu")
BATCH = 128
CIFAR = (3, 32, 32)
EVER = 1_000_000
"""Passes of a training that nobody waits for the end of."""


@functools.cache
def plugins() -> Plugins:
    """Return the plugins that ship."""
    found = Plugins()
    found.add_built_in()
    return found


@dataclasses.dataclass(frozen=True)
class Noise:
    """A split of images of noise, with the classes in turn as labels."""

    labels: npt.NDArray[np.int64]
    pixels: npt.NDArray[np.uint8]
    names: None = None

    def images(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        """Return images [len(indices), H, W, C]."""
        return self.pixels[indices]


def noise(n: int, classes: int, shape: tuple[int, int, int]) -> Noise:
    """Return ``n`` such images."""
    channels, height, width = shape
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (n, height, width, channels), dtype=np.uint8)
    return Noise(np.arange(n) % classes, pixels)


def opened(
    train: int, classes: int, shape: tuple[int, int, int] = CIFAR, *, test: int | None = None
) -> Opened:
    """Return a data set of such images as a cell has it; by default a test image a class."""
    counts = {"train": train, "test": test or classes}
    splits = {name: noise(n, classes, shape) for name, n in counts.items()}
    spec = DatasetSpec(
        name="made",
        title="Made",
        open=lambda _root, _settings: Splits(splits, "0" * 64),
        files=lambda _root, _settings: [],
        manifest=Manifest(
            classes=tuple(f"class {k}" for k in range(classes)),
            counts=counts,
            shape=shape,
            mean=(0.5,) * shape[0],
            std=(0.25,) * shape[0],
            licence="none",
            citation="none",
            sources=("made up",),
        ),
        summary="noise",
    )
    return open_data(spec, Data(name="made"), None, CPU)


def recipe(**changes: Any) -> Recipe:
    """Return the CIFAR recipe, at a learning rate at which noise does no harm.

    Curves are left out: 30 in a whole run, they are no part of a step.
    """
    values: dict[str, Any] = {
        "name": "speed",
        "data": {"name": "made"},
        "backbone": {"name": "resnet32"},
        "optimizer": {"lr": 1e-5},
        "batch_size": BATCH,
        "epochs": EVER,
        "augmentation": {"name": "crop_flip", "pad": 4},
        "trace": {"points": 0},
    }
    return Recipe.model_validate(values | changes)


def setup(
    method: str, data: Opened, chosen: Recipe, network: BackboneSpec | None = None
) -> tuple[Any, Setup]:
    """Return a method with its default settings, and what it was made from."""
    spec = plugins().get("methods", method)
    network = network or plugins().get("backbones", chosen.backbone.name)
    made = Setup(spec, network, chosen, data, 0, Alone(CPU))
    settings = build(spec.settings, resolve(describe(spec.settings), {}, method))
    seed_torch(0, "make")
    return spec.make(made, settings), made


class Passes:
    """A training: each call is its next pass over the data, with all that belongs to one."""

    def __init__(self, method: str, data: Opened, chosen: Recipe) -> None:
        self.trainer = Trainer(*setup(method, data, chosen), self._on_step)

    @property
    def over(self) -> bool:
        """Whether the training is at its end."""
        return self.trainer.done() >= 1

    def __call__(self) -> None:
        try:
            self.trainer.run()
        except Stopped:
            return

    def _on_step(self, _done: float, _phase: str) -> None:
        order = self.trainer.at.order
        if order is not None and self.trainer.at.sample == len(order):
            raise Stopped


class Flat(nn.Module):
    """A network that costs next to nothing, to see what a method costs without one."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.num_features = math.prod(shape)
        self.layer = nn.Linear(self.num_features, self.num_features)

    def forward(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, C H W]."""
        features: Tensor = self.layer(images.flatten(1))
        return features


FLAT = BackboneSpec(
    name="flat",
    title="Flat",
    make=lambda shape, _settings: Flat(shape),
    summary="one linear layer",
    reference="none",
)
