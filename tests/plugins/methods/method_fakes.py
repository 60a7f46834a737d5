"""A network, worlds and a loop as small as can be, for tests of whole methods."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classfair_registry.contracts import Batch, Task
from classfair_registry.plain import safe_normalize
from classfair_registry.settings import build, describe, resolve
from classfair_registry.specs import MethodSpec

DATA = Path(__file__).parents[2] / "data"


def examples(part: int) -> dict[str, dict[str, Any]]:
    """Return the worked examples of one part by id."""
    read = json.loads((DATA / f"examples_part{part}.json").read_text())
    return {example["id"]: example for example in read}


def close(example: dict[str, Any], actual: Tensor, expected: Any) -> None:
    """Compare float64 values within the example's absolute tolerance."""
    wanted = torch.as_tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(actual.double(), wanted, rtol=0, atol=example["tolerance"])


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class Alone:
    """One process."""

    rank, size, share = 0, 1, 1.0

    def all_reduce(self, values: Tensor) -> Tensor:
        return values

    def all_gather(self, values: Tensor) -> Tensor:
        return values

    def rand(self, *shape: int) -> Tensor:
        return torch.rand(*shape)


class Forbidden(Alone):
    """A world in which nothing may be drawn."""

    def rand(self, *shape: int) -> Tensor:
        raise AssertionError("this step must not consume random numbers")


class Rank(Alone):
    """One of several processes, played by threads that meet at a barrier."""

    def __init__(self, rank: int, counts: Sequence[int], barrier: threading.Barrier, slots: list):
        self.rank, self.size, self.share = rank, len(counts), counts[rank] / sum(counts)
        self._counts, self._barrier, self._slots = counts, barrier, slots
        self._generator = torch.Generator().manual_seed(0)

    def _exchange(self, values: Tensor) -> list[Tensor]:
        self._slots[self.rank] = values.detach().clone()
        self._barrier.wait()
        everyone = list(self._slots)
        self._barrier.wait()
        return everyone

    def all_reduce(self, values: Tensor) -> Tensor:
        return torch.stack(self._exchange(values)).sum(0)

    def all_gather(self, values: Tensor) -> Tensor:
        assert not values.requires_grad, "these threads gather without gradient"
        return torch.cat(self._exchange(values))

    def rand(self, *shape: int) -> Tensor:
        drawn = torch.rand(sum(self._counts), *shape[1:], generator=self._generator)
        start = sum(self._counts[: self.rank])
        return drawn[start : start + shape[0]]


def on_ranks(counts: Sequence[int], run: Callable[[Rank, slice], Any]) -> list[Any]:
    """Call ``run(world, rows)`` on one thread a rank; ``rows`` is its part of the global batch."""
    barrier, slots = threading.Barrier(len(counts), timeout=60), [None] * len(counts)

    def body(rank: int) -> Any:
        start = sum(counts[:rank])
        try:
            return run(Rank(rank, counts, barrier, slots), slice(start, start + counts[rank]))
        except Exception:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(counts)) as pool:
        futures = [pool.submit(body, rank) for rank in range(len(counts))]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]


class Body(nn.Module):
    """[B, 1, 1, P] to [B, 4] features."""

    num_features = 4

    def __init__(self, pixels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(pixels, self.num_features)

    def forward(self, images: Tensor) -> Tensor:
        return torch.relu(self.linear(images.flatten(1)) + 1)


class CosineHead(nn.Module):
    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(classes, features)), scale

    def forward(self, features: Tensor) -> Tensor:
        return self.scale * safe_normalize(features) @ safe_normalize(self.weight).T


class Net(nn.Module):
    def __init__(self, backbone: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def features(self, images: Tensor) -> Tensor:
        return self.backbone(images)

    def class_vectors(self) -> Tensor:
        return self.head.weight

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))


class SGD:
    """The reduced gradient, scaled and subtracted."""

    def __init__(self, parameters: list[nn.Parameter], lr: float, world: Any) -> None:
        self.parameters, self.lr, self.world = parameters, lr, world

    def gradient(self, closure: Callable[[], Tensor]) -> Tensor:
        for parameter in self.parameters:
            parameter.grad = None
        loss = closure()
        loss.backward()
        for parameter in self.parameters:
            gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            parameter.grad = self.world.all_reduce(gradient * self.world.share)
        return loss.detach()

    def apply(self) -> None:
        with torch.no_grad():
            for parameter in self.parameters:
                parameter.sub_(self.lr * parameter.grad)

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        loss = self.gradient(closure)
        self.apply()
        return loss


class Reader:
    def __init__(self, images: Tensor, labels: Tensor, world: Any) -> None:
        self._images, self.labels, self._world = images, labels, world

    def batches(self) -> Iterator[Batch]:
        for index in torch.arange(len(self.labels))[self._world.rank :: self._world.size].split(5):
            yield Batch(index, [self._images[index]], self.labels[index], torch.tensor(0.0))

    def images(self, index: Tensor) -> Tensor:
        return self._images[index]


class Setup:
    """A toy setup over given images; ``dtype`` is that of the images."""

    def __init__(self, images: Tensor, labels: Tensor, num_classes: int, world: Any = None) -> None:
        self.images, self.labels, self.world = images, labels, world or Alone()
        counts = torch.bincount(labels, minlength=num_classes).tolist()
        names = tuple(f"class {k}" for k in range(num_classes))
        self.task = Task(names, tuple(counts), (1, 1, images.shape[-1]), "scratch", labels)
        self.lr = 0.1

    def data(self, split: str, transform: str = "eval") -> Reader:
        assert split == "train"
        assert transform in ("eval", "train")
        return Reader(self.images, self.labels, self.world)

    def classifier(
        self, init: int = 0, *, head: str | None = None, scale: float | None = None
    ) -> Net:
        generator = torch.Generator().manual_seed(init)
        body = Body(self.images.shape[-1])
        made: nn.Module = nn.Linear(4, self.task.num_classes)
        if head == "cosine":
            made = CosineHead(4, self.task.num_classes, scale or 1.0)
        net = Net(body, made)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
        return net.to(self.images.dtype)

    def optimizer(self, parameters: Any, *, schedule: bool = True, **overrides: Any) -> SGD:
        named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
        trained = [parameter for _, parameter in named if parameter.requires_grad]
        return SGD(trained, overrides.get("lr", self.lr), self.world)


def toy(
    counts: Sequence[int] = (6, 6, 6),
    pixels: int = 3,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return images and labels, shuffled, with so many images a class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=generator)]
    images = torch.randn(len(labels), 1, 1, pixels, generator=generator, dtype=torch.float64)
    return (images + labels[:, None, None, None] / 2).to(dtype), labels


def batch_of(setup: Setup, rows: slice | Tensor = slice(None), progress: float = 0.0) -> Batch:
    index = torch.arange(len(setup.labels))[rows]
    images = setup.images[index]
    return Batch(index, [images], setup.labels[index], torch.tensor(progress))


def make(spec: MethodSpec, setup: Any, **settings: Any) -> Any:
    """Return the method, in the dtype of the images."""
    resolved = resolve(describe(spec.settings), settings, spec.name)
    return spec.make(setup, build(spec.settings, resolved)).to(setup.images.dtype)


def train(method: Any, setup: Setup, passes: int = 4, batch_size: int = 8) -> list[Tensor]:
    """Run every phase for its share of the passes, at least one, and return the losses."""
    losses = []
    for number, phase in enumerate(method.phases()):
        reader = setup.data(phase.split)
        if phase.enter:
            phase.enter(reader)
        for p in range(wanted := max(1, round(phase.share * passes))):
            if phase.each_pass:
                phase.each_pass(reader, p, wanted)
            generator = torch.Generator().manual_seed(100 * number + p)
            length = len(setup.labels)
            order = (
                phase.order(generator)
                if phase.order
                else torch.randperm(length, generator=generator)
            )
            for index in order.split(batch_size):
                world = setup.world
                ends = [len(index) * r // world.size for r in range(world.size + 1)]
                world.share = (ends[world.rank + 1] - ends[world.rank]) / len(index)
                method.train()
                part = index[ends[world.rank] : ends[world.rank + 1]]
                terms = phase.step(batch_of(setup, part, p / wanted))
                losses.append(terms["loss"] * world.share)
    return losses
