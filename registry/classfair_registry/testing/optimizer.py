"""The toy's optimiser: SGD with momentum, a clipped gradient and a cosine schedule, by hand."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classfair_registry.errors import UsageError, near
from classfair_registry.testing.worlds import World


@dataclasses.dataclass(frozen=True)
class Rates:
    """Settings of the update; those of them that a method may override."""

    lr: float = 0.05
    momentum: float = 0.9
    weight_decay: float = 5e-4
    clip: float | None = 5.0


class Sgd:
    """An Optimizer as the contract has it. Nothing in it waits for the device.

    Args:
        named: what to update; frozen parameters are left out.
        world: to reduce gradients over.
        progress: 0-d tensor that the loop keeps at the phase's progress, or None for a constant
            learning rate.
        rates: the settings.

    Attributes:
        finite: [] whether every gradient so far was finite.
    """

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        world: World,
        progress: Tensor | None,
        rates: Rates,
    ) -> None:
        trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
        self.names = [name for name, _ in trained]
        self.parameters: Sequence[nn.Parameter] = [parameter for _, parameter in trained]
        self.rates = rates
        device = trained[0][1].device if trained else "cpu"
        self.finite = torch.ones((), dtype=torch.bool, device=device)
        self._world, self._progress = world, progress
        self._momenta = [torch.zeros_like(p, requires_grad=False) for p in self.parameters]

    @property
    def learning_rate(self) -> float:
        """The learning rate of the current step."""
        return float(self._rate())

    def gradient(self, closure: Callable[[], Tensor]) -> Tensor:
        """Clear, run the closure, backpropagate and reduce; return the detached loss."""
        for parameter in self.parameters:
            parameter.grad = None
        loss = closure()
        # Weighted before, not after: a rank's loss may reach other ranks' weights through a
        # gather or through batch statistics, and must count there with its own weight.
        (loss * self._world.share).backward()
        for parameter in self._reached():
            parameter.grad = self._world.all_reduce(parameter.grad)
        self._note_whether_finite()
        return loss.detach()

    def apply(self) -> None:
        """Clip, and move each parameter that has a gradient."""
        reached = self._reached()
        if not reached:
            return
        with torch.no_grad():
            shrink = self._shrink([parameter.grad for parameter in reached])
            rate = self._rate()
            for parameter, momentum in zip(self.parameters, self._momenta, strict=True):
                if parameter.grad is None:
                    continue
                slope = parameter.grad * shrink + self.rates.weight_decay * parameter
                momentum.mul_(self.rates.momentum).add_(slope)
                parameter.sub_(rate * momentum)

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """Do both, and return the detached loss."""
        loss = self.gradient(closure)
        self.apply()
        return loss

    def state_dict(self) -> dict[str, Tensor]:
        """Return the momenta by name, for a checkpoint."""
        return dict(zip(self.names, self._momenta, strict=True))

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copy the momenta of a checkpoint."""
        for name, momentum in zip(self.names, self._momenta, strict=True):
            momentum.copy_(state[name])

    def _reached(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.parameters if parameter.grad is not None]

    def _note_whether_finite(self) -> None:
        for parameter in self._reached():
            self.finite.logical_and_(parameter.grad.isfinite().all())

    def _shrink(self, gradients: list[Tensor]) -> Tensor | float:
        if self.rates.clip is None:
            return 1.0
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        return (self.rates.clip / norm.clamp(min=self.rates.clip)).clamp(max=1.0)

    def _rate(self) -> Tensor | float:
        if self._progress is None:
            return self.rates.lr
        return self.rates.lr * 0.5 * (1 + torch.cos(math.pi * self._progress))


def override(rates: Rates, overrides: Mapping[str, Any]) -> Rates:
    """Return other rates.

    Raises:
        UsageError: for a name that is no setting of the toy's optimiser.
    """
    known = [field.name for field in dataclasses.fields(Rates)]
    for name in overrides:
        if name not in known:
            raise UsageError(f"setup.optimizer: no setting {name!r}{near(name, known)}")
    return dataclasses.replace(rates, **overrides)
