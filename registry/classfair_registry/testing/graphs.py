"""Check that a step can be captured in a CUDA graph; only where there is a CUDA device."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from classfair_registry.contracts import Batch, Phase
from classfair_registry.testing.loop import state
from classfair_registry.testing.network import Network
from classfair_registry.testing.several import distance
from classfair_registry.testing.subject import Broken, Subject, copy

_TOLERANCE = 1e-4
_WARM_UP = 3


class Captured:
    """A step that is captured once it is warm, and replayed for batches of the same shape."""

    def __init__(self, step: Callable[[Batch], Mapping[str, Tensor]]) -> None:
        self._step = step
        self._calls = 0
        self._graph: Any = None
        self._batch: Batch | None = None
        self._terms: dict[str, Tensor] = {}

    def __call__(self, batch: Batch) -> Mapping[str, Tensor]:
        """Take a step, by a replay where possible."""
        self._calls += 1
        if self._calls <= _WARM_UP:
            return self._on_side_stream(batch)
        if self._batch is None:
            self._capture(batch)
        assert self._batch is not None
        if self._batch.images.shape != batch.images.shape:
            return self._step(batch)
        for held, new in zip(_tensors(self._batch), _tensors(batch), strict=True):
            held.copy_(new)
        self._graph.replay()
        return copy(self._terms)

    def _on_side_stream(self, batch: Batch) -> Mapping[str, Tensor]:
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            terms = self._step(batch)
        torch.cuda.current_stream().wait_stream(stream)
        return terms

    def _capture(self, batch: Batch) -> None:
        index, labels, progress, *views = (tensor.clone() for tensor in _tensors(batch))
        self._batch = Batch(index, views, labels, progress)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._terms = dict(self._step(self._batch))


def _tensors(batch: Batch) -> list[Tensor]:
    return [batch.index, batch.labels, batch.progress, *batch.views]


def captured_steps_equal_eager_ones(subject: Subject) -> None:
    """Replayed steps over a whole schedule end where eager ones do."""

    def last(change: Callable[[Phase], Phase]) -> dict[str, Tensor]:
        # 40 images in batches of 10: every step has one shape, as a graph needs.
        toy = subject.toy(device="cuda", batch_size=10, network=Network(dropout=0.0))
        return copy(state(subject.run(toy, change).method))

    eager = last(lambda phase: phase)
    try:
        captured = last(lambda phase: dataclasses.replace(phase, step=Captured(phase.step)))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise Broken(
            f"a step cannot be captured ({reason}); let no shape and no branch depend on values"
        ) from None
    for name, wanted in eager.items():
        if distance(wanted, captured[name]) > _TOLERANCE:
            raise Broken(
                f"captured steps end with another {name!r} than eager ones; take what changes "
                "from step to step from tensors, such as batch.progress"
            )
