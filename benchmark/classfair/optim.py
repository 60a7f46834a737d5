"""The optimiser that a method is given: it owns everything between a loss and the new weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classfair import recipe
from classfair.schedule import Clock, factor
from classfair.world import Alone, Group


class Optimizer:
    """The recipe's update rule over some parameters; see ``contracts.Optimizer``.

    Args:
        named: the parameters by name; those without ``requires_grad`` are left out.
        settings: the recipe's optimiser.
        schedule: None keeps the learning rate constant.
        clock: progress of the current phase, read at each step.
        world: the processes over which gradients are reduced.
    """

    def __init__(
        self,
        named: Sequence[tuple[str, nn.Parameter]],
        settings: recipe.Optimizer,
        schedule: recipe.Schedule | None,
        clock: Clock,
        world: Alone | Group,
    ) -> None:
        self.parameters = [parameter for _, parameter in named if parameter.requires_grad]
        self._settings, self._schedule = settings, schedule
        self._clock, self._world = clock, world
        self._rule = _rule(settings, self.parameters)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the current step."""
        scheduled = 1.0 if self._schedule is None else factor(self._schedule, self._clock)
        return self._settings.lr * scheduled

    def gradient(self, closure: Callable[[], Tensor]) -> Tensor:
        """Clear the gradients, run the closure, backpropagate and reduce over the world."""
        self._rule.zero_grad()
        loss = closure()
        loss.backward()
        if isinstance(self._world, Group):
            self._reduce(self._world)
        return loss.detach()

    def apply(self) -> None:
        """Clip, set the scheduled learning rate and update."""
        if self._settings.clip is not None:
            nn.utils.clip_grad_norm_(self.parameters, self._settings.clip)
        for group in self._rule.param_groups:
            group["lr"] = self.learning_rate
        self._rule.step()

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """Do both, and return the detached loss of this process."""
        loss = self.gradient(closure)
        self.apply()
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Return the update rule's state: tensors and plain values."""
        state: dict[str, Any] = self._rule.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that :meth:`state_dict` returned."""
        self._rule.load_state_dict(state)

    def _reduce(self, world: Group) -> None:
        """Replace the gradients by their mean over the ranks, weighted by samples, in one call."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        flat = world.reduce(flat * world.weight)
        sizes = [gradient.numel() for gradient in gradients]
        for gradient, part in zip(gradients, flat.split(sizes), strict=True):
            gradient.copy_(part.view_as(gradient))


def _rule(settings: recipe.Optimizer, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    if settings.name == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
    return torch.optim.SGD(
        parameters,
        lr=settings.lr,
        momentum=settings.momentum,
        nesterov=settings.nesterov,
        weight_decay=settings.weight_decay,
    )
