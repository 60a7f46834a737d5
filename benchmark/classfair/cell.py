"""One cell, in a process of its own: from ``cell.json`` to ``record.json``.

Exit codes: 0 the record is there; 1 ``failure.json`` says why not; 75 asked to stop, the checkpoint
is there. Importing this module does nothing but import, so that a warm parent can do it once.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import inspect
import io
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
import torch._dynamo  # The first optimiser imports it, which takes a second: the parent did it once

from classfair import checkpoint, machine
from classfair.data import Opened, open_data
from classfair.evaluate import predictions
from classfair.recipe import Recipe
from classfair.results import locked
from classfair.seeds import seed_torch
from classfair.setup import Setup
from classfair.trainer import Stopped, Trainer
from classfair.world import Alone
from classfair_registry.errors import ClassfairError, DataBad, DataMissing, Diverged
from classfair_registry.files import digest, file_digest, writing
from classfair_registry.manager import Plugins, discover
from classfair_registry.predictions import Predictions, save_arrays
from classfair_registry.records import CellInfo, Cost, Failure, FailureKind, Progress, Record
from classfair_registry.settings import build

STOPPED = 75
CHECKPOINT_SECONDS = 60.0
PROGRESS_SECONDS = 0.5
SAME_REQUEST_SECONDS = 2.0
_log = logging.getLogger(__name__)


def main(arguments: Sequence[str]) -> int:
    """Run the cell of a folder on a device (``cpu``, ``cuda``, ``auto``); return the exit code."""
    folder, device = Path(arguments[0]), pick_device(arguments[1])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    stop = _StopSignal()
    with locked(folder):
        if (folder / "record.json").exists():
            return 0
        cell: Cell | None = None
        try:
            cell = Cell(folder, device, stop)
            cell.run()
        except Stopped:
            return STOPPED
        except BaseException as error:  # noqa: BLE001 - whatever ends a cell is classified
            sources = cell.sources() if cell else ()
            failure = classify(error, sources, f"{folder.name}/log.txt")
            _log.error("%s: %s\n%s", failure.kind, failure.message, failure.traceback or "")
            failure.save(folder / "failure.json")
            return 1
    return 0


def pick_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is the accelerator if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


class _StopSignal:
    """Becomes true when the process is asked to stop; asked again later, it ends at once.

    Whoever signals a whole group makes the runner forward a second signal at the same moment, which
    is the same request.
    """

    def __init__(self) -> None:
        self._asked: float | None = None
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._ask)

    def __call__(self) -> bool:
        return self._asked is not None

    def _ask(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's
        now = time.monotonic()
        if self._asked is not None and now - self._asked > SAME_REQUEST_SECONDS:
            os._exit(STOPPED)
        self._asked = self._asked or now


class Cell:
    """A cell with everything that it is made from.

    Args:
        folder: with ``cell.json``.
        device: to run on.
        stop: true when the cell should write a checkpoint and stop.
        checkpoint_seconds: time between two checkpoints.
    """

    def __init__(
        self,
        folder: Path,
        device: torch.device,
        stop: Callable[[], bool],
        checkpoint_seconds: float = CHECKPOINT_SECONDS,
    ) -> None:
        self.folder, self.device = folder, device
        self._stop = stop
        self._interval = checkpoint_seconds
        self._begun = self._saved = time.monotonic()
        self._reported = 0.0
        self._earlier: dict[str, float] = {}
        self._started = _now()
        self.info = CellInfo.load(folder / "cell.json")
        self.recipe = Recipe.model_validate(self.info.recipe | {"name": self.info.recipe_name})
        self.plugins = discover([Path(p) for p in _plugin_files(self.info)])

    def run(self) -> None:
        """Train, judge and write the record.

        Raises:
            Stopped: after a checkpoint.
        """
        _prepare(self.recipe, self.device)
        data = self._open()
        self.trainer = self.make_trainer(data)
        self._restore()
        started = self._seconds("start", self._begun)
        self.trainer.run()
        trained = self._seconds("train", started)
        with self.trainer.setup.counter.pause():
            judged = predictions(
                self.trainer.method,
                data.test,
                len(data.class_names),
                data.val,
                self.trainer.at.step,
            )
        self._seconds("evaluate", trained)
        self._write(data, judged)

    def make_trainer(self, data: Opened) -> Trainer:
        """Make method, optimisers and loop for opened data."""
        spec = self.plugins.get("methods", self.info.method.name)
        backbone = self.plugins.get("backbones", self.recipe.backbone.name)
        world = Alone(self.device)
        setup = Setup(spec, backbone, self.recipe, data, self.info.seed, world)
        settings = build(spec.settings, self.info.method.settings)
        seed_torch(self.info.seed, "make")
        with self.device:
            method = spec.make(setup, settings).to(self.device)
        return Trainer(method, setup, self._on_step)

    def _open(self) -> Opened:
        spec = self.plugins.get("datasets", self.recipe.data.name)
        root = self.info.paths.get("data")
        data = open_data(
            spec,
            self.recipe.data,
            Path(root) if root else None,
            self.device,
            evaluation=self.recipe.eval,
            augmentation=self.recipe.augmentation,
        )
        if data.fingerprint != self.info.fingerprint:
            raise DataBad(
                f"data set {spec.name!r} has changed since this cell was planned "
                f"(fingerprint {data.fingerprint[:12]}, planned {self.info.fingerprint[:12]}); "
                "run again to plan it anew"
            )
        return data

    def sources(self) -> set[str]:
        """Return the source files of the method, backbone and data set in use."""
        used = (
            ("methods", self.info.method.name, "make"),
            ("backbones", self.recipe.backbone.name, "make"),
            ("datasets", self.recipe.data.name, "open"),
        )
        found = set()
        for kind, name, maker in used:
            with contextlib.suppress(ClassfairError, TypeError):
                found.add(inspect.getfile(getattr(self.plugins.get(kind, name), maker)))
        return found

    # -- while it runs -------------------------------------------------------------------------

    def _on_step(self, done: float, phase: str) -> None:
        now = time.monotonic()
        if now - self._reported >= PROGRESS_SECONDS:
            self._reported = now
            self._report(done, phase, now - self._begun)
        asked = self._stop()
        if asked or now - self._saved >= self._interval:
            self._save(now)
        if asked:
            raise Stopped

    def _report(self, done: float, phase: str, seconds: float) -> None:
        counter = self.trainer.setup.counter
        progress = Progress(
            phase=phase,
            done=done,
            step=self.trainer.at.step,
            loss=self.trainer.trace.last_loss,
            images_per_second=counter.forward / seconds if seconds else None,
            seconds=seconds,
            pid=os.getpid(),
        )
        with writing(self.folder / "progress.json", durable=False) as file:
            file.write(progress.model_dump_json().encode())

    def _save(self, now: float) -> None:
        self._saved = now
        spent = {**self._earlier, "train": self._earlier.get("train", 0.0) + now - self._begun}
        content = {**self.trainer.state(), "seconds": spent, "started": self._started}
        checkpoint.save(self.folder / "checkpoint.pt", self.info.key, content)

    def _restore(self) -> None:
        saved = checkpoint.load(self.folder / "checkpoint.pt", self.info.key)
        if saved is not None:
            self._earlier, self._started = saved.pop("seconds"), saved.pop("started")
            self.trainer.restore(saved)
            _log.info("goes on at step %d", self.trainer.at.step)

    def _seconds(self, part: str, since: float) -> float:
        now = time.monotonic()
        self._earlier[part] = self._earlier.get(part, 0.0) + now - since
        return now

    # -- when it is done -----------------------------------------------------------------------

    def _write(self, data: Opened, judged: Predictions) -> None:
        """Write predictions, trace and model, then the record, which makes the cell done."""
        trace = self.trainer.trace.arrays()
        judged.save(self.folder / "predictions.npz")
        save_arrays(self.folder / "trace.npz", trace)
        files = ["predictions.npz", "trace.npz"]
        if self.recipe.keep == "last":
            with writing(self.folder / "model.pt") as file:
                torch.save(self.trainer.method.evaluated().state_dict(), file)
            files.append("model.pt")
        metrics = measure(self.plugins, judged)
        record = Record(
            cell=self._info_with_reduction(),
            dataset=_describe_data(self.plugins, self.recipe, data),
            metrics=metrics,
            class_accuracy=[None if np.isnan(a) else float(a) for a in judged.class_accuracy],
            class_count=judged.count.tolist(),
            selection=self._selection(),
            cost=self._cost(),
            machine=machine.describe(self.device, self.recipe.determinism),
            provenance={
                **machine.git_state(),
                "command": ["classfair", *sys.argv[1:]],
                "started": self._started,
                "finished": _now(),
            },
            digests={name: file_digest(self.folder / name) for name in files},
            result_digest=result_digest(metrics, judged, trace),
        )
        record.sealed().save(self.folder / "record.json")
        for name in ("checkpoint.pt", "progress.json", "failure.json"):
            (self.folder / name).unlink(missing_ok=True)

    def _info_with_reduction(self) -> CellInfo:
        """Return what the cell is, and which method it is equal to on this task."""
        spec, method = self.plugins.get("methods", self.info.method.name), self.info.method
        other = spec.reduces_to(self.trainer.setup.task, method.settings)
        return self.info.model_copy(
            update={"method": method.model_copy(update={"reduces_to": other})}
        )

    def _selection(self) -> dict[str, Any]:
        best = self.trainer.best
        if best.state is not None:
            return {"rule": self.recipe.selection, "phase": best.phase, "step": best.step}
        last = self.trainer.phases[-1].name if self.trainer.phases else ""
        return {"rule": "last", "phase": last, "step": self.trainer.at.step}

    def _cost(self) -> Cost:
        counter = self.trainer.setup.counter
        return Cost(
            images_forward=counter.forward,
            images_backward=counter.backward,
            steps=self.trainer.at.step,
            seconds=self._earlier,
            peak_memory=machine.peak_memory(self.device),
        )


def measure(plugins: Plugins, judged: Predictions) -> dict[str, float | None]:
    """Return every metric that is one number, None where it is not defined."""
    values: dict[str, float | None] = {}
    for spec in plugins.specs("metrics"):
        value = spec.compute(judged)
        if np.ndim(value) == 0:
            values[spec.name] = float(value) if np.isfinite(value) else None
    return values


def result_digest(
    metrics: Mapping[str, float | None], judged: Predictions, trace: Mapping[str, Any]
) -> str:
    """Return the sha256 over metrics, predictions and trace: equal runs have equal ones."""
    buffer = io.BytesIO()
    for name, rows in sorted(trace.items()):
        buffer.write(name.encode() + rows.tobytes())
    parts = {"metrics": dict(metrics), "predictions": judged.digest(), "trace": ""}
    parts["trace"] = digest(buffer.getvalue().hex())
    return digest(parts)


def classify(error: BaseException, sources: Collection[str], log: str) -> Failure:
    """Return what is written down about an exception that ended a cell.

    Args:
        error: what was raised.
        sources: source files of the plugins in use.
        log: path of the cell's log.
    """
    kind: FailureKind = "error"
    message = " ".join(str(error).split()) or type(error).__name__
    step = term = None
    if isinstance(error, Diverged):
        kind, step, term = "diverged", error.step, error.term
    elif _out_of_memory(error):
        kind = "oom"
    elif isinstance(error, DataMissing | DataBad):
        kind = "data"
    elif isinstance(error, SystemExit):
        kind, message = "plugin", f"a plugin ended the process with exit code {error.code}"
    elif _passed(error, sources):
        kind, message = "plugin", f"{type(error).__name__}: {message}"
    elif not isinstance(error, ClassfairError):
        message = f"{type(error).__name__}: {message}"
    return Failure(
        kind=kind,
        message=message,
        step=step,
        term=term,
        traceback="".join(traceback.format_exception(error)),
        log=log,
    )


def _out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out; torch's CPU allocator says so only in the text of a RuntimeError."""
    said = isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
    return said or isinstance(error, torch.OutOfMemoryError | MemoryError)


def _passed(error: BaseException, sources: Collection[str]) -> bool:
    """Whether the exception passed through one of these source files."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(frame.filename in sources for frame in frames)


def _prepare(recipe: Recipe, device: torch.device) -> None:
    """Set threads and determinism before anything is computed."""
    if device.type == "cpu":
        torch.set_num_threads(recipe.threads)
    torch.backends.cudnn.benchmark = recipe.determinism == "off"
    if recipe.determinism == "strict":
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.use_deterministic_algorithms(True)


def _describe_data(plugins: Plugins, recipe: Recipe, data: Opened) -> dict[str, Any]:
    card = plugins.card("datasets", recipe.data.name)
    return {
        "name": card.name,
        "title": card.values["title"],
        "plugin": card.plugin.name,
        "version": card.plugin.version,
        "split": recipe.data.split,
        "classes": list(data.class_names),
        "headline": card.values["manifest"]["headline"],
        "train": len(data.train),
        "train_counts": list(data.counts),
        "validation": 0 if data.val is None else len(data.val),
        "test": len(data.test),
    }


def _plugin_files(info: CellInfo) -> list[str]:
    return [path for name, path in sorted(info.paths.items()) if name.startswith("plugin") and path]


def _now() -> str:
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
