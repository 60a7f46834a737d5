"""Worlds of one and of several processes, small enough to be a second opinion on the engine's.

:class:`Lockstep` runs the ranks as threads of this process that take turns: a rank runs until it
exchanges something, then the next one does. So a run is deterministic, each rank has torch's random
state to itself, and a rank that calls another collective than the rest is reported, not waited for.
:class:`Gloo` is the same over ``torch.distributed``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.distributed
from torch import Tensor

T = TypeVar("T")


class World:
    """A world of one process, and the base of the others; see contracts.World."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size
        self.device = "cpu"
        self.share = 1.0 / size
        self._rows = slice(0, 0)
        self._total = 0
        self._replicated = size == 1

    def exchange(self, values: Tensor, *, rows: bool = False) -> list[Tensor]:  # noqa: ARG002 - for others
        """Return what each rank gave, in rank order.

        Args:
            values: of the same shape on all ranks.
            rows: whether their first numbers may differ.
        """
        return [values]

    @contextlib.contextmanager
    def batch(self, total: int) -> Iterator[slice]:
        """Divide a global batch: give this rank's rows while its step runs.

        A batch with fewer samples than ranks runs replicated: every rank takes all of it, alone.
        """
        before = self.share, self._replicated
        bounds = [total * rank // self.size for rank in range(self.size + 1)]
        self._replicated = self.size == 1 or total < self.size
        rows = slice(0, total) if self._replicated else slice(*bounds[self.rank : self.rank + 2])
        self._rows, self._total = rows, total
        self.share = (rows.stop - rows.start) / total
        yield rows
        self.share, self._replicated = before

    @property
    def alone(self) -> bool:
        """Whether this rank has nobody to talk to in this step."""
        return self._replicated

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over processes, without gradient."""
        return values.detach() if self.alone else _total(self.exchange(values.detach()))

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over processes, with gradient; for batch statistics."""
        summed: Tensor = values if self.alone else _Sum.apply(values, self)
        return summed

    def all_gather(self, values: Tensor) -> Tensor:
        """Concatenate all ranks' rows, with gradient to each rank's part."""
        gathered: Tensor = values if self.alone else _Gather.apply(values, self)
        return gathered

    def rand(self, *shape: int) -> Tensor:
        """Return this rank's rows of uniform numbers drawn for the global batch."""
        if self.alone:
            return torch.rand(*shape, device=self.device, dtype=torch.float32)
        rows = self._rows.stop - self._rows.start
        if shape[0] != rows:
            raise ValueError(
                f"world.rand was asked for {shape[0]} rows, but this process has a batch of {rows}"
            )
        drawn = torch.rand(self._total, *shape[1:], device=self.device, dtype=torch.float32)
        return drawn[self._rows]


def _total(parts: list[Tensor]) -> Tensor:
    summed = parts[0].clone()
    for part in parts[1:]:
        summed += part
    return summed


class _Sum(torch.autograd.Function):
    """Each rank's loss depends on each rank's values, so gradients are summed as the values are."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, world: World) -> Tensor:
        ctx.world = world
        return _total(world.exchange(values))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _total(ctx.world.exchange(gradient)), None


class _Gather(torch.autograd.Function):
    """The gradient of a rank's rows is the sum of what all ranks' losses say of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, world: World) -> Tensor:
        parts = world.exchange(values, rows=True)
        ctx.world, ctx.sizes = world, [len(part) for part in parts]
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        summed = _total(ctx.world.exchange(gradient))
        return summed.split(ctx.sizes)[ctx.world.rank], None


class Gloo(World):
    """The ranks of an initialised ``torch.distributed`` process group."""

    def __init__(self) -> None:
        super().__init__(torch.distributed.get_rank(), torch.distributed.get_world_size())

    def exchange(self, values: Tensor, *, rows: bool = False) -> list[Tensor]:  # noqa: ARG002 - objects
        """Return what each rank gave; as objects, since rows may differ in number."""
        parts: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(parts, values.detach())
        return parts


class _Turns:
    """Whose turn it is, and the letters that ranks left for each other, by number of exchange."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.letters: dict[int, dict[int, Tensor]] = {}
        self._mine = [threading.Semaphore(0) for _ in range(size)]
        self._running = set(range(size))

    def start(self) -> None:
        self._mine[0].release()

    def wait(self, rank: int) -> None:
        self._mine[rank].acquire()

    def pass_on(self, rank: int) -> None:
        """Let the next running rank run, in circular order."""
        order = [(rank + step) % self.size for step in range(1, self.size + 1)]
        following = next((other for other in order if other in self._running), None)
        if following is not None:
            self._mine[following].release()

    def leave(self, rank: int) -> None:
        self._running.discard(rank)
        self.pass_on(rank)


class Lockstep(World):
    """One rank of several that take turns in this process; see :func:`in_lockstep`."""

    def __init__(self, rank: int, turns: _Turns) -> None:
        super().__init__(rank, turns.size)
        self._turns, self._count = turns, 0

    def exchange(self, values: Tensor, *, rows: bool = False) -> list[Tensor]:
        """Leave a letter, let the others run until they did the same, and read all of them.

        Raises:
            RuntimeError: if another rank ended, or sent another shape, instead.
        """
        letters = self._turns.letters.setdefault(self._count, {})
        letters[self.rank] = values.detach()
        self._count += 1
        # Each rank sees torch's random state as if it were alone in its process.
        random_state = torch.get_rng_state()
        self._turns.pass_on(self.rank)
        self._turns.wait(self.rank)
        torch.set_rng_state(random_state)
        kinds = {part.shape[1:] if rows else part.shape for part in letters.values()}
        if len(letters) < self.size or len(kinds) > 1:
            raise _OutOfStep("the processes do not make the same sequence of collective calls")
        return [letters[rank] for rank in range(self.size)]


class _OutOfStep(RuntimeError):
    """A consequence of what another rank did; its own error, if any, says more."""


def in_lockstep(size: int, job: Callable[[World], T]) -> list[T]:
    """Run ``job(world)`` on ``size`` ranks that take turns and return their results by rank.

    Raises:
        Exception: the first error of a rank.
    """
    turns = _Turns(size)
    results: dict[int, T] = {}
    errors: list[Exception] = []

    def work(rank: int) -> None:
        turns.wait(rank)
        torch.set_rng_state(random_state)
        try:
            results[rank] = job(Lockstep(rank, turns))
        except Exception as error:  # noqa: BLE001 - raised again by the caller's thread
            errors.append(error)
        turns.leave(rank)

    random_state = torch.get_rng_state()
    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    turns.start()
    for thread in threads:
        thread.join()
    torch.set_rng_state(random_state)
    if errors:
        raise min(errors, key=lambda error: isinstance(error, _OutOfStep))
    return [results[rank] for rank in range(size)]
