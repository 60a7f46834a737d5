"""A small made task for the engine's tests: everything real but the data and the network."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from classfair.data import Opened, open_data
from classfair.recipe import Recipe
from classfair.seeds import seed_torch
from classfair.setup import Setup
from classfair.trainer import Stopped, Trainer
from classfair.world import Alone
from classfair_registry.settings import NoSettings, build, describe, resolve
from classfair_registry.specs import BackboneSpec, DatasetSpec, Manifest, MethodSpec, Splits

CLASSES = 3
CPU = torch.device("cpu")


@dataclasses.dataclass
class MadeSplit:
    labels: np.ndarray
    pixels: np.ndarray
    names: None = None

    def images(self, indices: np.ndarray) -> np.ndarray:
        return self.pixels[indices]


def made_split(images: int, seed: int) -> MadeSplit:
    """Noise with a bright row that says the class."""
    rng = np.random.default_rng(seed)
    labels = np.arange(images) % CLASSES
    pixels = rng.integers(0, 200, (images, 6, 6, 1))
    pixels[np.arange(images), labels * 2] += 55
    return MadeSplit(labels.astype(np.int64), pixels.astype(np.uint8))


def dataset(train: int = 25, test: int = 12) -> DatasetSpec:
    splits = {"train": made_split(train, 0), "test": made_split(test, 1)}
    return DatasetSpec(
        name="made",
        title="Made",
        open=lambda root, settings: Splits(splits, "f" * 64),
        files=lambda root, settings: [],
        manifest=Manifest(
            classes=("a", "b", "c"),
            counts={"train": train, "test": test},
            shape=(1, 6, 6),
            mean=(0.4,),
            std=(0.3,),
            licence="none",
            citation="none",
            sources=("made here",),
        ),
        summary="noise with a bright row",
    )


class Net(nn.Module):
    """One convolution, BatchNorm and dropout: everything that has state or draws numbers."""

    def __init__(self, shape: tuple[int, int, int]) -> None:
        super().__init__()
        self.num_features = 5
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.1)
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.body(images).mean((2, 3))


def backbone() -> BackboneSpec:
    return BackboneSpec(
        name="net",
        title="Net",
        make=lambda shape, settings: Net(shape),
        summary="one convolution",
        reference="made here",
        settings=NoSettings,
    )


def recipe(**changes: Any) -> Recipe:
    """Four passes of 25 images in batches of 8: the last batch of one is merged."""
    values: dict[str, Any] = {
        "name": "made",
        "data": {"name": "made", "validation": 0.0},
        "backbone": {"name": "net"},
        "batch_size": 8,
        "epochs": 4,
        "augmentation": {"name": "crop_flip", "pad": 1},
        "trace": {"points": 4, "images": 9, "losses": 2},
    }
    return Recipe.model_validate(values | changes)


def trainer(
    spec: MethodSpec,
    made: Recipe | None = None,
    *,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    on_step: Callable[[float, str], None] = lambda done, phase: None,
    data: Opened | None = None,
    world: Any = None,
    network: BackboneSpec | None = None,
) -> Trainer:
    made = made or recipe()
    data = data or open_data(dataset(), made.data, None, CPU)
    setup = Setup(spec, network or backbone(), made, data, seed, world or Alone(CPU))
    given = spec.example if settings is None else settings
    resolved = resolve(describe(spec.settings), given, spec.name)
    seed_torch(seed, "make")
    return Trainer(spec.make(setup, build(spec.settings, resolved)), setup, on_step)


def last_state(done: Trainer) -> dict[str, Any]:
    """Everything that a run leaves, but its order of the current pass."""
    return done.state()


def stop_after(steps: int) -> Callable[[float, str], None]:
    """Return an ``on_step`` that stops the run after so many steps."""
    left = [steps]

    def on_step(done: float, phase: str) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Stopped

    return on_step


def saved_and_loaded(state: dict[str, Any]) -> dict[str, Any]:
    """Return what a checkpoint of the state gives back, without the wait for a disk."""
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def differences(one: Any, two: Any, place: str = "") -> list[str]:
    """Name every place where two states are not equal to the last bit."""
    if isinstance(one, torch.Tensor):
        same = one.dtype == two.dtype and torch.equal(one.nan_to_num(7), two.nan_to_num(7))
        return [] if same else [place]
    if isinstance(one, Mapping):
        if one.keys() != two.keys():
            return [f"{place}: keys"]
        return [d for key in one for d in differences(one[key], two[key], f"{place}.{key}")]
    if isinstance(one, list | tuple):
        if len(one) != len(two):
            return [f"{place}: length"]
        pairs = enumerate(zip(one, two, strict=True))
        return [d for i, (a, b) in pairs for d in differences(a, b, f"{place}[{i}]")]
    return [] if one == two or (one != one and two != two) else [f"{place}: {one} != {two}"]
