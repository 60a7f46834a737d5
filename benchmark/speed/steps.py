"""Steps and passes: plain training against a hand-written loop, the methods against it."""

from __future__ import annotations

import functools
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn

from speed.figures import Row, Target
from speed.made import BATCH, CPU, Passes, opened, plugins, recipe
from speed.measure import Effort, Measured, Work, compared, pairs, seconds, undisturbed

CLASSES = 100
STEPS = {
    "mr2": 1.05,
    "ldam": 1.08,
    "eql": 1.08,
    "dro": 1.08,
    "dfl": 1.08,
    "lgm": 1.08,
    "cmic_dl": 1.08,
    "sam": 2.1,
    "lff": 2.1,
    "supcon": 2.1,
}
"""Methods that are held to the time of a step, and how many ERM steps it may take."""
EPOCHS = {"csr": 1.36, "fairdro": 1.36}
"""Methods that also read the data before each pass."""
RUNS = {"drl": 1.75}
"""Methods with several phases, over a whole training."""
RUN_PASSES = 15
"""Passes of such a training: enough for each phase to have its share."""


def rows() -> list[Row]:
    """Return the rows."""
    return [
        *(bare_row(precision) for precision in ("fp32", "bf16")),
        *(method_row("step", name, bound, 2) for name, bound in STEPS.items()),
        # More steps a pass, as what is done once a pass weighs too much in a short one.
        *(method_row("epoch", name, bound, 4) for name, bound in EPOCHS.items()),
        *(run_row(name, bound) for name, bound in RUNS.items()),
    ]


def batch_size(effort: Effort) -> int:
    """Return the batch size; a quick look takes small ones."""
    return effort.pick(BATCH, 8)


def classes(effort: Effort) -> int:
    """Return the number of classes: a quick look has as many as images in a batch."""
    return effort.pick(CLASSES, 8)


# -- against a hand-written loop ---------------------------------------------------------------


def bare_row(precision: Literal["fp32", "bf16"]) -> Row:
    """Return the row of plain training."""
    return Row(
        f"step.erm.{precision}",
        f"ERM step in the trainer, ResNet-20, batch {BATCH}, {precision}",
        "bare loop over batches made ready",
        Target(1.03),
        functools.partial(against_bare_loop, precision),
    )


def against_bare_loop(precision: Literal["fp32", "bf16"], effort: Effort) -> Measured:
    """Time passes of the trainer against the same network in a loop that does nothing else."""
    steps, batch = effort.pick(4, 1), batch_size(effort)
    changes = {"backbone": {"name": "resnet20"}, "precision": precision, "batch_size": batch}
    passes = Passes("erm", opened(steps * batch, classes(effort)), recipe(**changes))
    timed = pairs(passes, bare_loop(precision, steps, batch, classes(effort)), effort.pick(15, 2))
    return compared(timed, units=steps)


def bare_loop(precision: Literal["fp32", "bf16"], steps: int, batch: int, classes: int) -> Work:
    """Return a pass of training as one writes it by hand, on batches made ready."""
    chosen = recipe()
    spec = plugins().get("backbones", "resnet20")
    network = spec.make((3, 32, 32), spec.settings())
    network.to(memory_format=torch.channels_last)
    head = nn.Linear(network.num_features, classes)
    rule = torch.optim.SGD(
        [*network.parameters(), *head.parameters()],
        lr=chosen.optimizer.lr,
        momentum=chosen.optimizer.momentum,
        weight_decay=chosen.optimizer.weight_decay,
    )
    images = torch.randn(steps, batch, 3, 32, 32)
    batches = [part.to(memory_format=torch.channels_last) for part in images]
    labels = torch.randint(0, classes, (steps, batch))

    def one_pass() -> None:
        for image, label in zip(batches, labels, strict=True):
            with torch.autocast(CPU.type, torch.bfloat16, enabled=precision == "bf16"):
                features = network(image)
            loss = F.cross_entropy(head(features.float()), label)
            rule.zero_grad()
            loss.backward()
            rule.step()

    return one_pass


# -- against plain training --------------------------------------------------------------------


def method_row(kind: Literal["step", "epoch"], name: str, bound: float, steps: int) -> Row:
    """Return the row of a method in its first phase."""
    what = {"step": "step", "epoch": "pass over the data, its own reading included"}[kind]
    return Row(
        f"{kind}.{name}",
        f"{name} {what}, ResNet-32, {CLASSES} classes, batch {BATCH}",
        f"ERM {'step' if kind == 'step' else 'pass'}",
        Target(bound),
        functools.partial(against_erm, name, steps),
    )


def against_erm(name: str, steps: int, effort: Effort) -> Measured:
    """Time passes of a method's first phase against ERM's; seconds are those of a step."""
    steps, batch = effort.pick(steps, 1), batch_size(effort)
    data = opened(steps * batch, classes(effort))
    ours, rival = (Passes(method, data, recipe(batch_size=batch)) for method in (name, "erm"))
    return compared(pairs(ours, rival, effort.pick(15, 2)), units=steps)


def run_row(name: str, bound: float) -> Row:
    """Return the row of a method over a whole training."""
    return Row(
        f"run.{name}",
        f"{name} training of {RUN_PASSES} passes in all its phases, ResNet-32",
        "ERM training",
        Target(bound),
        functools.partial(whole_run, name),
    )


def whole_run(name: str, effort: Effort) -> Measured:
    """Time whole trainings of a method against ERM's, in turn pass by pass."""
    steps, batch = effort.pick(2, 1), batch_size(effort)
    data = opened(steps * batch, classes(effort))
    rival = Passes("erm", data, recipe(batch_size=batch))
    rival()
    timed = []
    for _ in range(effort.pick(3, 1)):
        ours = Passes(name, data, recipe(batch_size=batch, epochs=RUN_PASSES))
        total = other = 0.0
        with undisturbed():
            while not ours.over:
                total += seconds(ours)
                other += seconds(rival)
        timed.append((total, other))
    return compared(timed)
