"""What a method is made from, by the engine; see ``contracts.Setup``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from classfair import recipe as recipes
from classfair.classifier import Body, Classifier, CosineHead, Counter, LinearHead
from classfair.data import Opened, Reader, Transform
from classfair.optim import Optimizer
from classfair.schedule import Clock
from classfair.seeds import seed_of
from classfair.world import Alone, Group
from classfair_registry.contracts import Task
from classfair_registry.errors import UsageError
from classfair_registry.settings import build, describe, resolve
from classfair_registry.specs import BackboneSpec, MethodSpec


class Setup:
    """Everything that a method may ask for, on the run's device.

    Attributes:
        task, world: see ``contracts.Setup``.
        clock: progress of the current phase, set by the trainer.
        counter: images through backbones.
        optimizers: those that were handed out, in order: the part of the state that is not in the
            method's state dict.
    """

    def __init__(
        self,
        method: MethodSpec,
        backbone: BackboneSpec,
        recipe: recipes.Recipe,
        data: Opened,
        seed: int,
        world: Alone | Group,
    ) -> None:
        self.world, self.recipe, self.opened, self.seed = world, recipe, data, seed
        self.clock, self.counter = Clock(), Counter()
        self.optimizers: list[Optimizer] = []
        self._method, self._backbone = method, backbone
        self.task = Task(
            class_names=tuple(data.class_names),
            counts=tuple(data.counts),
            shape=data.shape,
            regime=recipe.regime,
            labels=data.train.images.labels,
        )

    def data(self, split: str, transform: Transform = "eval") -> Reader:
        """Return a reader of a split that the method's spec names."""
        if split not in self._method.splits:
            raise UsageError(
                f"method {self._method.name!r} reads split {split!r}, but its spec names only "
                f"{', '.join(self._method.splits)}; add it to MethodSpec.splits"
            )
        return self.reader(split, transform)

    def reader(self, split: str, transform: Transform = "eval") -> Reader:
        """Return a reader of any split that the data has, for the engine."""
        return Reader(
            self.opened.part(split).images,
            self.recipe.batch_size,
            transform=transform,
            augmentation=self.recipe.augmentation,
            # Seeded before each time that a method reads, so that no state outlives it.
            generator=torch.default_generator,
            rank=self.world.rank,
            size=self.world.size,
        )

    def backbone(self, init: int = 0) -> Body:
        """Return the backbone alone, initialised from the seed and ``init`` alone."""
        spec, wanted = self._backbone, self.recipe.backbone
        settings: Any = build(
            spec.settings, resolve(describe(spec.settings), wanted.settings, "backbone.settings")
        )
        with self._initialising(init, "backbone"):
            network = spec.make(self.task.shape, settings)
        frozen = self.recipe.regime == "probe"
        body = Body(network, self.recipe.precision, self.counter, frozen)
        body.to(self.world.device, memory_format=torch.channels_last)
        return body

    def classifier(
        self, init: int = 0, *, head: str | None = None, scale: float | None = None
    ) -> Classifier:
        """Return backbone and head, initialised from the seed and ``init`` alone."""
        body, wanted = self.backbone(init), self.recipe.backbone
        if head is None:
            head = self._backbone.head if wanted.head == "default" else wanted.head
        num_features, num_classes = body.num_features, self.task.num_classes
        made: LinearHead | CosineHead
        with self._initialising(init, "head"):
            if head == "cosine":
                made = CosineHead(num_features, num_classes, scale or wanted.scale)
            else:
                made = LinearHead(num_features, num_classes)
        return Classifier(body, made.to(self.world.device))

    def optimizer(
        self,
        parameters: nn.Module | Iterable[tuple[str, nn.Parameter]],
        *,
        schedule: bool = True,
        **overrides: Any,
    ) -> Optimizer:
        """Return the recipe's optimiser over a module or named parameters."""
        named = (
            list(parameters.named_parameters())
            if isinstance(parameters, nn.Module)
            else list(parameters)
        )
        settings = self.recipe.optimizer
        if overrides:
            settings = recipes.Optimizer.model_validate({**settings.model_dump(), **overrides})
        rule = self.recipe.schedule if schedule else None
        made = Optimizer(named, settings, rule, self.clock, self.world)
        self.optimizers.append(made)
        return made

    def _initialising(self, init: int, part: str) -> _Initialising:
        return _Initialising(seed_of(self.seed, "init", init, part))


class _Initialising:
    """Make modules on the CPU from their own seed, and leave the generator as it was.

    On the CPU whatever the device of the run, so that initial weights do not depend on it.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def __enter__(self) -> None:
        self._device = torch.device("cpu")
        self._before = torch.default_generator.get_state()
        self._device.__enter__()
        torch.default_generator.manual_seed(self._seed)

    def __exit__(self, *error: object) -> None:
        torch.default_generator.set_state(self._before)
        self._device.__exit__(*error)
