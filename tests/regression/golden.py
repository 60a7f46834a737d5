"""Golden traces: the first steps of every method that ships, kept to be computed again.

A golden is a file ``golden/NAME.json``: what the method was (revision, protocol, settings), where
it was computed (torch, CPU capability, threads), and for each seed every loss term and learning
rate of every step, the mean cross-entropy on the test images, and the answer to each of them. Each
method trains ResNet-8 for a few steps on a few digits with the settings of its spec's ``example``,
so that it reaches all of its phases.

``test_golden.py`` computes them again. When a method's numbers change on purpose,

    python tests/regression/golden.py NAME

writes its golden anew (``all`` writes all of them). Numbers that moved although neither the
method's revision nor the protocol did are refused, unless ``--force`` is given.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classfair.data import Opened, open_data
from classfair.evaluate import predictions
from classfair.recipe import Recipe
from classfair.seeds import seed_torch
from classfair.setup import Setup
from classfair.trainer import Trainer
from classfair.world import Alone
from classfair_registry.contracts import Batch, Phase
from classfair_registry.manager import Plugins
from classfair_registry.records import PROTOCOL
from classfair_registry.settings import build, describe, resolve
from classfair_registry.specs import MethodSpec

FOLDER = Path(__file__).parent / "golden"
COMMAND = "python tests/regression/golden.py"
SEEDS = (0, 1)
TOLERANCE = 1e-4
"""How far a loss may be off: this, plus this times the golden's size."""
DIGITS = 9
"""Significant digits of a stored number: enough to tell any two float32 apart."""
CPU = torch.device("cpu")

# Written out rather than taken from the recipes that ship: those may change, and goldens with them
# only on purpose. Three passes of two steps reach every phase and the inside of a pass. Classes
# have three or four images, since some methods do nothing to equal ones. Steps are short, because a
# ReLU that another order of summation flips changes the weights by a share of a step; the decay is
# strong, to be seen in the losses all the same.
RECIPE = Recipe.model_validate(
    {
        "name": "golden",
        "data": {"name": "digits", "fraction": 0.0295},
        "backbone": {"name": "resnet8"},
        "optimizer": {"lr": 0.005, "weight_decay": 0.1},
        "batch_size": 20,
        "epochs": 3,
        "augmentation": {"name": "crop_flip", "pad": 1},
        "trace": {"points": 2, "images": 20, "losses": 2},
    }
)


@functools.cache
def shipped() -> Plugins:
    """Return the in-tree plugins alone: what else is installed has no golden."""
    plugins = Plugins()
    plugins.add_built_in()
    return plugins


def methods() -> list[str]:
    """Return the names of the methods that ship."""
    return [card.name for card in shipped().cards("methods")]


def spec_of(name: str) -> MethodSpec:
    """Return a method's spec, or raise UsageError for a name that is none."""
    spec: MethodSpec = shipped().get("methods", name)
    return spec


# -- computing ---------------------------------------------------------------------------------


def what(spec: MethodSpec) -> dict[str, Any]:
    """Return what decides a method's numbers, besides its code."""
    return {
        "method": spec.name,
        "revision": spec.revision,
        "protocol": PROTOCOL,
        "settings": resolve(describe(spec.settings), spec.example, spec.name),
        "recipe": RECIPE.model_dump(mode="json", exclude_unset=True, exclude={"name"}),
    }


def where() -> dict[str, Any]:
    """Return what decides the last bits of a sum."""
    return {
        "torch": torch.__version__,
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": RECIPE.threads,
    }


def computed(spec: MethodSpec) -> dict[str, Any]:
    """Return a method's golden, computed here and now."""
    with one_thread():
        seeds = {str(seed): trace(spec, seed) for seed in SEEDS}
    return {**what(spec), **where(), "seeds": seeds}


def trace(spec: MethodSpec, seed: int) -> dict[str, Any]:
    """Train, and return the steps and one digit a test image, its answer."""
    steps: list[dict[str, Any]] = []
    trainer = make_trainer(spec, seed)
    trainer.phases = [watched(phase, steps.append) for phase in trainer.phases]
    trainer.run()
    judged = predictions(trainer.method, data().test, 10, None, trainer.at.step)
    return {
        "steps": steps,
        "test_loss": short(float(-np.log(judged.p_label).mean())),
        "answers": "".join(str(answer) for answer in judged.top5[:, 0]),
    }


def make_trainer(spec: MethodSpec, seed: int) -> Trainer:
    """Make the method as a cell would."""
    backbone = shipped().get("backbones", RECIPE.backbone.name)
    setup: Any = Setup(spec, backbone, RECIPE, data(), seed, Alone(CPU))
    settings: Any = build(spec.settings, what(spec)["settings"])
    seed_torch(seed, "make")
    return Trainer(spec.make(setup, settings), setup, lambda done, phase: None)


def watched(phase: Phase, note: Callable[[dict[str, Any]], None]) -> Phase:
    """Return a phase whose steps are noted."""

    def step(batch: Batch) -> Mapping[str, Tensor]:
        terms = phase.step(batch)
        rates = [optimizer.learning_rate for optimizer in phase.optimizers]
        values = {name: short(float(value)) for name, value in terms.items()}
        note({"phase": phase.name, "rates": [short(rate) for rate in rates], "terms": values})
        return terms

    return dataclasses.replace(phase, step=step)


def short(value: float) -> float:
    """Return a number with as many digits as are stored."""
    return float(f"{value:.{DIGITS}g}")


@functools.cache
def data() -> Opened:
    """Return the digits, read once."""
    return open_data(shipped().get("datasets", RECIPE.data.name), RECIPE.data, None, CPU)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Compute with the recipe's number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(RECIPE.threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- comparing ---------------------------------------------------------------------------------


def complaint(name: str) -> str:
    """Return what is wrong with a method's golden or with its numbers now; empty if nothing."""
    if name not in methods():
        return (
            f"golden/{name}.json belongs to no method that ships and loads; "
            "remove it, or ask `classfair list plugins` why the method is not there"
        )
    spec = spec_of(name)
    golden = read(name)
    if golden is None:
        return f"{name} has no golden trace; run `{COMMAND} {name}` and commit it"
    return outdated(golden, what(spec)) or drift(golden, computed(spec))


def outdated(golden: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return how a golden was made for something else, or an empty string."""
    name = now["method"]
    for key, value in now.items():
        if golden[key] == value:
            continue
        told = f"{key} {golden[key]}, it is {value} now"
        if isinstance(value, dict):
            told = f"other {key} ({', '.join(changes(golden[key], value))})"
        return f"the golden of {name} is of {told}; run `{COMMAND} {name}` and commit it"
    return ""


def changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return ``key: old -> new`` for all that differs."""
    keys = sorted({*old, *new})
    return [f"{k}: {old.get(k)} -> {new.get(k)}" for k in keys if old.get(k) != new.get(k)]


def drift(golden: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return where the numbers part from the golden's and by how much, or an empty string."""
    same_bits = all(golden[key] == now[key] for key in where())
    for seed, kept in golden["seeds"].items():
        found = now["seeds"][seed]
        parting = step_drift(kept["steps"], found["steps"]) or test_drift(kept, found)
        if not parting and same_bits:
            parting = answer_drift(kept["answers"], found["answers"])
        if parting:
            name = now["method"]
            return (
                f"{name}, seed {seed}: {parting}. If that is meant, raise the method's revision "
                "(or, for a change of the engine's rules, the protocol), "
                f"run `{COMMAND} {name}` and say so in CHANGELOG.md"
            )
    return ""


def step_drift(golden: list[dict[str, Any]], now: list[dict[str, Any]]) -> str:
    """Return at which step two traces part and by how much, or an empty string."""
    for number, (kept, found) in enumerate(zip(golden, now, strict=False)):
        parting = parting_of(kept, found)
        if parting:
            return f"the traces part at step {number} (phase {found['phase']}): {parting}"
    if len(golden) != len(now):
        return f"the trace has {len(now)} steps, the golden {len(golden)}"
    return ""


def parting_of(kept: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return how two steps differ, or an empty string."""
    if kept["phase"] != found["phase"]:
        return f"the golden is in phase {kept['phase']}"
    if kept["terms"].keys() != found["terms"].keys() or len(kept["rates"]) != len(found["rates"]):
        return f"it gives {shape(found)}, the golden {shape(kept)}"
    named = {f"learning rate {i}": pair for i, pair in enumerate(zip_rates(kept, found))}
    named |= {name: (value, found["terms"][name]) for name, value in kept["terms"].items()}
    return next((told for name, pair in named.items() if (told := apart(name, *pair))), "")


def test_drift(kept: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return how the networks differ after the last step, or an empty string."""
    told = apart("the loss on the test images", kept["test_loss"], found["test_loss"])
    return told and f"the traces part in the last step: {told}"


def apart(name: str, old: float, new: float) -> str:
    """Return by how much a number is off, or an empty string if that is allowed."""
    allowed = TOLERANCE + TOLERANCE * abs(old)
    # Written so that NaN, which compares false with everything, is a difference.
    if abs(new - old) <= allowed:
        return ""
    return (
        f"{name} is {new:g}, the golden has {old:g}, "
        f"{abs(new - old):.2g} apart where {allowed:.2g} is allowed"
    )


def zip_rates(kept: Mapping[str, Any], found: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    """Return pairs of learning rates."""
    return zip(kept["rates"], found["rates"], strict=True)


def shape(step: Mapping[str, Any]) -> str:
    """Return what a step consists of."""
    return f"{', '.join(step['terms'])} of {len(step['rates'])} optimisers"


def answer_drift(golden: str, now: str) -> str:
    """Return how many answers differ, or an empty string."""
    other = [i for i, (old, new) in enumerate(zip(golden, now, strict=True)) if old != new]
    if not other:
        return ""
    first = other[0]
    return (
        f"{len(other)} of {len(now)} test images are answered otherwise, "
        f"the first is image {first}: {now[first]}, the golden has {golden[first]}"
    )


# -- files -------------------------------------------------------------------------------------


def read(name: str) -> dict[str, Any] | None:
    """Return a method's golden, or None if there is none."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    golden: dict[str, Any] = json.loads(path.read_text())
    return golden


def write(golden: Mapping[str, Any]) -> None:
    """Write a golden, one line a step, so that a diff shows where it moved."""
    head = {key: value for key, value in golden.items() if key != "seeds"}
    lines = [f" {json.dumps(key)}: {json.dumps(value)}," for key, value in head.items()]
    seeds = [
        f'  "{seed}": {{"steps": [\n'
        + ",\n".join(f"   {json.dumps(step)}" for step in kept["steps"])
        + f'],\n   "test_loss": {kept["test_loss"]}, "answers": "{kept["answers"]}"}}'
        for seed, kept in golden["seeds"].items()
    ]
    text = "\n".join(["{", *lines, ' "seeds": {', ",\n".join(seeds), " }", "}", ""])
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{golden['method']}.json").write_text(text)


def regenerate(name: str, *, force: bool) -> str:
    """Write a method's golden; return why not if its numbers moved without a new revision."""
    golden, now = read(name), computed(spec_of(name))
    if golden is not None and not force and not outdated(golden, what(spec_of(name))):
        moved = drift(golden, now)
        if moved:
            return f"not written: {moved}; --force overwrites numbers that nobody has published"
    write(now)
    return ""


def main(arguments: list[str]) -> int:
    """Regenerate the goldens of some methods; return the exit code."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write golden traces anew.")
    parser.add_argument("names", nargs="+", metavar="NAME", help="a method's name, or all")
    parser.add_argument("--force", action="store_true", help="whatever moved")
    given = parser.parse_args(arguments)
    names = methods() if "all" in given.names else given.names
    unknown = sorted(set(names) - set(methods()))
    if unknown:
        parser.error(f"no method {', '.join(unknown)}; there are {', '.join(methods())}")
    refused = {name: why for name in names if (why := regenerate(name, force=given.force))}
    for name in names:
        print(refused.get(name) or f"{name}: written")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
