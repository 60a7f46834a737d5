"""What a method is given and what it must provide, as protocols and plain values.

A method is an ``nn.Module`` that makes *all* of its state (networks, optimisers, buffers) in
``__init__``; ``enter`` and ``each_pass`` only fill it. So a checkpoint is its state dict and those
of its optimisers, and every method resumes bit for bit.

Shapes: B images in a batch (of this process), C x H x W an image, D features, K classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from classfair_registry.specs import Regime


@dataclasses.dataclass(frozen=True)
class Task:
    """What is to be learnt.

    Attributes:
        class_names: K names in the order of the labels.
        counts: K numbers of training images.
        shape: (channels, height, width) of an image as the network sees it.
        regime: ``scratch``, ``finetune`` or ``probe``.
        labels: [num_train] int64 labels of the training split, on the device of the run; empty in
            a task that was made to plan, not to train.
    """

    class_names: tuple[str, ...]
    counts: tuple[int, ...]
    shape: tuple[int, int, int]
    regime: Regime
    labels: Tensor | tuple[()] = ()

    @property
    def num_classes(self) -> int:
        """K."""
        return len(self.class_names)

    @property
    def num_train(self) -> int:
        """Number of training images."""
        return sum(self.counts)

    @property
    def balanced(self) -> bool:
        """Whether every class has the same number of training images."""
        return len(set(self.counts)) == 1


@dataclasses.dataclass(frozen=True)
class Batch:
    """One step's samples of this process.

    Attributes:
        index: [B] int64 positions in the split, 0 .. num_train - 1.
        views: one [B, C, H, W] float32 tensor a view, augmented independently.
        labels: [B] int64.
        progress: 0-d float32 on the device, share of the phase that is done: 0 before its first
            step, approaching 1.
    """

    index: Tensor
    views: Sequence[Tensor]
    labels: Tensor
    progress: Tensor

    @property
    def images(self) -> Tensor:
        """The first view."""
        return self.views[0]


class Reader(Protocol):
    """A split as a method may read it outside of steps: in order, without gradient, in eval mode.

    ``batches`` is sharded over the world: each process reads its share and reduces the result.
    """

    labels: Tensor
    """[n] int64."""

    def batches(self) -> Iterator[Batch]:
        """Iterate over the split once, in order, under the reader's transform."""
        ...

    def images(self, index: Tensor) -> Tensor:
        """Return [len(index), C, H, W] float32 images under the reader's transform."""
        ...


@dataclasses.dataclass(frozen=True)
class Phase:
    """A stretch of training with one rule.

    Attributes:
        name: in logs and records.
        step: trains on one batch; returns detached scalars by name, ``loss`` among them.
        optimizers: those that ``step`` uses.
        share: fraction of the recipe's passes over the split; 0 only enters.
        enter: called once before the first pass.
        each_pass: called before every pass with the reader, the pass number (0-based, within the
            phase) and the number of passes of the phase.
        order: maps a CPU generator to the int64 indices of one pass; None is a shuffle.
        views: augmented views of each image.
        split: the split it trains on.
        selectable: whether a selection rule may pick a state from it.
    """

    name: str
    step: Callable[[Batch], Mapping[str, Tensor]]
    optimizers: Sequence[Optimizer] = ()
    share: float = 1.0
    enter: Callable[[Reader], None] | None = None
    each_pass: Callable[[Reader, int, int], None] | None = None
    order: Callable[[torch.Generator], Tensor] | None = None
    views: int = 1
    split: str = "train"
    selectable: bool = True


class Classifier(Protocol):
    """A backbone and a head. The backbone runs in the recipe's precision, the head in float32."""

    backbone: nn.Module
    head: nn.Module

    def features(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to the [B, D] float32 features that the head is given."""
        ...

    def class_vectors(self) -> Tensor | None:
        """Return the head's [K, D] weights, or None if it has none."""
        ...

    def __call__(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, K] float32 logits."""
        ...


class Method(Protocol):
    """What the trainer drives. Also an ``nn.Module``; see :mod:`classfair_registry.plain`."""

    def phases(self) -> Sequence[Phase]:
        """Return the phases in order; none means that the given weights are judged as they are."""
        ...

    def evaluated(self) -> Classifier:
        """Return the classifier to be judged."""
        ...

    def predict(self, images: Tensor) -> Tensor:
        """Map [B, C, H, W] to [B, K] logits; the largest is the answer."""
        ...

    def diagnostics(self) -> Mapping[str, Tensor]:
        """Return [K] (or [K, K]) values worth plotting by name, such as margins or weights."""
        ...


class Optimizer(Protocol):
    """An update rule that owns everything between a loss and the new weights.

    ``step(closure)`` is ``gradient(closure)`` and then ``apply()``. A method that needs something
    in between, such as SAM, calls the two itself.
    """

    parameters: Sequence[nn.Parameter]

    @property
    def learning_rate(self) -> float:
        """The scheduled learning rate of the current step."""
        ...

    def gradient(self, closure: Callable[[], Tensor]) -> Tensor:
        """Clear the gradients, run the closure (forward, [] loss), backpropagate and reduce.

        Over W processes the gradient is the mean of the ranks' gradients weighted by their number
        of samples, so a loss that is a mean over the local batch needs no care.

        Returns:
            The detached loss of this process.
        """
        ...

    def apply(self) -> None:
        """Clip, set the scheduled learning rate and update the parameters."""
        ...

    def step(self, closure: Callable[[], Tensor]) -> Tensor:
        """Do both, and return the detached loss."""
        ...


class World(Protocol):
    """The processes that train one cell together; alone, every method here is the identity."""

    rank: int
    size: int
    share: float
    """This process's part of the current batch's samples: 1 alone. A loss that is a *sum* of local
    terms over a global normaliser must be divided by it (see :meth:`Optimizer.gradient`)."""

    def all_reduce(self, values: Tensor) -> Tensor:
        """Return the sum over processes, without gradient."""
        ...

    def all_gather(self, values: Tensor) -> Tensor:
        """Concatenate [B_r, ...] of all ranks in rank order, with gradient to each rank's part."""
        ...

    def rand(self, *shape: int) -> Tensor:
        """Return this rank's rows of uniform numbers [B, ...] drawn for the global batch.

        Args:
            shape: the shape wanted here; its first number is this process's batch size.
        """
        ...


class Setup(Protocol):
    """What a method is made from. Everything it returns lies on the run's device."""

    task: Task
    world: World

    def data(self, split: str, transform: str = "eval") -> Reader:
        """Return a reader of a split that the spec names; transform is ``eval`` or ``train``."""
        ...

    def classifier(
        self, init: int = 0, *, head: str | None = None, scale: float | None = None
    ) -> Any:
        """Return a :class:`Classifier` (an ``nn.Module``) as the recipe says.

        Its initial weights depend on the run's seed and ``init`` alone: equal over methods.

        Args:
            init: number of the initialisation.
            head: ``linear`` or ``cosine`` instead of the recipe's.
            scale: of a cosine head's logits instead of the recipe's.
        """
        ...

    def backbone(self, init: int = 0) -> Any:
        """Return the backbone alone: maps images to [B, D] float32, has ``num_features``."""
        ...

    def optimizer(
        self,
        parameters: nn.Module | Iterable[tuple[str, nn.Parameter]],
        *,
        schedule: bool = True,
        **overrides: Any,
    ) -> Optimizer:
        """Return the recipe's optimiser over a module or named parameters.

        Args:
            parameters: those without ``requires_grad`` are left out.
            schedule: False keeps the learning rate constant.
            overrides: of the recipe's optimiser settings, such as ``lr`` or ``weight_decay``.
        """
        ...
