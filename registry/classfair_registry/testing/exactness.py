"""Checks that a run can be repeated, stopped, resumed and watched without a bit of difference."""

from __future__ import annotations

import io
import pickle

import torch

from classfair_registry.testing.loop import Position, load, passes, save, train
from classfair_registry.testing.subject import Broken, Run, Subject, difference, run_difference
from classfair_registry.testing.toy import Toy

_OTHER_SEED = 1


def can_be_saved(subject: Subject) -> None:
    """Its state is tensors and plain values, and a fresh object takes it."""
    method, file = subject.plain.method, io.BytesIO()
    try:
        torch.save(method.state_dict(), file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
    except (pickle.PickleError, RuntimeError, AttributeError, TypeError) as error:
        reason = str(error).strip().splitlines()[0]
        raise Broken(
            f"its state dict cannot be loaded with weights_only=True ({reason}); "
            "keep tensors and plain values in it"
        ) from None
    fresh = subject.make(subject.toy(seed=_OTHER_SEED))
    try:
        fresh.load_state_dict(loaded)
    except (RuntimeError, KeyError) as error:
        reason = " ".join(str(error).split())
        raise Broken(
            f"a fresh object does not take its state dict ({reason}); make every buffer in "
            "__init__, in its final shape"
        ) from None
    changed = difference(method.state_dict(), fresh.state_dict())
    if changed:
        raise Broken(f"{changed!r} is not what was loaded; fill it from the state dict alone")


def repeats(subject: Subject) -> None:
    """Two runs of one seed end in the same state, to the last bit."""
    again = subject.run()
    changed = run_difference(subject.plain, again)
    if changed:
        raise Broken(
            f"{changed} differs between two runs of one seed; draw random numbers from torch, "
            "world.rand or the generator given, and from nothing else"
        )


def resumes(subject: Subject) -> None:
    """Stopped anywhere, a fresh object of another seed goes on to the same last state."""
    for stop, checkpoint in _checkpoints(subject).items():
        toy = subject.toy(seed=_OTHER_SEED)
        method = subject.make(toy)
        terms = list(train(method, toy, load(method, checkpoint)))
        changed = run_difference(subject.plain, Run(toy, method, terms))
        if changed:
            raise Broken(
                f"{changed} is another one after a stop {stop} than without; keep all state in "
                "buffers made in __init__, and name every optimiser in Phase.optimizers"
            )


def _checkpoints(subject: Subject) -> dict[str, bytes]:
    """Train once, and save at the start, around each boundary, and in the middle of passes."""
    toy, at = subject.toy(), Position()
    method = subject.make(toy)
    phases = method.phases()
    plan = passes(phases, toy.passes)
    saved = {"before the first step": save(method, at)}
    for _ in train(method, toy, at, phases):
        place = _place(toy, at, plan[at.phase], quick=subject.quick)
        if place:
            saved[f"{place} of phase {phases[at.phase].name!r}"] = save(method, at)
    return saved


def _place(toy: Toy, at: Position, total: int, *, quick: bool) -> str:
    """Return the name of a place worth stopping at, or nothing."""
    assert at.order is not None
    last = -(-len(at.order) // toy.batch_size)
    if at.batch == 1 and at.made in (0, 1):
        return f"after the first step of pass {at.made}"
    if at.batch >= last - 1 and at.made in (0, total - 1):
        return f"near the end (step {at.batch}) of pass {at.made}"
    return "" if quick else f"after step {at.batch} of pass {at.made}"
