"""The training loop: phases, passes, steps. It names no method.

Its state is the phase, the pass, the position in the pass and that pass's order; everything random
is a function of (seed, phase, step or pass). So a run that stops anywhere and goes on in a fresh
process ends with the same bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classfair.augment import parameter_table
from classfair.data import Images
from classfair.evaluate import predictions
from classfair.seeds import generator, seed_torch
from classfair.setup import Setup
from classfair.trace import Trace, spread_over_classes
from classfair_registry.contracts import Batch, Phase
from classfair_registry.errors import ClassfairError

_log = logging.getLogger(__name__)


class Stopped(Exception):
    """The run was asked to stop and is at a point from which it can go on."""


@dataclasses.dataclass
class Position:
    """Where the loop is.

    Attributes:
        phase: number of the phase.
        entered: whether its ``enter`` was called.
        passes: passes of this phase that are done.
        sample: position in the current pass; 0 before its ``each_pass``.
        step: steps of the whole run that are done.
        order: indices of the current pass, or None at 0.
    """

    phase: int = 0
    entered: bool = False
    passes: int = 0
    sample: int = 0
    step: int = 0
    order: Tensor | None = None


@dataclasses.dataclass
class Best:
    """The state that a selection rule would judge so far."""

    score: float = -1.0
    phase: str = ""
    step: int = 0
    state: dict[str, Any] | None = None


class Trainer:
    """Trains one method to its end.

    Args:
        method: made from ``setup``.
        setup: the engine's.
        on_step: called after each step with (share of the run done, phase name); may raise
            :class:`Stopped`.
    """

    def __init__(
        self, method: nn.Module, setup: Setup, on_step: Callable[[float, str], None]
    ) -> None:
        self.method, self.setup, self.on_step = method, setup, on_step
        self.recipe = setup.recipe
        self.phases: Sequence[Phase] = method.phases()
        self.passes = passes_of(self.phases, self.recipe.epochs)
        self.at, self.best = Position(), Best()
        watched = (setup.opened.val or setup.opened.train).images
        chosen = spread_over_classes(watched.labels, self.recipe.trace.images)
        self.trace = Trace(self.recipe.trace, watched, chosen, setup.task.num_classes)

    def run(self) -> None:
        """Train from where :attr:`at` stands to the end.

        Raises:
            Stopped: from ``on_step``.
            Diverged: if a loss term is not finite.
        """
        while self.at.phase < len(self.phases):
            phase, passes = self.phases[self.at.phase], self.passes[self.at.phase]
            reader = self.setup.reader(phase.split)
            if not self.at.entered:
                self._enter(phase, reader)
            while self.at.passes < passes:
                if self.at.order is None:
                    self.at.order = self._begin_pass(phase, reader, passes)
                self._train_pass(phase, passes, self.at.order)
                self.trace.check()
                self._select(phase)
                self.at.passes, self.at.sample, self.at.order = self.at.passes + 1, 0, None
            self.at.phase, self.at.passes, self.at.entered = self.at.phase + 1, 0, False
        if self.best.state is not None:
            self.method.load_state_dict(self.best.state)

    def _train_pass(self, phase: Phase, passes: int, order: Tensor) -> None:
        images = self._images(phase.split)
        tables = self._tables(phase, len(order))
        parts = list(spans(self.at.sample, len(order), self.recipe.batch_size))
        with contextlib.closing(images.read(self._requests(parts, order, tables))) as views:
            self._train_parts(phase, passes, order, parts, views)

    def _requests(
        self, parts: Sequence[tuple[int, int]], order: Tensor, tables: Sequence[Tensor]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is read in a pass, so that images can be prepared before their step."""
        for start, end in parts:
            part = self.setup.world.bounds(end - start)
            rows = slice(start + part.start, start + part.stop)
            for table in tables:
                yield order[rows], table[rows]

    def _train_parts(
        self,
        phase: Phase,
        passes: int,
        order: Tensor,
        parts: Sequence[tuple[int, int]],
        views: Iterator[Tensor],
    ) -> None:
        labels = self._images(phase.split).labels
        for start, end in parts:
            clock = self.setup.clock
            clock.progress = (self.at.passes + start / len(order)) / passes
            clock.stride = (end - start) / len(order) / passes
            part = self.setup.world.part(end - start)
            rows = slice(start + part.start, start + part.stop)
            index = order[rows].to(labels.device)
            batch = Batch(
                index=index,
                views=list(itertools.islice(views, phase.views)),
                labels=labels[index],
                progress=torch.full((), clock.progress, device=labels.device),
            )
            seed_torch(self.setup.seed, "step", self.at.phase, self.at.step)
            self.method.train()
            terms = phase.step(batch)
            self.trace.losses(self.at.step, terms, self._rate(phase))
            self.at.step, self.at.sample = self.at.step + 1, end
            done = self.done()
            if self.trace.due(done):
                with self.setup.counter.pause():
                    self.trace.curves(done, self.method)
            self.on_step(done, phase.name)

    def done(self) -> float:
        """Return the share of the whole run that is done, all phases' passes counted alike."""
        total = max(1, sum(self.passes))
        within = self.at.sample / len(self.at.order) if self.at.order is not None else 0.0
        return (sum(self.passes[: self.at.phase]) + self.at.passes + within) / total

    def _enter(self, phase: Phase, reader: Any) -> None:
        if phase.enter is not None:
            with self._outside("enter", self.at.phase):
                phase.enter(reader)
        self.at.entered = True

    def _begin_pass(self, phase: Phase, reader: Any, passes: int) -> Tensor:
        if phase.each_pass is not None:
            with self._outside("pass", self.at.phase, self.at.passes):
                phase.each_pass(reader, self.at.passes, passes)
        shuffling = generator(self.setup.seed, "order", self.at.phase, self.at.passes)
        if phase.order is not None:
            order = phase.order(shuffling).cpu()
        else:
            order = torch.randperm(len(self._images(phase.split).labels), generator=shuffling)
        if not len(order):
            raise ClassfairError(f"phase {phase.name!r}: the order of a pass is empty")
        return order

    @contextlib.contextmanager
    def _outside(self, *names: object) -> Iterator[None]:
        """Run what a method does outside of steps: seeded, in eval mode, without gradient."""
        self.setup.world.outside()
        seed_torch(self.setup.seed, *names)
        self.method.eval()
        with torch.no_grad():
            yield

    def _images(self, split: str) -> Images:
        return self.setup.opened.part(split).images

    def _rate(self, phase: Phase) -> float:
        """Return the learning rate of the phase's first optimiser in this step."""
        return phase.optimizers[0].learning_rate if phase.optimizers else 0.0

    def _tables(self, phase: Phase, length: int) -> list[Tensor]:
        """Return the augmentation parameters of this pass, one table a view, by position."""
        names = (self.setup.seed, "augment", self.at.phase, self.at.passes)
        return [
            parameter_table(self.recipe.augmentation, length, generator(*names, view))
            for view in range(phase.views)
        ]

    def _select(self, phase: Phase) -> None:
        """Keep this pass's state if the selection rule prefers it."""
        rule = self.recipe.selection
        if rule == "last" or not phase.selectable:
            return
        validation = self.setup.opened.part("val")
        with self.setup.counter.pause():
            judged = predictions(
                self.method, validation, self.setup.task.num_classes, None, self.at.step
            )
        accuracy = judged.class_accuracy
        score = {
            "best:overall": judged.correct.mean(),
            "best:mean_class": accuracy.mean(),
            "best:worst": accuracy.min(),
        }[rule]
        if score > self.best.score:
            state = {name: value.clone() for name, value in self.method.state_dict().items()}
            self.best = Best(float(score), phase.name, self.at.step, state)

    # -- checkpoints ---------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return everything that :meth:`restore` needs, as tensors and plain values."""
        self.trace.check()
        counter = self.setup.counter
        return {
            "method": self.method.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.setup.optimizers],
            "at": dataclasses.asdict(self.at),
            "best": vars(self.best),
            "trace": self.trace.state(),
            "counted": [counter.forward, counter.backward],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state that :meth:`state` returned, in a fresh object of any seed."""
        self.method.load_state_dict(state["method"])
        for optimizer, saved in zip(self.setup.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.at, self.best = Position(**state["at"]), Best(**state["best"])
        self.trace.restore(state["trace"])
        self.setup.counter.forward, self.setup.counter.backward = state["counted"]


def passes_of(phases: Sequence[Phase], epochs: int) -> list[int]:
    """Return each phase's whole number of passes for its share of the recipe's.

    Ends of phases are rounded, not their lengths, so that shares that sum to one take exactly
    ``epochs`` passes; a phase with a share gets at least one.
    """
    ends = [0]
    for phase in phases:
        total = sum(p.share for p in phases[: len(ends)])
        least = ends[-1] + (1 if phase.share > 0 else 0)
        ends.append(max(least, round(total * epochs + 1e-9)))
    return [end - start for start, end in itertools.pairwise(ends)]


def spans(start: int, length: int, batch_size: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) of a pass's batches from ``start`` on; a last one of one is merged."""
    while start < length:
        end = min(start + batch_size, length)
        if length - end == 1:
            end = length
        yield start, end
        start = end
