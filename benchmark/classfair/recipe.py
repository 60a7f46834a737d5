"""A recipe: everything about a cell but its method and its seed, as strict values.

All of it is part of the run key but names, threads and the interval of logged losses.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class Strict(pydantic.BaseModel):
    """Frozen, without coercion (an int may stand for a float), unknown keys refused."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, strict=True)


class Data(Strict):
    """The data set and how its training split is cut.

    Attributes:
        name: of the data set.
        split: ``official`` or another one that the data set knows.
        fraction: share of each class's training images that is used at all.
        validation: share of each class's used training images set aside for selection and tuning.
        seed: of the two cuts; the same for every method and every seed of a cell.
        settings: of the data set's plugin.
    """

    name: str
    split: str = "official"
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    settings: dict[str, Any] = {}


class Backbone(Strict):
    """The network.

    Attributes:
        name: of the backbone.
        head: ``default`` is the backbone's own choice.
        scale: of a cosine head's logits.
        weights: name of the weights to start from, or null for random ones.
        settings: of the backbone's plugin.
    """

    name: str
    head: Literal["default", "linear", "cosine"] = "default"
    scale: Positive = 16.0
    weights: str | None = None
    settings: dict[str, Any] = {}


class Optimizer(Strict):
    """The update rule. ``clip`` bounds the global gradient norm, null leaves it."""

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Positive = 0.1
    momentum: Share = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Positive = 1e-8
    weight_decay: NotNegative = 5e-4
    clip: Positive | None = None

    @pydantic.field_validator("betas", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class Schedule(Strict):
    """The learning rate as a function of a phase's progress.

    Attributes:
        name: after the warm-up: ``cosine`` to ``floor``, ``constant``, or ``step``.
        warmup: linear from 0: a share of the phase.
        floor: last learning rate of the cosine as a share of the first.
        milestones: progress at which a step schedule multiplies by ``gamma``.
        gamma: factor of a step schedule.
    """

    name: Literal["cosine", "constant", "step"] = "cosine"
    warmup: Share = 0.0
    floor: Share = 0.0
    milestones: tuple[Share, ...] = ()
    gamma: Positive = 0.1

    @pydantic.field_validator("milestones", mode="before")
    @classmethod
    def _list(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class Augmentation(Strict):
    """What happens to a training image.

    Attributes:
        name: ``none``, or ``crop_flip``: pad by ``pad`` black pixels, crop at random, flip.
        pad: pixels on each side.
        flip: mirror half of the images.
    """

    name: Literal["none", "crop_flip"] = "none"
    pad: Annotated[int, Field(ge=0)] = 4
    flip: bool = True


class Trace(Strict):
    """What is written down during training.

    Attributes:
        points: fractions of the run at which the per-class curves are taken; 0 for none.
        images: at most so many images, spread over the classes, for the curves.
        losses: steps between two logged losses.
    """

    points: Annotated[int, Field(ge=0)] = 30
    images: Count = 512
    losses: Count = 10


class Recipe(Strict):
    """Everything but method and seed.

    Attributes:
        name: for people and folders; not in the key.
        caption: a sentence under each table of it; not in the key.
        data, backbone, optimizer, schedule, augmentation, trace: see there.
        regime: train from scratch, finetune everything, or probe a frozen backbone.
        batch_size: global, over all processes of a cell.
        epochs: passes over the training split.
        precision: of the backbone; heads and losses are always float32.
        determinism: ``off``, ``seeded``, or ``strict`` (deterministic kernels on CUDA).
        threads: of a CPU cell; never a function of load, since sums depend on it.
        selection: ``last``, or the best pass on validation by a metric.
        keep: whether the judged weights are kept.
    """

    name: str
    caption: str = ""
    data: Data
    backbone: Backbone
    regime: Literal["scratch", "finetune", "probe"] = "scratch"
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    batch_size: Count = 128
    epochs: Count
    augmentation: Augmentation = Augmentation()
    precision: Literal["fp32", "bf16"] = "fp32"
    determinism: Literal["off", "seeded", "strict"] = "seeded"
    threads: Count = 1
    selection: Literal["last", "best:overall", "best:mean_class", "best:worst"] = "last"
    keep: Literal["none", "last"] = "none"
    trace: Trace = Trace()

    @pydantic.field_validator("name")
    @classmethod
    def _safe(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", value):
            raise ValueError("use lower-case letters, digits and underscores, 40 at most")
        return value

    @pydantic.model_validator(mode="after")
    def _validation_to_select(self) -> Recipe:
        if self.selection != "last" and not self.data.validation:
            raise ValueError(f"selection {self.selection} needs data.validation above 0")
        return self

    def keyed(self) -> dict[str, Any]:
        """Return the part that can change a number, as JSON values.

        Threads and the interval of logged losses are provenance.
        """
        out = {"name": True, "caption": True, "threads": True, "trace": {"losses"}}
        return self.model_dump(mode="json", exclude=out)
