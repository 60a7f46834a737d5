"""What this machine has room for: GPUs and CPU cores, found without torch."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from classfair_registry.errors import UsageError
from classfair_registry.specs import LaunchOptions, Resources


class Room:
    """What the machine has left for further jobs."""

    def __init__(self, options: LaunchOptions) -> None:
        self._gpus = gpus() if options.device != "cpu" else ()
        if options.device == "cuda" and not self._gpus:
            raise UsageError(
                "--device cuda: no GPU found (nvidia-smi lists none); if there is one, name it in "
                "CUDA_VISIBLE_DEVICES"
            )
        self._cores = cores()
        self._load: Counter[str] = Counter()
        self._per_gpu = options.jobs_per_device
        self._left = options.max_parallel if options.max_parallel is not None else math.inf
        self._running = 0

    @property
    def some(self) -> bool:
        """Whether a job could start if it asks for no more than is usual."""
        free = self._free_gpus() if self._gpus else self._cores > 0
        return self._left > 0 and bool(free or not self._running)

    def take(self, wanted: Resources) -> tuple[str, ...] | None:
        """Take room for a job; return its accelerators, or None if there is no room yet."""
        number = wanted.devices if self._gpus else 0
        if number > len(self._gpus):
            raise UsageError(f"a cell wants {number} devices; this machine has {len(self._gpus)}")
        free = self._free_gpus()[:number]
        # Alone, a job starts even if it wants more threads than there are cores.
        fits = len(free) == number and (number or wanted.threads <= self._cores)
        if self._left <= 0 or not (fits or not self._running):
            return None
        self._change(wanted, free, 1)
        return free

    def give_back(self, wanted: Resources, taken: tuple[str, ...]) -> None:
        """Return what a job that ended had taken."""
        self._change(wanted, taken, -1)

    def _change(self, wanted: Resources, taken: tuple[str, ...], sign: int) -> None:
        self._running += sign
        self._left -= sign
        for gpu in taken:
            self._load[gpu] += sign
        if not taken:
            self._cores -= sign * wanted.threads

    def _free_gpus(self) -> tuple[str, ...]:
        """Return the accelerators that take one more job, the idlest first."""
        free = [gpu for gpu in self._gpus if self._load[gpu] < self._per_gpu]
        return tuple(sorted(free, key=lambda gpu: self._load[gpu]))


def cores() -> int:
    """Return the CPU cores that this process may use: its affinity, within its group's quota."""
    affinity = getattr(os, "sched_getaffinity", None)
    count = len(affinity(0)) if affinity else os.cpu_count() or 1
    return max(1, math.floor(min(count, _quota())))


def _quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """Return the cores that the control group may use, infinite without a limit."""
    with contextlib.suppress(OSError, ValueError):
        quota, period = (root / "cpu.max").read_text().split()
        return int(quota) / int(period) if quota != "max" else math.inf
    with contextlib.suppress(OSError, ValueError):
        quota, period = (
            (root / "cpu" / f"cpu.cfs_{x}_us").read_text() for x in ("quota", "period")
        )
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf


def gpus() -> tuple[str, ...]:
    """Return the names by which ``CUDA_VISIBLE_DEVICES`` knows the GPUs, without asking CUDA."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        items = (item.strip() for item in named.split(","))
        return tuple(itertools.takewhile(lambda item: item not in ("", "-1"), items))
    tool = shutil.which("nvidia-smi")
    if tool is None:
        count = len(list(Path("/dev").glob("nvidia[0-9]*")))
        return tuple(str(index) for index in range(count))
    command = [tool, "--query-gpu=uuid", "--format=csv,noheader"]
    asked = subprocess.run(  # noqa: S603 - a fixed command
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    lines = (line.strip() for line in asked.stdout.splitlines())
    return tuple(line for line in lines if line.startswith("GPU-"))
