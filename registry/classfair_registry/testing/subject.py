"""What a check is given: a method, ready to be made and trained in toys of any kind."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from classfair_registry.contracts import Phase
from classfair_registry.settings import build, describe, resolve
from classfair_registry.specs import MethodSpec, Regime
from classfair_registry.testing.loop import Position, optimizers, state, train
from classfair_registry.testing.seeds import seed_torch
from classfair_registry.testing.toy import Toy


class Broken(Exception):
    """A promise that a method does not keep: one sentence, with the mend."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A method that was trained to its end.

    Attributes:
        toy: what it was made from.
        method: as it is after the last step.
        terms: what each step returned.
    """

    toy: Toy
    method: Any
    terms: list[Mapping[str, Tensor]]

    @functools.cached_property
    def state(self) -> dict[str, Tensor]:
        """All of its state dict and its optimisers' after the last step."""
        return copy(state(self.method))

    @functools.cached_property
    def logits(self) -> Tensor:
        """What it predicts for the training images after the last step."""
        return predict(self.method, self.toy.train.images)


class Subject:
    """A method under test.

    Args:
        spec: of the method.
        settings: by name, over those of ``spec.example``.
        quick: whether checks that have a longer form leave it out.
    """

    def __init__(
        self, spec: MethodSpec, settings: Mapping[str, Any] | None = None, *, quick: bool = True
    ) -> None:
        self.spec, self.quick = spec, quick
        given = {**spec.example, **(settings or {})}
        self.resolved = resolve(describe(spec.settings), given, spec.name)
        self.settings: Any = build(spec.settings, self.resolved)

    @property
    def regime(self) -> Regime:
        """The regime that checks use unless they say otherwise."""
        return "scratch" if "scratch" in self.spec.regimes else self.spec.regimes[0]

    def toy(self, **changes: Any) -> Toy:
        """Return a toy in which the method may read what its spec declares."""
        return Toy(**{"splits": self.spec.splits, "regime": self.regime, **changes})

    def make(self, toy: Toy) -> Any:
        """Make the method, with torch seeded as the toy is."""
        seed_torch(toy.seed, "make")
        setup: Any = toy  # Its world can do more than the contract's.
        return self.spec.make(setup, self.settings)

    def run(
        self, toy: Toy | None = None, change: Callable[[Phase], Phase] = lambda phase: phase
    ) -> Run:
        """Make the method in a toy and train it to its end.

        Args:
            toy: by default a plain one.
            change: of each phase.
        """
        toy = toy or self.toy()
        method = self.make(toy)
        phases = [change(phase) for phase in method.phases()]
        return Run(toy, method, list(train(method, toy, Position(), phases)))

    @functools.cached_property
    def plain(self) -> Run:
        """A run in a plain toy, shared by the checks: none of them trains its method further."""
        run = self.run()
        _ = run.state, run.logits  # Taken now, whatever is done to the method later.
        return run


def predict(method: Any, images: Tensor) -> Tensor:
    """Return the logits as the engine asks for them: eval mode, no gradient."""
    method.eval()
    with torch.no_grad():
        logits: Tensor = method.predict(images)
    return logits


def copy(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that later steps do not change."""
    return {
        name: value.detach().clone() if isinstance(value, Tensor) else value
        for name, value in tensors.items()
    }


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """Return the name of the first entry that is not the same to the last bit, or nothing."""
    if one.keys() != other.keys():
        return min(one.keys() ^ other.keys())
    return next((name for name in one if not same(one[name], other[name])), "")


def same(one: Any, other: Any) -> bool:
    """Return whether two values are equal to the last bit; NaN equals NaN."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other) and bool(one == other)
    return (
        one.dtype == other.dtype
        and one.shape == other.shape
        and bool(((one == other) | ((one != one) & (other != other))).all())
    )


def run_difference(one: Run, other: Run) -> str:
    """Name what differs in the last states, predictions or diagnostics, or return nothing."""
    changed = difference(one.state, other.state)
    if changed:
        return f"the state {changed!r}"
    if not same(one.logits, other.logits):
        return "what it predicts"
    changed = difference(one.method.diagnostics(), other.method.diagnostics())
    return f"the diagnostic {changed!r}" if changed else ""


def not_finite(run: Run) -> str:
    """Return what is not finite after a run, or nothing."""
    for number, terms in enumerate(run.terms):
        for name, value in terms.items():
            if not bool(value.isfinite().all()):
                return f"the term {name!r} of step {number} is {float(value)}"
    for optimizer in optimizers(run.method.phases()):
        if not bool(optimizer.finite):
            return f"a gradient of {optimizer.names[0]} and others was not finite"
    for name, value in state(run.method).items():
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            return f"the state {name!r} is not finite"
    if not bool(predict(run.method, run.toy.train.images).isfinite().all()):
        return "the predictions are not finite"
    return ""


def require_finite(run: Run, mend: str) -> None:
    """Raise Broken if anything in a run is not finite."""
    found = not_finite(run)
    if found:
        raise Broken(f"{found}; {mend}")
