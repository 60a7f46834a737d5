"""The same toy run in processes of the operating system, over ``torch.distributed`` and gloo."""

from __future__ import annotations

import dataclasses
import importlib.util
import operator
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing

from classfair_registry.settings import build
from classfair_registry.specs import MethodSpec
from classfair_registry.testing.loop import Position, state, train
from classfair_registry.testing.seeds import seed_torch
from classfair_registry.testing.subject import Broken
from classfair_registry.testing.toy import Toy
from classfair_registry.testing.worlds import Gloo


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a class or function can be found by another process, a plugin of one file included."""

    module: str
    file: str
    name: str

    @classmethod
    def of(cls, thing: Any) -> Place:
        """Return the place of something that is defined at module level.

        Raises:
            Broken: for a lambda, a partial or anything inside a function.
        """
        name = getattr(thing, "__qualname__", "<")
        if "<" in name:
            raise Broken(
                f"{thing!r} cannot be found by another process; let make be a class or function "
                "at module level"
            )
        module = sys.modules[thing.__module__]
        return cls(thing.__module__, module.__file__ or "", name)

    def find(self) -> Any:
        """Return it, importing its module."""
        if self.module not in sys.modules and importlib.util.find_spec(self.module) is None:
            spec = importlib.util.spec_from_file_location(self.module, self.file)
            assert spec is not None
            assert spec.loader is not None
            sys.modules[self.module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[self.module])
        return operator.attrgetter(self.name)(importlib.import_module(self.module))


@dataclasses.dataclass(frozen=True)
class _Work:
    size: int
    folder: Path
    make: Place
    settings: Place
    resolved: Mapping[str, Any]
    toy: Mapping[str, Any]


def in_processes(
    size: int, spec: MethodSpec, resolved: Mapping[str, Any], toy: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Train a method in ``size`` processes and return each one's last state.

    Args:
        size: number of processes.
        spec: of the method; its ``make`` and ``settings`` are found by name in the processes.
        resolved: its settings.
        toy: fields of the toy.
    """
    with tempfile.TemporaryDirectory() as folder:
        work = _Work(
            size=size,
            folder=Path(folder),
            make=Place.of(spec.make),
            settings=Place.of(spec.settings),
            resolved=dict(resolved),
            toy={"splits": spec.splits, **toy},
        )
        torch.multiprocessing.spawn(_rank, args=(work,), nprocs=size)
        return [torch.load(work.folder / f"{n}.pt", weights_only=True) for n in range(size)]


def _rank(rank: int, work: _Work) -> None:
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"file://{work.folder}/meeting", rank=rank, world_size=work.size
    )
    toy = Toy(world=Gloo(), **work.toy)
    seed_torch(toy.seed, "make")
    method = work.make.find()(toy, build(work.settings.find(), work.resolved))
    for _ in train(method, toy, Position()):
        pass
    torch.save(state(method), work.folder / f"{rank}.pt")
    torch.distributed.destroy_process_group()
