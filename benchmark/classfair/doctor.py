"""What a user should know of this machine before a long run, and what is wrong with it.

Whether torch works is asked of a process of its own: importing it here would take seconds, and a
broken installation would end the report.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from classfair_registry.errors import ClassfairError
from classfair_registry.manager import Plugins, version
from classfair_registry.settings import build, describe

_PACKAGES = ("torch", "torchvision", "numpy", "pydantic", "pluggy", "scikit-learn")
_ASK_TORCH = """
import json, torch, torchvision
from torchvision.ops import nms
nms(torch.zeros(1, 4), torch.zeros(1), 0.5)
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
memory = [torch.cuda.get_device_properties(i).total_memory for i in range(count)]
names = [torch.cuda.get_device_name(i) for i in range(count)]
print(json.dumps({"cuda": torch.version.cuda, "names": names, "memory": memory}))
"""
_TORCH_SECONDS = 120
_GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report.

    Attributes:
        topic: what it is about.
        text: what was found, and for a problem what to do.
        problem: whether something must be mended before a run.
    """

    topic: str
    text: str
    problem: bool = False


def examine(plugins: Plugins, data: Path | None, results: Path) -> Iterator[Finding]:
    """Yield what there is to say of the machine, one topic after the other."""
    yield Finding("classfair", version())
    yield Finding("Python", f"{platform.python_version()} ({sys.executable})")
    yield Finding("system", f"{platform.system()} {platform.release()}, {platform.machine()}")
    for package in _PACKAGES:
        yield _package(package)
    yield from _torch()
    yield Finding("processors", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield Finding("memory", f"{memory / _GIB:.0f} GiB")
    yield _disk(results)
    yield from _datasets(plugins, data)
    yield Finding(
        "launchers", ", ".join(card.name for card in plugins.cards("launchers")) or "none"
    )
    yield from _plugins(plugins)


def _package(name: str) -> Finding:
    try:
        return Finding(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Finding(name, f"not installed; pip install {name}", problem=True)


def _torch() -> Iterator[Finding]:
    """Ask a process whether torch and torchvision import, fit together and see devices."""
    command = [sys.executable, "-c", _ASK_TORCH]
    try:
        asked = subprocess.run(  # noqa: S603 - a fixed program in this interpreter
            command, capture_output=True, text=True, timeout=_TORCH_SECONDS, check=True
        )
    except subprocess.TimeoutExpired:
        slow = f"did not import within {_TORCH_SECONDS} s; is the disk of the environment slow?"
        yield Finding("torch imports", slow, problem=True)
        return
    except subprocess.CalledProcessError as error:
        last = error.stderr.strip().splitlines()[-1:] or [f"exit code {error.returncode}"]
        mend = "install a torch and a torchvision of one release together"
        yield Finding("torch imports", f"no: {last[0]}; {mend}", problem=True)
        return
    yield Finding("torch imports", "yes, and torchvision's operators work with it")
    yield _devices(json.loads(asked.stdout.splitlines()[-1]))


def _devices(told: dict[str, Any]) -> Finding:
    if not told["names"]:
        return Finding("accelerators", "none that torch can use; cells run on the CPU")
    pairs = zip(told["names"], told["memory"], strict=True)
    listed = ", ".join(f"{name} ({size / _GIB:.0f} GiB)" for name, size in pairs)
    return Finding("accelerators", f"{listed}; CUDA {told['cuda']}")


def _disk(results: Path) -> Finding:
    """Report on the disk that results would be written to."""
    holder = next(
        path for path in (results.absolute(), *results.absolute().parents) if path.exists()
    )
    usage = shutil.disk_usage(holder)
    free = f"{usage.free / _GIB:.0f} of {usage.total / _GIB:.0f} GiB free for {results}"
    if not os.access(holder, os.W_OK):
        return Finding("disk", f"{holder} is not writable; choose another --results", problem=True)
    return Finding("disk", free, problem=usage.free < _GIB)


def _datasets(plugins: Plugins, data: Path | None) -> Iterator[Finding]:
    for card in plugins.cards("datasets"):
        spec = plugins.get("datasets", card.name)
        default = {item.name: item.default for item in describe(spec.settings)}
        try:
            files = spec.files(data, build(spec.settings, default))
            number = f"{len(files)} file{'s' if len(files) > 1 else ''}"
            yield Finding(f"data set {card.name}", f"found, {number}")
        except ClassfairError as error:
            yield Finding(f"data set {card.name}", f"not found: {error}")


def _plugins(plugins: Plugins) -> Iterator[Finding]:
    working = len(plugins.plugins) - len(plugins.broken)
    outside = [p.name for p in plugins.plugins if p.origin != "built-in" and not p.error]
    named = f", from outside: {', '.join(outside)}" if outside else ""
    yield Finding("plugins", f"{working} loaded{named}")
    for broken in plugins.broken:
        source = f"{broken.distribution} {broken.version}".strip()
        yield Finding(f"plugin {broken.name}", f"{source}: {broken.error}", problem=True)
