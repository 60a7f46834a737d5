"""What tests of single methods share: making one, giving it logits, training it on ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classfair_registry.contracts import Batch
from classfair_registry.settings import build, describe, resolve
from classfair_registry.specs import MethodSpec
from classfair_registry.testing import Network, Position, Toy, World, in_lockstep, train

PLAIN = Network(norm="none", dropout=0)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(example: dict[str, Any], actual: Tensor, expected: Any) -> None:
    """Compare with a worked example within its absolute tolerance."""
    torch.testing.assert_close(
        actual.double(), f64(expected), rtol=0, atol=float(example["tolerance"])
    )


def make(spec: MethodSpec, toy: Toy, **settings: Any) -> Any:
    """Make a method with some settings and the defaults of the others."""
    return spec.make(toy, build(spec.settings, resolve(describe(spec.settings), settings, "test")))


class Answers(nn.Module):
    """A classifier whose logits are a parameter, so that a loss can be given any."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.logits


def batch(labels: Sequence[int], progress: float = 0.0) -> Batch:
    index = torch.arange(len(labels))
    images = torch.zeros(len(labels), 3, 8, 8)
    return Batch(index, [images], torch.tensor(labels), torch.tensor(progress))


def loss_of(
    method: Any, logits: Tensor, labels: Sequence[int], progress: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Return the loss of a PlainLoss at given logits, and its gradient on them."""
    method.classifier = Answers(logits)
    loss = method.loss(batch(labels, progress))
    total = loss if isinstance(loss, Tensor) else loss["loss"]
    total.backward()
    return total.detach(), method.classifier.logits.grad


def losses(method: Any, toy: Toy) -> list[float]:
    """Train to the end; return each step's loss."""
    return [terms["loss"].item() for terms in train(method, toy, Position())]


def begin_pass(method: Any, toy: Toy, phase: int = 0, number: int = 0) -> None:
    """Let a phase look at the training data before a pass, as a loop does."""
    method.eval()
    with torch.no_grad():
        method.phases()[phase].each_pass(toy.data("train"), number, toy.passes)
    method.train()


def weights(method: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in method.parameters()])


def assert_ranks_equal_one(
    size: int, made: Callable[[Toy], Any], state: Callable[[Any], Tensor] = weights, **toy: Any
) -> None:
    """Check that several processes end where one does: same weights, or what ``state`` returns."""

    def run(world: World) -> Tensor:
        small = Toy(network=PLAIN, world=world, **{"passes": 3, **toy})
        method = made(small)
        losses(method, small)
        return state(method)

    (alone,) = in_lockstep(1, run)
    for each in in_lockstep(size, run):
        torch.testing.assert_close(each, alone, rtol=2e-4, atol=2e-5)
