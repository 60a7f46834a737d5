"""A cell that trains nothing: it does what its method's settings say, and keeps the contract.

Also the plugin file that provides its method and its data set.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

from classfair.recipe import Recipe
from classfair.results import FAILURE, locked
from classfair_registry import hookimpl
from classfair_registry.files import digest, file_digest, write_json
from classfair_registry.records import (
    CellInfo,
    Cost,
    Failure,
    MatrixInfo,
    MethodInfo,
    Progress,
    Record,
)
from classfair_registry.specs import DatasetSpec, Manifest, MethodSpec

STEP = 0.02


def make(label="fake", seed=0, epochs=1, **settings):
    """Return a cell; ``do`` is what it does, ``seconds`` how long it takes.

    It also takes as long as there is a file ``hold`` in its folder.
    """
    settings = {"do": "finish", "seconds": 0.0, **settings}
    method = MethodInfo(
        name="fake",
        label=label,
        title=label,
        plugin="fake",
        version="1",
        revision=1,
        settings=settings,
        source="",
    )
    recipe = Recipe(name="tiny", data={"name": "fakes"}, backbone={"name": "none"}, epochs=epochs)
    return CellInfo(
        key=digest([label, seed, epochs, settings]),
        method=method,
        recipe=recipe.model_dump(mode="json"),
        recipe_name="tiny",
        recipe_key="r",
        fingerprint="f",
        seed=seed,
    )


@hookimpl
def classfair_methods():
    return [
        MethodSpec(
            name="fake",
            title="Fake",
            make=lambda setup, settings: None,
            summary="trains nothing",
            reference="none",
            cost=1.0,
        )
    ]


@hookimpl
def classfair_datasets():
    manifest = Manifest(
        classes=("a", "b"),
        counts={"train": 10, "test": 10},
        shape=(1, 8, 8),
        mean=(0.5,),
        std=(0.5,),
        licence="none",
        citation="none",
        sources=(),
    )
    return [
        DatasetSpec(
            name="fakes",
            title="Fakes",
            open=lambda root, settings: None,
            files=lambda root, settings: [],
            manifest=manifest,
            summary="no images",
        )
    ]


def matrix(*cells, name="fakes", **values):
    return MatrixInfo(name=name, cells=list(cells), **values)


def finish(folder, cell):
    """Write what a finished cell leaves."""
    for name in ("predictions.npz", "trace.npz"):
        (folder / name).write_bytes(cell.key.encode())
    record = Record(
        cell=cell,
        dataset={},
        metrics={"overall": 0.5},
        class_accuracy=[],
        class_count=[],
        selection={},
        cost=Cost(images_forward=0, images_backward=0, steps=0, seconds={}, peak_memory=0),
        machine={},
        provenance={},
        digests={name: file_digest(folder / name) for name in ("predictions.npz", "trace.npz")},
        result_digest=cell.key,
    )
    record.sealed().save(folder / "record.json")
    (folder / "checkpoint.pt").unlink(missing_ok=True)


def main(args):
    folder = Path(args[0])
    asked = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda *_: asked.append(1))
    with locked(folder):
        if (folder / "record.json").exists():
            return 0
        cell = CellInfo.load(folder / "cell.json")
        with (folder / "starts.txt").open("a") as file:
            file.write(f"{os.getpid()}\n")
        try:
            return _train(folder, cell, asked)
        except ValueError as error:
            Failure(kind="plugin", message=str(error)).save(folder / FAILURE)
            return 1


def _train(folder, cell, asked):
    settings = cell.method.settings
    step, steps = 0, max(1, round(settings["seconds"] / STEP))
    with contextlib.suppress(FileNotFoundError):
        step = int((folder / "checkpoint.pt").read_text())
    print(f"starts at step {step}", flush=True)
    while step < steps or (folder / "hold").exists():
        time.sleep(STEP)
        step += 1
        progress = Progress(
            phase="main",
            done=min(1.0, step / steps),
            step=step,
            loss=1.0,
            seconds=0.1,
            pid=os.getpid(),
        )
        write_json(folder / "progress.json", progress.to_json(), durable=False)
        if asked and settings["do"] != "deaf":
            (folder / "checkpoint.pt").write_text(str(step))
            return 75
    return ACTIONS[settings["do"]](folder, cell)


def _finish(folder, cell):
    finish(folder, cell)
    return 0


def _raise(folder, cell):
    raise ValueError("no such thing")


def _memory(folder, cell):
    Failure(kind="oom", message="tried to allocate 80 GiB").save(folder / FAILURE)
    return 1


def _uncaught(folder, cell):
    print("the last words", file=sys.stderr)
    sys.exit(1)


def _forged(folder, cell):
    (folder / "record.json").write_text("{}")
    return 0


ACTIONS = {
    "finish": _finish,
    "deaf": _finish,
    "raise": _raise,
    "oom": _memory,
    "uncaught": _uncaught,
    "exit": lambda *_: os._exit(3),
    "leave": lambda *_: os._exit(0),
    "forged": _forged,
    "kill": lambda *_: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda *_: os.kill(os.getpid(), signal.SIGTERM) or 75,
    "crash": lambda *_: ctypes.string_at(0),
}
