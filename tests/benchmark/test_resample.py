"""Resizing: many images at once equal Pillow on each, and what is cut out is torchvision's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import CenterCrop, RandomResizedCrop, Resize
from torchvision.transforms import functional as F

from classfair import geometry
from classfair.recipe import Augmentation, Evaluation
from classfair.resample import Span, Store, coefficients, resize, resize_many

MODES = {"bilinear": F.InterpolationMode.BILINEAR, "bicubic": F.InterpolationMode.BICUBIC}


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def smooth(height: int, width: int) -> np.ndarray:
    """A picture without sharp edges, on which the order of two roundings hardly shows."""
    y, x = np.mgrid[:height, :width] / 20.0
    waves = np.stack([np.sin(x + y), np.cos(x - y), np.sin(x) * np.cos(y)], -1)
    return (127 + 120 * waves).astype(np.uint8)


def stored(images) -> Store:
    area = np.array([image.shape[0] * image.shape[1] for image in images])
    sides = (torch.tensor([image.shape[axis] for image in images]) for axis in (0, 1))
    pixels = np.concatenate([image.reshape(-1, image.shape[2]) for image in images])
    return Store(torch.from_numpy(pixels), torch.from_numpy(np.cumsum(area) - area), *sides)


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("channels", [1, 3])
def test_many_at_once_equal_one_by_one_to_the_last_bit(how, channels):
    rng = np.random.default_rng(1)
    for trial in range(12):
        size = (int(rng.integers(1, 40)), int(rng.integers(1, 40)))
        images, rows, columns = [], [], []
        for n in range(5):
            height, width = (int(v) for v in rng.integers(4, 70, 2))
            images.append(noise(height, width, channels, seed=trial * 10 + n))
            for spans, side, kept in ((rows, height, size[0]), (columns, width, size[1])):
                length, first, rest = (int(v) for v in rng.integers(1, (side + 1, 6, 6)))
                start = int(rng.integers(0, side - length + 1))
                spans.append(Span(start, length, kept + first + rest, first))
        index = torch.tensor([3, 0, 4, 1, 1, 2])
        order = index.tolist()
        found = resize_many(
            stored(images), index, [rows[i] for i in order], [columns[i] for i in order], size, how
        )
        for i, one in zip(order, found.numpy(), strict=True):
            assert (one == resize(images[i], rows[i], columns[i], size, how)).all()


@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize("length", [1, 2, 3, 7, 31, 64, 200])
@pytest.mark.parametrize("resized", [1, 2, 5, 32, 64, 100])
def test_weights_of_a_pixel_sum_to_one_and_stay_inside(how, length, resized):
    first, weights = coefficients(length, resized, 0, resized, how)
    assert abs(weights.sum(1) / 2**22 - 1).max() < 1e-5
    last = first + (weights != 0).cumsum(1).argmax(1)
    assert first.min() >= 0
    assert last.max() < length


@pytest.mark.parametrize("how", MODES)
def test_an_image_of_the_right_size_is_left_as_it_is(how):
    image = noise(9, 13, 3)
    assert (resize(image, Span(0, 9, 9), Span(0, 13, 13), (9, 13), how) == image).all()


@pytest.mark.parametrize("size", [(80, 60), (60, 80), (61, 61), (50, 113)])
@pytest.mark.parametrize("how", MODES)
@pytest.mark.parametrize(("short", "kept"), [(40, 32), (33, 32), (48, 48), (70, 57)])
def test_evaluation_is_torchvision_s_resize_and_centre_crop(size, how, short, kept):
    image = smooth(*size)
    evaluation = Evaluation(name="centre", resize=short, size=kept, interpolation=how)
    found = resize(image, *geometry.evaluated(evaluation, *size), (kept, kept), how)
    wanted = CenterCrop(kept)(Resize(short, MODES[how])(Image.fromarray(image)))
    assert found.shape == np.asarray(wanted).shape
    assert np.abs(found.astype(int) - np.asarray(wanted)).max() <= 2


def test_a_resized_crop_is_torchvision_s_given_its_box():
    image = smooth(90, 70)
    rows, columns = Span(11, 40, 32), Span(5, 50, 32)
    found = resize(image, rows, columns, (32, 32), "bilinear")
    wanted = F.resized_crop(Image.fromarray(image), 11, 5, 40, 50, [32, 32], MODES["bilinear"])
    assert np.abs(found.astype(int) - np.asarray(wanted)).max() <= 2


def drawn(augmentation: Augmentation, size: tuple[int, int], n: int = 4000) -> np.ndarray:
    """Boxes (top, left, height, width) of many rows."""
    rows = np.random.default_rng(0).random((n, geometry.COLUMNS)).tolist()
    parts = [geometry.random_part(augmentation, row, *size, (8, 8)) for row in rows]
    return np.array([(r.start, c.start, r.length, c.length) for r, c in parts])


@pytest.mark.parametrize("size", [(60, 80), (200, 30)])
def test_random_parts_are_distributed_as_torchvision_s(size):
    augmentation = Augmentation(name="random_resized_crop")
    boxes = drawn(augmentation, size)
    torch.manual_seed(0)
    image = torch.zeros(1, *size)
    theirs = np.array(
        [RandomResizedCrop.get_params(image, (0.08, 1.0), (3 / 4, 4 / 3)) for _ in range(1500)]
    )
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= size[0]).all()
    assert (boxes[:, 1] + boxes[:, 3] <= size[1]).all()
    spread = theirs.std(0) + 1e-9
    assert (np.abs(boxes.mean(0) - theirs.mean(0)) / spread < 0.12).all()
    assert (np.abs(boxes.std(0) - theirs.std(0)) / spread < 0.12).all()


def test_where_no_part_fits_the_middle_is_taken():
    augmentation = Augmentation(name="random_resized_crop", scale=(1.0, 1.0), ratio=(1.0, 1.0))
    for size, box in (((40, 100), (0, 30, 40, 40)), ((100, 40), (30, 0, 40, 40))):
        assert (drawn(augmentation, size, 5) == box).all()
    rows, columns = geometry.random_part(augmentation, [0.5] * geometry.COLUMNS, 30, 30, (9, 9))
    assert (rows, columns) == (Span(0, 30, 9), Span(0, 30, 9))


@pytest.mark.parametrize(
    ("size", "short", "wanted"),
    [((100, 50), 25, (50, 25)), ((333, 500), 256, (256, 384)), ((20, 30), 25, (20, 30))],
)
def test_the_short_side_is_brought_down_and_never_up(size, short, wanted):
    image = noise(*size, 3)
    assert geometry.with_short_side(image, short).shape[:2] == wanted
    assert geometry.with_short_side(image, None) is image


def test_areas_are_uniform_in_their_range():
    boxes = drawn(Augmentation(name="random_resized_crop", scale=(0.2, 0.6)), (500, 500), 2000)
    share = boxes[:, 2] * boxes[:, 3] / 500**2
    assert math.isclose(share.mean(), 0.4, abs_tol=0.01)
    assert share.min() > 0.195
    assert share.max() < 0.605
