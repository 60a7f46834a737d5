"""Checks of what a spec and its phases say, and of what a plain run shows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from classfair_registry.errors import UsageError
from classfair_registry.manager import card_values
from classfair_registry.settings import Setting, describe
from classfair_registry.testing.loop import Position, train
from classfair_registry.testing.optimizer import Sgd
from classfair_registry.testing.subject import (
    Broken,
    Subject,
    difference,
    predict,
    require_finite,
)


def spec_is_complete(subject: Subject) -> None:
    """The spec says what the method is, where it comes from, and what each setting means."""
    spec = subject.spec
    module = sys.modules.get(spec.make.__module__)
    if not (spec.make.__doc__ or (module and module.__doc__)):
        raise Broken("no docstring; give the class or its module one: idea, paper, equations")
    for field in ("title", "summary", "reference"):
        if not getattr(spec, field).strip():
            raise Broken(f"MethodSpec.{field} is empty; fill it in")
    if not re.search(r"\b(19|20)\d\d\b", spec.reference):
        raise Broken("MethodSpec.reference names no year; give authors, title, venue and year")
    if not spec.settings.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise Broken("the settings can be changed; declare them @dataclass(frozen=True)")
    for item in describe(spec.settings):
        _check_setting(item)
    _check_reduction(subject)
    try:
        json.dumps(card_values("methods", spec))
    except (TypeError, ValueError) as error:
        raise Broken(f"the spec holds more than plain values ({error}); use plain ones") from None


def _check_setting(item: Setting) -> None:
    where = f"setting {item.name!r}"
    if not item.doc or not item.source:
        raise Broken(f"{where} lacks a meaning or a source; declare it with setting(...)")
    try:
        item.check(item.default, "default")
        for value in item.search:
            item.check(value, "search")
    except UsageError as error:
        raise Broken(f"{where} refuses a value of its own ({error}); mend its bounds") from None


def _check_reduction(subject: Subject) -> None:
    other = subject.spec.reduces_to(subject.toy().task, subject.resolved)
    if other is not None and (not isinstance(other, str) or other == subject.spec.name):
        raise Broken(f"reduces_to returned {other!r}; return the name of another method, or None")


def reads_declared_splits(subject: Subject) -> None:
    """It reads no test data, and no split that its spec does not name."""
    toy = subject.toy()
    with contextlib.suppress(Exception):
        subject.run(toy)  # Whatever else goes wrong here is for the next check to say.
    undeclared = sorted({name for name in toy.asked if name not in subject.spec.splits})
    if "test" in undeclared:
        raise Broken("it asks for the test split; train on 'train', select on nothing")
    if undeclared:
        raise Broken(f"it asks for the split {undeclared[0]!r}; name it in MethodSpec.splits")


def runs(subject: Subject) -> None:
    """It can be made and trained."""
    _ = subject.plain


def phases_add_up(subject: Subject) -> None:
    """Its phases share the recipe's passes, and are well formed."""
    phases = subject.plain.method.phases()
    titles = [phase.name for phase in phases]
    if len(set(titles)) < len(titles) or not all(titles):
        raise Broken(f"the phases are named {titles}; give each a name of its own")
    for phase in phases:
        if phase.share < 0 or phase.views < 1:
            raise Broken(
                f"phase {phase.name!r} has share {phase.share} and {phase.views} views; "
                "a share is 0 or more, views 1 or more"
            )
    total = sum(phase.share for phase in phases)
    if phases and not subject.spec.budget and abs(total - 1) > 1e-6:
        raise Broken(
            f"the shares of its phases sum to {total:g}; make it 1, or say in MethodSpec.budget "
            "what it takes beyond the recipe's passes"
        )


def optimizes_by_setup(subject: Subject) -> None:
    """Every optimiser comes from the setup, which reduces, clips and schedules."""
    method = subject.plain.method
    listed = [optimizer for phase in method.phases() for optimizer in phase.optimizers]
    bare = [value for value in vars(method).values() if isinstance(value, torch.optim.Optimizer)]
    for optimizer in [*listed, *bare]:
        if not isinstance(optimizer, Sgd):
            raise Broken(
                f"it uses a {type(optimizer).__name__} of its own; take setup.optimizer, which "
                "reduces, clips and schedules"
            )


def has_the_right_shapes(subject: Subject) -> None:
    """Logits, features, class vectors, diagnostics, terms and orders are as the contract says."""
    for what, value, wanted in _measured(subject):
        if not isinstance(value, Tensor) or value.dtype != torch.float32:
            kind = getattr(value, "dtype", type(value).__name__)
            raise Broken(f"{what} is of type {kind}; make it a float32 tensor")
        if tuple(value.shape) not in wanted:
            likely = " or ".join(str(list(shape)) for shape in wanted)
            raise Broken(f"{what} has shape {list(value.shape)}; make it {likely}")
    _check_terms(subject.plain.terms)
    _check_orders(subject)


def _measured(subject: Subject) -> Iterator[tuple[str, Any, list[tuple[int, ...]]]]:
    """Yield what to measure: its name, its value, and the shapes it may have."""
    run = subject.plain
    classes = run.toy.task.num_classes
    judged = run.method.evaluated()
    for batch in (5, 1):
        images = run.toy.train.images[:batch]
        yield f"predict of {batch} images", predict(run.method, images), [(batch, classes)]
        with torch.no_grad():
            features = judged.features(images)
            yield f"evaluated() of {batch} images", judged(images), [(batch, classes)]
        width = features.shape[-1] if isinstance(features, Tensor) and features.ndim else 0
        yield f"evaluated().features of {batch} images", features, [(batch, width)]
    vectors = judged.class_vectors()
    if vectors is not None:
        yield "evaluated().class_vectors()", vectors, [(classes, width)]
    for name, value in run.method.diagnostics().items():
        yield f"diagnostics()[{name!r}]", value, [(classes,), (classes, classes)]


def _check_terms(every: list[Mapping[str, Tensor]]) -> None:
    for terms in every:
        if "loss" not in terms:
            raise Broken(f"a step returned {sorted(terms)}; return its loss under 'loss'")
        for name, value in terms.items():
            if not isinstance(value, Tensor) or value.ndim or value.requires_grad:
                raise Broken(
                    f"a step's term {name!r} is no detached scalar tensor; return value.detach()"
                )


def _check_orders(subject: Subject) -> None:
    toy, at = subject.toy(), Position()
    method = subject.make(toy)
    phases = method.phases()
    for _ in train(method, toy, at, phases):
        order, phase = at.order, phases[at.phase]
        size = len(toy.split(phase.split).labels)
        if order is None or order.dtype != torch.int64 or order.ndim != 1:
            raise Broken(f"phase {phase.name!r}: order must return a vector of int64 indices")
        if not len(order) or int(order.min()) < 0 or int(order.max()) >= size:
            raise Broken(f"phase {phase.name!r}: order must return indices from 0 to {size - 1}")


def is_finite(subject: Subject) -> None:
    """Losses, gradients, state and predictions of a plain run are finite."""
    require_finite(subject.plain, "look for a logarithm, root or quotient of zero in the loss")


def learns(subject: Subject) -> None:
    """Training changes the classifier that is judged."""
    run = subject.plain
    if not any(phase.share for phase in run.method.phases()):
        return
    before = subject.make(subject.toy()).evaluated().state_dict()
    if not difference(before, run.method.evaluated().state_dict()):
        raise Broken("training leaves the judged classifier as it was; train what evaluated() is")


def fits_its_regimes(subject: Subject) -> None:
    """It trains in every regime that its spec lists, and a probe leaves the backbone alone."""
    for regime in subject.spec.regimes:
        toy = subject.toy(regime=regime, passes=2)
        run = subject.run(toy)
        require_finite(run, f"see to the regime {regime!r}, or leave it out of MethodSpec.regimes")
        if regime != "probe":
            continue
        before = subject.make(dataclasses.replace(toy, asked=[])).evaluated().backbone.state_dict()
        changed = difference(before, run.method.evaluated().backbone.state_dict())
        if changed:
            raise Broken(
                f"a probe changed {changed!r} of the backbone; train only what setup.optimizer "
                "takes, and leave modes to the loop"
            )
