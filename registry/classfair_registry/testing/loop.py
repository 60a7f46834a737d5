"""A training loop that can be read aloud, and checkpoints that resume it to the last bit."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from classfair_registry.contracts import Batch, Phase
from classfair_registry.testing.seeds import generator, seed_torch
from classfair_registry.testing.toy import Images, Toy


@dataclasses.dataclass
class Position:
    """Where a run stands: all that the loop itself has to remember.

    Attributes:
        seed: of the run; with the numbers below it decides everything random.
        phase: number of the phase.
        entered: whether its ``enter`` was called.
        made: its passes that are complete.
        order: indices of the current pass, or None before it has begun.
        batch: number of the current pass's next batch.
    """

    seed: int = 0
    phase: int = 0
    entered: bool = False
    made: int = 0
    order: Tensor | None = None
    batch: int = 0


def train(
    method: Any, toy: Toy, at: Position, phases: Sequence[Phase] | None = None
) -> Iterator[Mapping[str, Tensor]]:
    """Train from where ``at`` stands, and give what each step returned just after it.

    Args:
        method: made from ``toy``.
        toy: has the data and the number of passes.
        at: moved on as the run goes; whoever stops asking can save it and go on elsewhere.
        phases: instead of the method's own.
    """
    phases = method.phases() if phases is None else phases
    plan = passes(phases, toy.passes)
    while at.phase < len(phases):
        phase, total = phases[at.phase], plan[at.phase]
        split = toy.split(phase.split)
        if not at.entered:
            enter(method, toy, at, phase)
            at.entered = True
        while at.made < total:
            if at.order is None:
                at.order = begin_pass(method, toy, at, phase, total)
            batches = cut(torch.arange(len(at.order)), toy.batch_size)
            for number in range(at.batch, len(batches)):
                toy.progress.fill_((at.made + number / len(batches)) / total)
                method.train()
                seed_torch(at.seed, "step", at.phase, at.made, number)
                with toy.world.batch(len(batches[number])) as mine:
                    terms = phase.step(compose(toy, split, at, phase, batches[number][mine]))
                at.batch = number + 1
                yield terms
            at.made, at.order, at.batch = at.made + 1, None, 0
        at.phase, at.entered, at.made = at.phase + 1, False, 0


def passes(phases: Sequence[Phase], total: int) -> list[int]:
    """Return the passes of each phase: its share of the total, one at least unless it has none."""
    ends = [
        round(total * sum(phase.share for phase in phases[: n + 1])) for n in range(len(phases))
    ]
    spans = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return [max(span, 1) if phase.share else 0 for span, phase in zip(spans, phases, strict=True)]


def enter(method: Any, toy: Toy, at: Position, phase: Phase) -> None:
    """Let a phase look at its split before its first pass: no gradient, eval mode."""
    if phase.enter is not None:
        method.eval()
        seed_torch(at.seed, "enter", at.phase)
        with torch.no_grad():
            phase.enter(toy.data(phase.split))


def begin_pass(method: Any, toy: Toy, at: Position, phase: Phase, total: int) -> Tensor:
    """Let a phase look at its split before a pass, and return the order of the pass."""
    if phase.each_pass is not None:
        method.eval()
        seed_torch(at.seed, "each pass", at.phase, at.made)
        with torch.no_grad():
            phase.each_pass(toy.data(phase.split), at.made, total)
    shuffle = generator(at.seed, "order", at.phase, at.made)
    if phase.order is not None:
        return phase.order(shuffle).cpu()
    return spread(toy.split(phase.split).labels, shuffle)


def spread(labels: Tensor, shuffle: torch.Generator) -> Tensor:
    """Return a shuffle in which each class is spread evenly over the pass.

    So a batch lacks a class only where a check wants it to.
    """
    labels = labels.cpu()
    at = torch.empty(len(labels), dtype=torch.float32)
    for label in labels.unique():
        members = (labels == label).nonzero()[:, 0]
        places = torch.randperm(len(members), generator=shuffle)
        at[members] = (
            places + torch.rand(len(members), generator=shuffle, dtype=torch.float32)
        ) / len(members)
    return at.argsort()


def cut(order: Tensor, batch_size: int) -> list[Tensor]:
    """Return the batches of a pass; a last one of one sample joins the one before."""
    batches = list(order.split(batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def compose(toy: Toy, split: Images, at: Position, phase: Phase, places: Tensor) -> Batch:
    """Return the samples at some places of the pass; augmentation depends on the place alone."""
    assert at.order is not None
    index = at.order[places].to(toy.device)
    views = []
    for view in range(phase.views):
        random = generator(at.seed, "view", at.phase, at.made, view)
        draws = torch.rand(len(at.order), 2, generator=random, dtype=torch.float32)
        views.append(split.augmented(index, draws[places]))
    return Batch(index, views, split.labels[index], toy.progress.clone())


def optimizers(phases: Sequence[Phase]) -> list[Any]:
    """Return the optimisers of all phases, each once."""
    return list({id(one): one for phase in phases for one in phase.optimizers}.values())


def state(method: Any) -> dict[str, Tensor]:
    """Return all that a run has to remember of a method, by name."""
    states = {"method": method.state_dict()}
    for number, optimizer in enumerate(optimizers(method.phases())):
        states[f"optimizer {number}"] = optimizer.state_dict()
    return {f"{part}: {name}": value for part in states for name, value in states[part].items()}


def save(method: Any, at: Position) -> bytes:
    """Return a checkpoint."""
    every = [optimizer.state_dict() for optimizer in optimizers(method.phases())]
    content = {
        "method": method.state_dict(),
        "optimizers": every,
        "position": dataclasses.asdict(at),
    }
    file = io.BytesIO()
    torch.save(content, file)
    return file.getvalue()


def load(method: Any, checkpoint: bytes) -> Position:
    """Fill a method that was made afresh from a checkpoint, and return where to go on."""
    content = torch.load(io.BytesIO(checkpoint), weights_only=True)
    method.load_state_dict(content["method"])
    for optimizer, kept in zip(optimizers(method.phases()), content["optimizers"], strict=True):
        optimizer.load_state_dict(kept)
    return Position(**content["position"])
