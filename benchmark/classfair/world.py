"""The processes that train one cell together, as methods see them."""

from __future__ import annotations

import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class Alone:
    """One process: every collective is the identity."""

    rank = 0
    size = 1
    share = 1.0
    weight = 1.0
    """What this process's gradient counts in the mean over processes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values

    def all_gather(self, values: Tensor) -> Tensor:
        """Return the values."""
        return values

    def rand(self, *shape: int) -> Tensor:
        """Return uniform numbers of this shape."""
        return torch.rand(*shape, device=self.device)

    def part(self, batch_size: int) -> slice:
        """Begin a step on a global batch; return this process's part of it: all."""
        return self.bounds(batch_size)

    def bounds(self, batch_size: int) -> slice:
        """Return this process's part of a global batch, without beginning a step."""
        return slice(0, batch_size)

    def outside(self) -> None:
        """Leave the step: collectives are over whole processes again."""


class Group:
    """The default process group of ``torch.distributed``.

    A global batch of n is cut like ``numpy.array_split``, longer parts last. One with fewer samples
    than processes is replicated: every process then does the same step as if it were alone.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.rank = dist.get_rank()
        self.size = dist.get_world_size()
        self.outside()

    def outside(self) -> None:
        """Leave the step: collectives are over whole processes again."""
        self.weight = self.share = 1.0 / self.size
        self._replicated = False
        self._counts: list[int] = []

    def part(self, batch_size: int) -> slice:
        """Begin a step on a global batch; return this process's part of it."""
        self._replicated = batch_size < self.size
        if self._replicated:
            self.weight, self.share = 1.0 / self.size, 1.0
            return self.bounds(batch_size)
        ends = self._ends(batch_size)
        self._counts = [end - start for start, end in itertools.pairwise(ends)]
        self.weight = self.share = self._counts[self.rank] / batch_size
        return self.bounds(batch_size)

    def bounds(self, batch_size: int) -> slice:
        """Return this process's part of a global batch, without beginning a step."""
        if batch_size < self.size:
            return slice(0, batch_size)
        ends = self._ends(batch_size)
        return slice(ends[self.rank], ends[self.rank + 1])

    def _ends(self, batch_size: int) -> list[int]:
        return [batch_size * rank // self.size for rank in range(self.size + 1)]

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over processes, without gradient."""
        return values.detach() if self._replicated else self.reduce(values.detach())

    def reduce(self, values: Tensor) -> Tensor:
        """Return the sum over processes, replicated step or not."""
        total = values.clone()
        dist.all_reduce(total)
        return total

    def all_gather(self, values: Tensor) -> Tensor:
        """Concatenate [B_r, ...] of all ranks in rank order, with gradient to each rank's part."""
        if self._replicated:
            return values
        gathered: Tensor = _Gather.apply(values, self)
        return gathered

    def rand(self, *shape: int) -> Tensor:
        """Draw uniform numbers for the global batch and return this rank's rows.

        Every process has the same generator state, so all draw the same numbers.
        """
        if self._replicated or not self._counts:
            return torch.rand(*shape, device=self.device)
        start = sum(self._counts[: self.rank])
        drawn = torch.rand(sum(self._counts), *shape[1:], device=self.device)
        return drawn[start : start + shape[0]]

    def gather_rows(self, values: Tensor) -> tuple[Tensor, int]:
        """Return the rows [B_r, ...] of all ranks in rank order, and where this rank's begin."""
        mine = torch.tensor([len(values)], device=values.device)
        lengths = [torch.zeros_like(mine) for _ in range(self.size)]
        dist.all_gather(lengths, mine)
        rows = [int(length) for length in lengths]
        padding = values.new_zeros(max(rows) - len(values), *values.shape[1:])
        padded = torch.cat([values, padding]).contiguous()
        parts = [torch.empty_like(padded) for _ in range(self.size)]
        dist.all_gather(parts, padded)
        whole = torch.cat([part[:count] for part, count in zip(parts, rows, strict=True)])
        return whole, sum(rows[: self.rank])


class _Gather(torch.autograd.Function):
    """Gather rows; each rank's part gets the gradient of the mean loss over the global batch.

    A rank's loss counts by its weight in that mean, and its parameters' gradients are multiplied by
    its own weight later; so what travels is multiplied by the sender's and divided by the owner's.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, world: Group) -> Tensor:
        whole, ctx.start = world.gather_rows(values)
        ctx.rows, ctx.world = len(values), world
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = ctx.world.reduce(gradient * ctx.world.weight)
        return total[ctx.start : ctx.start + ctx.rows] / ctx.world.weight, None
