"""Checks that a method touches nothing but its own state, and not even that when it is judged."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from classfair_registry.contracts import Batch, Phase
from classfair_registry.testing import globals as process
from classfair_registry.testing.loop import Position, state, train
from classfair_registry.testing.seeds import seed_torch
from classfair_registry.testing.subject import (
    Broken,
    Run,
    Subject,
    difference,
    predict,
    run_difference,
)
from classfair_registry.testing.toy import Toy

T = TypeVar("T")


def is_not_changed_by_looking(subject: Subject) -> None:
    """To predict changes nothing: no state, no random state, no mode, no later step."""
    run = subject.run()
    run.method.eval()
    modes = [module.training for module in run.method.modules()]
    random, before = torch.get_rng_state(), run.state
    logits = _look(run.method, run.toy)
    changed = difference(before, state(run.method))
    if changed:
        raise Broken(f"to predict changes the state {changed!r}; only steps may change state")
    if not torch.equal(random, torch.get_rng_state()):
        raise Broken("to predict draws random numbers; leave them to steps")
    if modes != [module.training for module in run.method.modules()]:
        raise Broken("to predict changes a module's mode; leave modes to the loop")
    few = predict(run.method, run.toy.train.images[:3])
    if few.shape == logits[:3].shape and not torch.allclose(few, logits[:3], 1e-3, 1e-4):
        raise Broken("an image's logits depend on the others in the batch; judge each by itself")
    changed = run_difference(subject.plain, _watched(subject))
    if changed:
        raise Broken(
            f"{changed} is another one if it is judged between steps, too; let predict, evaluated "
            "and diagnostics remember nothing"
        )


def _look(method: Any, toy: Toy) -> Tensor:
    logits = predict(method, toy.train.images)
    method.diagnostics()
    with torch.no_grad():
        method.evaluated().features(toy.train.images)
    return logits


def _watched(subject: Subject) -> Run:
    """Train, and look after every third step, as curves over training do."""
    toy = subject.toy()
    method = subject.make(toy)
    terms = []
    for number, returned in enumerate(train(method, toy, Position())):
        terms.append(returned)
        if number % 3 == 0:
            _look(method, toy)
    return Run(toy, method, terms)


def leaves_globals_alone(subject: Subject) -> None:
    """It changes no global state, seeds no global generator, and writes into no batch."""
    toy = subject.toy()
    seed_torch(toy.seed, "make")
    method: Any = _guarded("its making", subject.spec.make)(toy, subject.settings)
    phases = [_guarded_phase(phase) for phase in _guarded("phases", method.phases)()]
    for _ in train(method, toy, Position(), phases):
        pass
    method.eval()
    for name in ("evaluated", "diagnostics"):
        _guarded(name, getattr(method, name))()
    with torch.no_grad():
        _guarded("predict", method.predict)(toy.train.images)


def _guarded(place: str, call: Callable[..., T]) -> Callable[..., T]:
    """Return a call that raises Broken if it changed anything of the process."""

    def guarded(*arguments: Any) -> T:
        before, seed = process.read(), torch.initial_seed()
        result = call(*arguments)
        changed = process.changed(before)
        if changed:
            raise Broken(
                f"{place} changes {changed[0]}; leave to the run what is the run's, and draw "
                "random numbers from torch or the generator given"
            )
        if torch.initial_seed() != seed:
            raise Broken(f"{place} seeds torch; the loop seeds it for each step")
        return result

    return guarded


def _guarded_phase(phase: Phase) -> Phase:
    calls: dict[str, Any] = {
        name: _guarded(f"{name} of phase {phase.name!r}", getattr(phase, name))
        for name in ("enter", "each_pass", "order")
        if getattr(phase, name) is not None
    }
    step = _guarded(f"step of phase {phase.name!r}", _careful(phase))
    return dataclasses.replace(phase, **calls, step=step)


def _careful(phase: Phase) -> Callable[[Batch], Any]:
    """Return the phase's step, raising Broken if it writes into its batch."""

    def step(batch: Batch) -> Any:
        tensors = [batch.index, batch.labels, batch.progress, *batch.views]
        before = [tensor.clone() for tensor in tensors]
        terms = phase.step(batch)
        if not all(map(torch.equal, before, tensors)):
            raise Broken(f"step of phase {phase.name!r} writes into its batch; work on a copy")
        return terms

    return step
