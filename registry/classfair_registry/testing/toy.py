"""A Setup of the size of a thumbnail: made data, a tiny network, an optimiser, readers.

It knows nothing of the engine, so that it is a second opinion on it, and is what tests of a single
method are made with:

    toy = Toy()
    method = spec.make(toy, Settings())
    method.phases()[0].step(toy.batch())
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from classfair_registry.contracts import Batch, Task
from classfair_registry.specs import Regime
from classfair_registry.testing.network import Backbone, Classifier, Network
from classfair_registry.testing.optimizer import Rates, Sgd, override
from classfair_registry.testing.seeds import generator, seed_torch
from classfair_registry.testing.worlds import World

SHAPE = (3, 8, 8)


class UndeclaredSplit(Exception):
    """A method asked for a split that its spec does not name."""


@dataclasses.dataclass(frozen=True)
class Images:
    """A split: [n, 3, 8, 8] float32 images, [n] int64 labels, and whether images vary at all."""

    images: Tensor
    labels: Tensor
    varied: bool

    @classmethod
    def make(cls, counts: Sequence[int], kind: str, split: str) -> Images:
        """Draw a pattern for each class and noise for each image; ``constant`` has neither."""
        labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
        labels = labels[torch.randperm(len(labels), generator=generator("toy", "labels", split))]
        patterns = torch.randn(
            len(counts), *SHAPE, generator=generator("toy", "patterns"), dtype=torch.float32
        )
        noise = torch.randn(
            len(labels), *SHAPE, generator=generator("toy", "noise", split), dtype=torch.float32
        )
        images = patterns[labels] + noise
        varied = kind == "made"
        return cls(images if varied else torch.ones_like(images), labels, varied)

    def augmented(self, index: Tensor, draws: Tensor) -> Tensor:
        """Return images [B], mirrored and of another contrast as their draws [B, 2] say."""
        images, draws = self.images[index], draws.to(index.device)
        if not self.varied:
            return images
        mirrored = torch.where((draws[:, 0] < 0.5)[:, None, None, None], images.flip(3), images)
        return mirrored * (0.8 + 0.4 * draws[:, 1, None, None, None])

    def to(self, device: str) -> Images:
        """Return the same on a device."""
        return Images(self.images.to(device), self.labels.to(device), self.varied)


class Reader:
    """A split as contracts.Reader has it: in order, this rank's part of it.

    The transform ``train`` changes each image in one way, whoever reads it and when.
    """

    def __init__(self, split: Images, transform: str, batch_size: int, world: World) -> None:
        self._split, self._transform = split, transform
        self._batch_size, self._world = batch_size, world
        self.labels = split.labels

    def images(self, index: Tensor) -> Tensor:
        """Return the images of an index."""
        if self._transform == "eval":
            return self._split.images[index]
        size = (len(self.labels), 2)
        draws = torch.rand(size, generator=generator("toy", "reader"), dtype=torch.float32)
        return self._split.augmented(index, draws[index.cpu()])

    def batches(self) -> Iterator[Batch]:
        """Iterate over this rank's images, in as many batches as every other rank."""
        every = torch.arange(len(self.labels), device=self.labels.device)
        shares = every.tensor_split(self._world.size)
        number = math.ceil(len(shares[0]) / self._batch_size)
        for index in shares[self._world.rank].tensor_split(number):
            progress = torch.zeros((), device=index.device, dtype=torch.float32)
            yield Batch(index, [self.images(index)], self.labels[index], progress)


@dataclasses.dataclass
class Toy:
    """A Setup. Two of the same seed give equal networks; the data are always the same.

    Attributes:
        seed: of the initial weights.
        counts: training images of each class.
        passes: over the training split, for the loop.
        batch_size: global; 13 does not divide and leaves a last batch of one of 40.
        kind: of images: ``made``, or ``constant`` for all alike.
        splits: those that the method at hand may read.
        network: what the network is like.
        world: the processes that train together.
        regime: a ``probe`` freezes the backbone.
        device: where everything lies.
        asked: splits that were asked for.
    """

    seed: int = 0
    counts: tuple[int, ...] = (15, 14, 11)
    passes: int = 6
    batch_size: int = 13
    kind: Literal["made", "constant"] = "made"
    splits: tuple[str, ...] = ("train",)
    network: Network = dataclasses.field(default_factory=Network)
    world: World = dataclasses.field(default_factory=World)
    regime: Regime = "scratch"
    device: str = "cpu"
    asked: list[str] = dataclasses.field(default_factory=list)

    def __post_init__(self) -> None:
        self.progress = torch.zeros((), device=self.device, dtype=torch.float32)
        self.world.device = self.device
        if self.regime == "probe":
            self.network = dataclasses.replace(self.network, frozen=True)

    @functools.cached_property
    def train(self) -> Images:
        """The training split."""
        return Images.make(self.counts, self.kind, "train").to(self.device)

    @functools.cached_property
    def _held_out(self) -> Images:
        return Images.make([5] * len(self.counts), self.kind, "held out").to(self.device)

    @functools.cached_property
    def task(self) -> Task:
        """What is to be learnt."""
        names = tuple(f"class {number}" for number in range(len(self.counts)))
        return Task(names, self.counts, SHAPE, self.regime, self.train.labels)

    def split(self, name: str) -> Images:
        """Return a split: ``train``, or five images a class for any other that may be read.

        Raises:
            UndeclaredSplit: for the test split and for any that ``splits`` does not name.
        """
        self.asked.append(name)
        if name == "test" or name not in self.splits:
            raise UndeclaredSplit(f"the split {name!r} is not among {self.splits}")
        return self.train if name == "train" else self._held_out

    def data(self, split: str, transform: str = "eval") -> Reader:
        """Return a reader of a split that may be read."""
        return Reader(self.split(split), transform, self.batch_size, self.world)

    def backbone(self, init: int = 0) -> Any:
        """Return the backbone; its weights depend on the seed and ``init`` alone."""
        return self._initial(lambda: Backbone(SHAPE, self.network, self.world), init)

    def classifier(
        self, init: int = 0, *, head: str | None = None, scale: float | None = None
    ) -> Any:
        """Return a classifier; its weights depend on the seed and ``init`` alone."""
        network = dataclasses.replace(
            self.network,
            head=head or self.network.head,
            scale=self.network.scale if scale is None else scale,
        )

        def make() -> Classifier:
            return Classifier(Backbone(SHAPE, network, self.world), len(self.counts), network)

        return self._initial(make, init)

    def _initial(self, make: Any, init: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            seed_torch(self.seed, "init", init)
            return make().to(self.device)

    def optimizer(
        self,
        parameters: nn.Module | Iterable[tuple[str, nn.Parameter]],
        *,
        schedule: bool = True,
        **overrides: Any,
    ) -> Sgd:
        """Return SGD over a module or named parameters."""
        named = parameters.named_parameters() if isinstance(parameters, nn.Module) else parameters
        progress = self.progress if schedule else None
        return Sgd(named, self.world, progress, override(Rates(), overrides))

    def batch(self, index: Sequence[int] | None = None, *, views: int = 1) -> Batch:
        """Return a batch of training images without augmentation, by default the first ones."""
        chosen = torch.arange(self.batch_size) if index is None else torch.tensor(index)
        chosen = chosen.to(self.device)
        images = [self.train.images[chosen].clone() for _ in range(views)]
        return Batch(chosen, images, self.train.labels[chosen], self.progress.clone())
