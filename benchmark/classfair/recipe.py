"""A recipe: everything about a cell but its method and its seed, as strict values.

All of it is part of the run key but names, threads and the interval of logged losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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


class Counts(Strict):
    """A long-tailed training split: class k keeps n x ratio^(-x) images, rounded down.

    n is the size of the largest class. The first class keeps all of it, the last one n / ratio.

    Attributes:
        shape: ``exp``: x goes from 0 to 1 over the classes in the order of their labels (Cui et al.
            CVPR 2019); ``step``: it is 0 for the first half of them and 1 for the others (Buda et
            al. 2018).
        ratio: of the largest class to the smallest.
    """

    shape: Literal["exp", "step"]
    ratio: Annotated[float, Field(ge=1)]


class Data(Strict):
    """The data set and how its training split is cut.

    Attributes:
        name: of the data set.
        split: ``official`` or another one that the data set knows.
        fraction: share of each class's training images that is used at all.
        counts: a long tail, or null; after ``fraction``, before ``validation``.
        validation: share of each class's used training images set aside for selection and tuning.
        seed: of the cuts; the same for every method and every seed of a cell.
        short_side: pixels that the short side of every image is brought to when it is read (never
            up), or null. ``data prepare --cache`` stores images of that size; with and without
            such a store the numbers are the same.
        normalisation: mean and deviation of the channels: the data set's own, or those that
            pretrained weights expect.
        settings: of the data set's plugin.
    """

    name: str
    split: str = "official"
    fraction: Annotated[float, Field(gt=0, le=1)] = 1.0
    counts: Counts | None = None
    validation: Annotated[float, Field(ge=0, lt=1)] = 0.0
    seed: Annotated[int, Field(ge=0)] = 0
    short_side: Count | None = None
    normalisation: Literal["own", "imagenet", "clip", "half"] = "own"
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


Interpolation = Literal["bilinear", "bicubic"]
"""How pixels are computed when an image changes its size; both average where it shrinks."""


class Augmentation(Strict):
    """What happens to a training image: a crop, then perhaps a policy of colours and shears.

    Attributes:
        name: ``none`` (as in evaluation); ``crop_flip``: as in evaluation, then pad by ``pad``
            black pixels, crop at random, flip; ``random_resized_crop``: a part of random area and
            aspect ratio, brought to the evaluation's size, then flipped.
        pad: pixels on each side.
        flip: mirror half of the images.
        scale: area of the part, as a share of the image, from and to.
        ratio: width over height of the part, from and to.
        interpolation: of the resized crop.
        policy: ``randaugment`` (Cubuk et al. 2020) or ``autoaugment_NAME`` (Cubuk et al. 2019) with
            the policy found on that data set; the operations are torchvision's on PIL images.
        operations, magnitude: of RandAugment; the magnitude is one of 0 to 30.
    """

    name: Literal["none", "crop_flip", "random_resized_crop"] = "none"
    pad: Annotated[int, Field(ge=0)] = 4
    flip: bool = True
    scale: tuple[Share, Share] = (0.08, 1.0)
    ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    interpolation: Interpolation = "bilinear"
    policy: Literal["none", "randaugment", "autoaugment_cifar10", "autoaugment_imagenet"] = "none"
    operations: Count = 2
    magnitude: Annotated[int, Field(ge=0, le=30)] = 9

    @pydantic.field_validator("scale", "ratio", mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @pydantic.model_validator(mode="after")
    def _ordered(self) -> Augmentation:
        for name, (low, high) in (("scale", self.scale), ("ratio", self.ratio)):
            if not 0 < low <= high:
                raise ValueError(f"{name}: from {low} to {high} is no range above zero")
        return self


_EVALUATIONS: dict[str, dict[str, Any]] = {
    "stored": {},
    "imagenet": {"resize": 256, "size": 224, "interpolation": "bilinear"},
    "clip": {"resize": 224, "size": 224, "interpolation": "bicubic"},
    "mae": {"resize": 256, "size": 224, "interpolation": "bicubic"},
}


class Evaluation(Strict):
    """How an image is brought to the network's size in evaluation.

    Attributes:
        name: ``stored``: as it is, for data whose images have one size; ``centre``: the short side
            is brought to ``resize``, then the middle ``size`` x ``size`` is cut out. ``imagenet``
            (256, 224, bilinear), ``clip`` (224, 224, bicubic) and ``mae`` (256, 224, bicubic) are
            ``centre`` with the values of those papers' code.
        resize, size: pixels.
        interpolation: of the resize.
    """

    name: Literal["stored", "centre"] = "stored"
    resize: Count = 256
    size: Count = 224
    interpolation: Interpolation = "bilinear"

    @pydantic.model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        if isinstance(value, dict) and value.get("name") in _EVALUATIONS:
            name = "stored" if value["name"] == "stored" else "centre"
            return {**_EVALUATIONS[value["name"]], **value, "name": name}
        return value

    @pydantic.model_validator(mode="after")
    def _fits(self) -> Evaluation:
        if self.name == "centre" and self.size > self.resize:
            raise ValueError(f"size {self.size} cannot be cut out of resize {self.resize}")
        return self


NORMALISATIONS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "clip": (
        (0.48145466, 0.4578275, 0.40821073),
        (0.26862954, 0.26130258, 0.27577711),
    ),
    "half": ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
}
"""Mean and deviation of the channels by name; ``own`` is the data set's."""


def look_problems(shape: tuple[int, int, int], data: Data, evaluation: Evaluation) -> Iterator[str]:
    """Yield why images of a data set cannot be seen as a recipe says.

    Args:
        shape: (channels, height, width) of the data set's images, 0 where it varies.
        data: the recipe's part about the data set.
        evaluation: its part about evaluation.
    """
    varies = 0 in shape[1:]
    if varies and evaluation.name == "stored":
        known = ", ".join(name for name in _EVALUATIONS if name != "stored")
        yield f"its images have no common size; set eval.name ({known} or centre)"
    if data.short_side is not None and not varies:
        yield "its images have one size; leave data.short_side out"
    shrinks = data.short_side is not None and evaluation.name == "centre"
    if shrinks and evaluation.resize > (data.short_side or 0):
        yield (
            f"data.short_side {data.short_side} is below eval.resize {evaluation.resize}: images "
            "would be made small and large again"
        )
    if data.normalisation != "own" and shape[0] != 3:
        yield f"normalisation {data.normalisation} is for colour images; its images are grey"


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


PROVENANCE: Any = {"name": True, "caption": True, "threads": True, "trace": {"losses"}}
"""What of a recipe changes no number, as pydantic's ``exclude`` takes it."""


class Recipe(Strict):
    """Everything but method and seed.

    Attributes:
        name: for people and folders; not in the key.
        caption: a sentence under each table of it; not in the key.
        data, backbone, optimizer, schedule, augmentation, eval, trace: see there.
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
    eval: Evaluation = Evaluation()
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

        Threads and the interval of logged losses are provenance. Defaults are left out, so that a
        setting that a later version adds changes no key; a default that changes its meaning moves
        the protocol.
        """
        kept = self.model_dump(mode="json", exclude=PROVENANCE, exclude_defaults=True)
        return {name: value for name, value in kept.items() if value != {}}
