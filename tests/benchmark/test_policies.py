"""RandAugment, AutoAugment and their operations: torchvision's on PIL images, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import AutoAugment, AutoAugmentPolicy, InterpolationMode
from torchvision.transforms.autoaugment import RandAugment, _apply_op

from classfair import pixel_ops, policies
from classfair.recipe import Augmentation

OPS = (*policies.RAND_OPS, "Invert")
RAND = Augmentation(policy="randaugment")
AUTO = Augmentation(policy="autoaugment_cifar10")


def pictures(channels: int = 3, height: int = 15, width: int = 22) -> np.ndarray:
    """Noise, faint noise, a plain image, one with a plain channel, and a ramp."""
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (5, height, width, channels), np.uint8)
    images[1] = images[1] // 3 + 40
    images[2] = 7
    images[3, :, :, 0] = 200
    images[4] = np.arange(width, dtype=np.uint8)[:, None]
    return images


def by_torchvision(image: np.ndarray, op: str, magnitude: float) -> np.ndarray:
    picture = Image.fromarray(image if image.shape[2] == 3 else image[..., 0])
    found = _apply_op(picture, op, magnitude, InterpolationMode.NEAREST, None)
    return np.asarray(found).reshape(image.shape)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("op", OPS)
def test_an_operation_is_torchvision_s_on_pil_images(op, channels):
    images = pictures(channels)
    for number in (0, 1, 4, 9):
        for negative in (False, True):
            strength = policies.magnitude(op, number, 10, (15, 22), negative=negative)
            found = pixel_ops.apply(op, torch.from_numpy(images), [strength] * len(images))
            for image, one in zip(images, found.numpy(), strict=True):
                assert (one == by_torchvision(image, op, strength)).all()


def test_each_image_of_a_batch_has_its_own_magnitude():
    images = pictures()
    strengths = [0.0, 9.5, -30.0, 12.0, 3.0]
    found = pixel_ops.apply("Rotate", torch.from_numpy(images), strengths).numpy()
    for image, one, strength in zip(images, found, strengths, strict=True):
        assert (one == by_torchvision(image, "Rotate", strength)).all()


@pytest.mark.parametrize("bins", [10, 31])
def test_magnitudes_are_torchvision_s(bins):
    theirs = AutoAugment()._augmentation_space(bins, (15, 22))
    rand = RandAugment()._augmentation_space(bins, (15, 22))
    assert set(rand) == set(policies.RAND_OPS)
    assert {op: signed for op, (_, signed) in rand.items()} == {
        op: policies.magnitude(op, 5, bins, (15, 22), negative=True) < 0 for op in policies.RAND_OPS
    }
    for op, (values, _) in theirs.items():
        for number in range(bins if values.ndim else 0):
            ours = policies.magnitude(op, number, bins, (15, 22), negative=False)
            assert ours == float(values[number])


def test_randaugment_applies_the_operations_of_its_rows():
    images = pictures()
    count = len(policies.RAND_OPS)
    chosen = [("Rotate", "Equalize"), ("Identity", "Color"), ("ShearX", "ShearX")]
    chosen += [("Solarize", "Posterize"), ("Contrast", "Identity")]
    rows = torch.tensor(
        [[*((policies.RAND_OPS.index(op) + 0.5) / count for op in ops), 0.2, 0.8] for ops in chosen]
    )
    found = policies.apply(RAND, torch.from_numpy(images), rows).numpy()
    for image, ops, one in zip(images, chosen, found, strict=True):
        for op, negative in zip(ops, (True, False), strict=True):
            strength = policies.magnitude(op, 9, 31, (15, 22), negative=negative)
            image = by_torchvision(image, op, strength)  # noqa: PLW2901 - one after the other
        assert (one == image).all()


@pytest.mark.parametrize("name", ["cifar10", "imagenet"])
def test_autoaugment_applies_the_sub_policy_of_its_row(name):
    augmentation = Augmentation(policy=f"autoaugment_{name}")
    listed = AutoAugment(AutoAugmentPolicy(name)).policies
    images = np.repeat(pictures()[:1], len(listed), axis=0)
    draws = torch.rand(len(listed), 5, generator=torch.Generator().manual_seed(3))
    draws[:, 0] = (torch.arange(len(listed)) + 0.5) / len(listed)
    found = policies.apply(augmentation, torch.from_numpy(images), draws).numpy()
    changed = 0
    for image, one, row, steps in zip(images, found, draws.tolist(), listed, strict=True):
        wanted = image
        for n, (op, probability, number) in enumerate(steps):
            if row[1 + n] <= probability:
                negative = row[3 + n] < 0.5
                strength = policies.magnitude(op, number or 0, 10, (15, 22), negative=negative)
                wanted = by_torchvision(wanted, op, strength)
        assert (one == wanted).all()
        changed += (one != image).any()
    assert changed > len(listed) / 2


@pytest.mark.parametrize("augmentation", [RAND, AUTO])
def test_a_policy_does_not_depend_on_batches_and_leaves_its_input_alone(augmentation):
    images = torch.from_numpy(np.repeat(pictures(), 4, axis=0))
    before = images.clone()
    rows = policies.table(augmentation, len(images), torch.Generator().manual_seed(0))
    whole = policies.apply(augmentation, images, rows)
    parts = [policies.apply(augmentation, images[n : n + 7], rows[n : n + 7]) for n in (0, 7, 14)]
    assert torch.equal(torch.cat(parts), whole)
    assert torch.equal(images, before)
    assert not torch.equal(whole, before)
    assert policies.apply(augmentation, images[:0], rows[:0]).shape == (0, *images.shape[1:])


def test_operations_are_drawn_alike_often():
    rows = policies.table(RAND, 7000, torch.Generator().manual_seed(0))
    drawn = (rows[:, :2] * len(policies.RAND_OPS)).long().flatten()
    counts = torch.bincount(drawn, minlength=len(policies.RAND_OPS))
    assert counts.min() > 900
    assert counts.max() < 1100
