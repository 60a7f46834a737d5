"""What a run ran on and from: provenance for its record, never part of its key."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import subprocess
from pathlib import Path
from typing import Any

import torch

_PACKAGES = (
    "classfair",
    "torch",
    "torchvision",
    "numpy",
    "scikit-learn",
    "timm",
    "open_clip_torch",
)


def describe(device: torch.device, determinism: str) -> dict[str, Any]:
    """Return device, driver, versions, threads and determinism level."""
    return {
        "device": device.type,
        "device_name": _device_name(device),
        "driver": _driver(device),
        "cuda": torch.version.cuda if device.type == "cuda" else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "platform": platform.platform(),
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES if _version(name)},
        "threads": torch.get_num_threads(),
        "determinism": determinism,
    }


def peak_memory(device: torch.device) -> int:
    """Return the most memory in use so far, in bytes: the accelerator's, else the process's."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def git_state() -> dict[str, Any]:
    """Return the commit of the source tree that this code runs from and whether it was changed."""
    folder = Path(__file__).parent
    commit = _git(folder, "rev-parse", "HEAD")
    tracked = commit is not None and _git(folder, "ls-files", "--error-unmatch", __file__)
    if not tracked:
        return {"commit": None, "dirty": None}
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "dirty": bool(changed)}


def _git(folder: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(folder), *arguments]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command without a shell
            command, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return f"{line.partition(':')[2].strip()} x {os.cpu_count()}"
    except OSError:
        pass
    return f"{platform.processor() or platform.machine()} x {os.cpu_count()}"


def _driver(device: torch.device) -> str | None:
    if device.type != "cuda":
        return None
    try:
        return Path("/proc/driver/nvidia/version").read_text().splitlines()[0]
    except (OSError, IndexError):
        return None
