"""The engine around the steps: augmentation, evaluation, checkpoints."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision import transforms

from classfair import checkpoint, evaluate
from classfair.augment import parameter_table
from classfair.cell import CHECKPOINT_SECONDS
from speed.figures import Row, Target
from speed.made import BATCH, Passes, opened, recipe, setup
from speed.measure import (
    Effort,
    Measured,
    Spread,
    compared,
    pairs,
    seconds,
    undisturbed,
)

TEST_IMAGES = 10_000
CLASSES = 100


def rows() -> list[Row]:
    """Return the rows."""
    return [
        Row(
            "augment",
            f"pad, crop, flip and normalise {BATCH} images of 32 x 32, one thread",
            "torchvision's transforms on PIL images",
            Target(8, "speedup"),
            augmentation,
            threads=1,
        ),
        Row(
            "evaluate",
            f"evaluation of {TEST_IMAGES:,} images, ResNet-20, {CLASSES} classes",
            "bare forward passes over batches made ready",
            Target(1.05),
            evaluation,
        ),
        Row(
            "checkpoint",
            f"{CHECKPOINT_SECONDS:g} s of training and a checkpoint: LfF, two ResNet-32",
            "no checkpoint",
            Target(1.01),
            checkpoints,
        ),
    ]


def augmentation(effort: Effort) -> Measured:
    """Time a batch's augmentation, its random numbers included."""
    images, how = opened(BATCH, 10).train.images, recipe().augmentation
    index, generator = torch.arange(BATCH), torch.Generator().manual_seed(0)
    pictures = [
        Image.fromarray(pixels)
        for pixels in np.random.default_rng(0).integers(0, 256, (BATCH, 32, 32, 3), dtype=np.uint8)
    ]
    usual = transforms.Compose(
        [
            transforms.RandomCrop(32, padding=4),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5,) * 3, (0.25,) * 3),
        ]
    )

    def ours() -> Tensor:
        return images.augmented(index, parameter_table(how, BATCH, generator))

    def rival() -> Tensor:
        return torch.stack([usual(picture) for picture in pictures])

    return compared(pairs(ours, rival, effort.pick(50, 3)))


def evaluation(effort: Effort) -> Measured:
    """Time the judging of a method against its network's forward passes alone."""
    data = opened(BATCH, CLASSES, test=effort.pick(TEST_IMAGES, 1_024))
    method, _ = setup("erm", data, recipe(backbone={"name": "resnet20"}))
    ready = [batch for batch, _ in evaluate.batches(data.test.images)]

    def ours() -> object:
        return evaluate.predictions(method, data.test, CLASSES, None, 0)

    def rival() -> None:
        method.eval()
        with torch.no_grad():
            for batch in ready:
                method.classifier(batch)

    return compared(pairs(ours, rival, effort.pick(7, 2)))


def checkpoints(effort: Effort) -> Measured:
    """Time a checkpoint of the method that keeps most, and spread it over its interval."""
    passes = Passes("lff", opened(BATCH, CLASSES), recipe())
    passes()
    with tempfile.TemporaryDirectory() as folder, undisturbed():
        path = Path(folder, "checkpoint.pt")

        def save() -> None:
            checkpoint.save(path, "0" * 64, passes.trainer.state())

        save()
        taken = [seconds(save) for _ in range(effort.pick(20, 2))]
    saved = Spread.of(taken)
    return Measured(
        ours=saved,
        ratio=Spread.of([1 + value / CHECKPOINT_SECONDS for value in taken]),
        note="ours is the checkpoint alone",
    )
