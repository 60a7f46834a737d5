"""A method that keeps every promise, and methods that each break one.

``EXACT`` maps each of the plainest mistakes to the one check that must fail, and no other;
``ALSO`` holds more, each with the check that must say so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry.contracts import Batch, Phase, Reader, Setup
from classfair_registry.plain import PlainLoss, class_counts, class_sums
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


class Reference(PlainLoss):
    """Cross-entropy."""

    def loss(self, batch: Batch) -> Tensor:
        return F.cross_entropy(self.classifier(batch.images), batch.labels)


def spec(make: Any, **changes: Any) -> MethodSpec:
    values = {
        "name": make.__name__.lower(),
        "title": make.__name__,
        "summary": "For a test.",
        "reference": "Nobody: Nothing, nowhere 2026",
        "cost": 1.0,
        "make": make,
        **changes,
    }
    return MethodSpec(**values)


class PostHoc(Reference):
    """Trains nothing, and fits a bias of each class on held-out images."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.setup_world = setup.world
        self.held_out = setup.data("val")
        self.register_buffer("bias", torch.zeros(setup.task.num_classes))

    def phases(self) -> Sequence[Phase]:
        return [Phase("fit", self.step, share=0.0, enter=self.fit, split="val")]

    def fit(self, data: Reader) -> None:
        sums = torch.zeros_like(self.bias)
        for batch in data.batches():
            sums += self.classifier(batch.images).sum(0)
        self.bias.copy_(-self.setup_world.all_reduce(sums) / len(data.labels))

    def predict(self, images: Tensor) -> Tensor:
        return super().predict(images) + self.bias


class Given(Reference):
    """Judges the weights as they are."""

    def phases(self) -> Sequence[Phase]:
        return []


REFERENCE = spec(Reference, capabilities=Capabilities(distributed=True, capturable=True))
SOUND = (
    REFERENCE,
    spec(
        PostHoc,
        splits=("val",),
        budget="one pass over the validation split",
        capabilities=Capabilities(distributed=True),
    ),
    spec(Given, budget="no training", capabilities=Capabilities(distributed=True)),
)


# -- state, randomness, numbers ------------------------------------------------------------------


class Forgetful(Reference):
    """Keeps a running loss in an attribute, which no checkpoint holds."""

    running = 1.0

    def loss(self, batch: Batch) -> Tensor:
        loss = super().loss(batch)
        self.running = 0.5 * self.running + 0.5 * float(loss)
        return loss / self.running


class Restless(Reference):
    """Smooths labels by a number that nobody seeded."""

    def loss(self, batch: Batch) -> Tensor:
        unseeded = torch.Generator()
        unseeded.seed()
        logits = self.classifier(batch.images)
        smoothing = float(torch.rand((), generator=unseeded))
        return F.cross_entropy(logits, batch.labels, label_smoothing=smoothing)


class ClassMeans(Reference):
    """Averages the loss over classes, and divides by zero for one that is absent."""

    def loss(self, batch: Batch) -> Tensor:
        losses = F.cross_entropy(self.classifier(batch.images), batch.labels, reduction="none")
        classes = len(self.classifier.class_vectors())
        means = class_sums(losses, batch.labels, classes) / class_counts(batch.labels, classes)
        return means.mean()


class CountsPredictions(Reference):
    """Remembers how often it was asked."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.register_buffer("asked", torch.zeros(()))

    def predict(self, images: Tensor) -> Tensor:
        self.asked += 1
        return super().predict(images)


class SetsDtype(Reference):
    """Computes in double precision by changing everybody's."""

    def loss(self, batch: Batch) -> Tensor:
        torch.set_default_dtype(torch.float64)
        return super().loss(batch)


class Seeds(Reference):
    """Seeds the generator that the loop has seeded."""

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        torch.manual_seed(0)
        return super().step(batch)


class Peeks(Reference):
    """Looks at the test split and hides it."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        with contextlib.suppress(Exception):
            setup.data("test")


class TakesLess(Reference):
    """Leaves half of the passes."""

    def phases(self) -> Sequence[Phase]:
        return [dataclasses.replace(phase, share=0.5) for phase in super().phases()]


class OneTooMany(Reference):
    """Predicts a class that there is not."""

    def predict(self, images: Tensor) -> Tensor:
        return F.pad(super().predict(images), (0, 1))


@dataclasses.dataclass
class Note:
    """What a checkpoint cannot hold."""

    text: str = "mine"


class Unloadable(Reference):
    """Saves an object of its own."""

    def get_extra_state(self) -> Note:
        return Note()

    def set_extra_state(self, state: Note) -> None:
        pass


class Local(Reference):
    """Normalises the loss by statistics of its own process's samples."""

    def loss(self, batch: Batch) -> Tensor:
        losses = F.cross_entropy(self.classifier(batch.images), batch.labels, reduction="none")
        return (F.softmax(losses.detach(), 0) * losses).sum()


DISTRIBUTED = Capabilities(distributed=True)

EXACT: dict[str, tuple[MethodSpec, str]] = {
    "state outside of buffers": (spec(Forgetful), "resume"),
    "unseeded randomness": (spec(Restless), "repeat"),
    "NaN for an absent class": (spec(ClassMeans), "absent_class"),
    "a predict that changes state": (spec(CountsPredictions), "predict"),
    "another default dtype": (spec(SetsDtype), "global_state"),
    "a seeded global generator": (spec(Seeds), "global_state"),
    "the test split": (spec(Peeks), "splits"),
    "shares that sum to a half": (spec(TakesLess), "phases"),
    "logits of a wrong shape": (spec(OneTooMany), "shapes"),
    "state that cannot be loaded": (spec(Unloadable), "checkpoint"),
    "local statistics": (spec(Local, capabilities=DISTRIBUTED), "distributed"),
}


# -- more of them --------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Unexplained:
    """A setting of unknown origin."""

    scale: float = setting(1.0, "scale of the loss", source="")


@dataclasses.dataclass(frozen=True)
class OutOfBounds:
    """A default that its own bounds refuse."""

    scale: float = setting(1.0, "scale of the loss", source="a guess", minimum=2.0)


class ReadsValidation(Reference):
    """Reads a split that its spec does not name."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        setup.data("val")


class Raises(Reference):
    """Does not run."""

    def loss(self, batch: Batch) -> Tensor:
        raise KeyError("margin")


class Numpy(Reference):
    """Draws from numpy's global generator."""

    def loss(self, batch: Batch) -> Tensor:
        return super().loss(batch) * np.random.rand()  # noqa: NPY002 - that is what is wrong


class WritesImages(Reference):
    """Normalises the batch in place."""

    def loss(self, batch: Batch) -> Tensor:
        batch.images.sub_(batch.images.mean())
        return super().loss(batch)


class OwnOptimizer(Reference):
    """Updates by an optimiser of torch."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.own = torch.optim.SGD(self.classifier.parameters(), lr=0.1, momentum=0.9)

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        self.own.zero_grad()
        loss = self.loss(batch)
        loss.backward()
        self.own.step()
        return {"loss": loss.detach()}


class Vector(Reference):
    """Returns a loss for each sample."""

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss": super().step(batch)["loss"].expand(len(batch.labels))}


class FloatOrder(Reference):
    """Gives an order that holds no indices."""

    def phases(self) -> Sequence[Phase]:
        order = {"order": lambda random: torch.randperm(40, generator=random) - 1}
        return [dataclasses.replace(phase, **order) for phase in super().phases()]


LOG = logging.getLogger(__name__)


class Talks(Reference):
    """Logs and warns whenever it is made, which is no mistake."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        LOG.warning("margins are all equal")
        warnings.warn("margins are all equal", stacklevel=1)


class Logarithm(Reference):
    """Takes the logarithm of zero."""

    def loss(self, batch: Batch) -> Tensor:
        return {"loss": super().loss(batch), "rate": torch.zeros(()).log()}


class TrainsAnother(Reference):
    """Judges a classifier that it never trains."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.judged = setup.classifier(1)

    def evaluated(self) -> Any:
        return self.judged


class Grows(Reference):
    """Appends to a buffer."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.register_buffer("losses", torch.zeros(0))

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        terms = super().step(batch)
        self.losses = torch.cat([self.losses, terms["loss"][None]])
        return terms


class Unlisted(Reference):
    """Names no optimiser in its phase."""

    def phases(self) -> Sequence[Phase]:
        return [dataclasses.replace(phase, optimizers=()) for phase in super().phases()]


class Caches(Reference):
    """Lets what it last predicted change the next step."""

    last = 0.0

    def predict(self, images: Tensor) -> Tensor:
        logits = super().predict(images)
        self.last = float(logits.std())
        return logits

    def loss(self, batch: Batch) -> Tensor:
        return super().loss(batch) * (1 + self.last)


class Centres(Reference):
    """Centres logits over the batch that it is asked about."""

    def predict(self, images: Tensor) -> Tensor:
        logits = super().predict(images)
        return logits - logits.mean(0)


class Thaws(Reference):
    """Lets a frozen network's statistics move."""

    def loss(self, batch: Batch) -> Tensor:
        self.classifier.backbone.norm.train()
        return super().loss(batch)


class Unbiased(Reference):
    """Divides each class's spread by the number of its samples less one."""

    def loss(self, batch: Batch) -> Tensor:
        features, labels = self.classifier.features(batch.images), batch.labels
        classes = len(self.classifier.class_vectors())
        counts = class_counts(labels, classes)
        means = class_sums(features, labels, classes) / counts.clamp(min=1)[:, None]
        spread = class_sums((features - means[labels]).square().sum(1), labels, classes)
        present = torch.where(counts > 0, spread / (counts - 1), 0.0)
        return F.cross_entropy(self.classifier.head(features), labels) + 0.01 * present.mean()


class Standardises(Reference):
    """Divides features by their spread over the batch."""

    def loss(self, batch: Batch) -> Tensor:
        features = self.classifier.features(batch.images)
        scaled = (features - features.mean(0)) / features.std(0, correction=0)
        return F.cross_entropy(self.classifier.head(scaled), batch.labels)


class Divides(Reference):
    """Brings features to length one by a division."""

    def loss(self, batch: Batch) -> Tensor:
        features = self.classifier.features(batch.images)
        unit = features / features.norm(dim=1, keepdim=True)
        return F.cross_entropy(self.classifier.head(unit), batch.labels)


class NeedsTwo(Reference):
    """Adds the variance over the batch, which one sample does not have."""

    def loss(self, batch: Batch) -> Tensor:
        features = self.classifier.features(batch.images)
        spread = sum(values.var() for values in features.unbind(1))
        return F.cross_entropy(self.classifier.head(features), batch.labels) + 1e-3 * spread


class Exponentiates(Reference):
    """Writes the softmax as the formula does."""

    def loss(self, batch: Batch) -> Tensor:
        powers = self.classifier(batch.images).exp()
        own = powers.gather(1, batch.labels[:, None])[:, 0]
        return -(own / powers.sum(1)).log().mean()


class LowHead(Reference):
    """Runs the head in the backbone's precision."""

    def predict(self, images: Tensor) -> Tensor:
        low = self.classifier.backbone.network.precision == "bf16"
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            return super().predict(images)


class DrawsAlone(Reference):
    """Draws the same numbers in every process."""

    def loss(self, batch: Batch) -> Tensor:
        losses = F.cross_entropy(self.classifier(batch.images), batch.labels, reduction="none")
        return (losses * torch.rand(len(losses))).mean()


class OneRankTalks(Reference):
    """Reduces in one process only, so that a real group would wait for ever."""

    def __init__(self, setup: Setup, settings: Any) -> None:
        super().__init__(setup, settings)
        self.world = setup.world

    def loss(self, batch: Batch) -> Tensor:
        if self.world.rank == 0:
            self.world.all_reduce(torch.ones(()))
        return super().loss(batch)


ALSO: dict[str, tuple[MethodSpec, str, str]] = {
    "no year": (spec(Reference, reference="somebody"), "spec", "year"),
    "no source": (spec(Reference, settings=Unexplained), "spec", "'scale'.*source"),
    "a refused default": (spec(Reference, settings=OutOfBounds), "spec", "outside 2"),
    "itself": (
        spec(Reference, reduces_to=lambda task, settings: "reference"),
        "spec",
        "reduces_to",
    ),
    "validation": (spec(ReadsValidation), "splits", "'val'.*MethodSpec.splits"),
    "raises": (spec(Raises), "runs", "KeyError: 'margin' .broken_methods.py, line"),
    "numpy": (spec(Numpy), "global_state", "numpy's random state"),
    "batch": (spec(WritesImages), "global_state", "writes into its batch"),
    "optimiser": (spec(OwnOptimizer), "optimizers", "SGD.*setup.optimizer"),
    "vector": (spec(Vector), "shapes", "'loss' is no detached scalar"),
    "order": (spec(FloatOrder), "shapes", "indices from 0 to 39"),
    "logarithm": (spec(Logarithm), "finite", "'rate' of step 0 is -inf"),
    "another": (spec(TrainsAnother), "learns", "evaluated"),
    "grows": (spec(Grows), "checkpoint", "does not take its state dict"),
    "unlisted": (spec(Unlisted), "resume", "Phase.optimizers"),
    "caches": (spec(Caches), "predict", "judged between steps"),
    "centres": (spec(Centres), "predict", "depend on the others"),
    "thaws": (spec(Thaws), "regimes", "running_mean"),
    "unbiased": (spec(Unbiased), "class_of_one", "class with one sample"),
    "standardises": (spec(Standardises), "constant_features", "epsilon"),
    "divides": (spec(Divides), "zero_features", "safe_normalize"),
    "needs two": (spec(NeedsTwo), "batch_of_one", "second sample"),
    "exponentiates": (spec(Exponentiates), "large_logits", "logsumexp"),
    "low head": (spec(LowHead), "bf16", "bfloat16.*float32"),
    "draws alone": (spec(DrawsAlone, capabilities=DISTRIBUTED), "distributed", "world.rand"),
    "one rank talks": (
        spec(OneRankTalks, capabilities=DISTRIBUTED),
        "distributed",
        "same sequence of collective calls",
    ),
}
