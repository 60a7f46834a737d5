"""Global state that a method must leave as it is: how to read it and how to put it back."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class Global:
    """One thing that is the process's, not the method's.

    Attributes:
        name: for people.
        read: returns its value, comparable with ``==``.
        write: puts a value back.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]


def _numpy_state() -> tuple[Any, ...]:
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global one is what is guarded
    return (kind, tuple(np.asarray(keys).tolist()), *rest)


def _restore_filters(filters: list[Any]) -> None:
    warnings.resetwarnings()
    warnings.filters.extend(filters)  # type: ignore[attr-defined]  # a list, typed as a sequence


def _restore_environment(values: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(values)


def _default_device(value: torch.device) -> None:
    torch.set_default_device(None if value.type == "cpu" else value)


def _attribute(owner: Any, attribute: str) -> Global:
    name = f"{owner.__name__}.{attribute}"
    return Global(
        name, lambda: getattr(owner, attribute), lambda value: setattr(owner, attribute, value)
    )


GLOBALS: tuple[Global, ...] = (
    Global("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype),
    Global("torch's default device", torch.get_default_device, _default_device),
    Global("torch's number of threads", torch.get_num_threads, torch.set_num_threads),
    Global(
        "torch's deterministic algorithms",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    Global(
        "torch's float32 matmul precision",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
    ),
    Global("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled),
    Global(
        "torch's anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly
    ),
    _attribute(torch.backends.cudnn, "enabled"),
    _attribute(torch.backends.cudnn, "benchmark"),
    _attribute(torch.backends.cudnn, "deterministic"),
    Global("numpy's random state", _numpy_state, np.random.set_state),
    Global("numpy's floating-point errors", np.geterr, lambda value: np.seterr(**value)),
    Global("python's random state", random.getstate, random.setstate),
    Global("the warnings filters", lambda: list(warnings.filters), _restore_filters),
    Global("the environment", lambda: dict(os.environ), _restore_environment),
)
"""What is guarded. The state of torch's generators is the loop's, which seeds it for each step."""


def read() -> list[Any]:
    """Return the values of all globals."""
    return [item.read() for item in GLOBALS]


def changed(before: list[Any]) -> list[str]:
    """Return the names of the globals whose value is no longer what it was."""
    return [item.name for item, old, new in zip(GLOBALS, before, read(), strict=True) if old != new]


@contextlib.contextmanager
def isolated() -> Iterator[None]:
    """Compute quietly with one thread, and put back all globals and random states.

    What a method logs or warns of would be said once for each of the toys that it is made in.
    """
    before = read()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with warnings.catch_warnings(), torch.random.fork_rng(devices):
        warnings.simplefilter("ignore")
        logged = logging.root.manager.disable
        logging.disable()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            logging.disable(logged)
            for item, old in zip(GLOBALS, before, strict=True):
                if item.read() != old:
                    item.write(old)
