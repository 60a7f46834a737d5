"""Halves of the test images, and accuracies on them."""

import numpy as np

from classfair_registry.crossfit import SPLITS, half_accuracy, halves

LABEL = np.array([2, 0, 1, 1, 0, 2, 2, 2, 0, 1, 2, 3])


def test_every_class_is_cut_into_halves_that_differ_by_one_image_at_most() -> None:
    first = halves(LABEL, "data")
    assert first.shape == (SPLITS, len(LABEL))
    for split in first:
        assert np.bincount(LABEL[split]).tolist() == [2, 2, 3, 1]


def test_splits_depend_on_the_seed_alone_and_are_these_for_ever() -> None:
    assert np.array_equal(halves(LABEL, "data"), halves(LABEL, "data"))
    assert not np.array_equal(halves(LABEL, "data"), halves(LABEL, "other data"))
    # Written down once: a change of numpy's generator must not move published numbers.
    assert np.packbits(halves(LABEL, "data", 3)).tobytes().hex() == "76bf2bf1b0"


def test_splits_differ_from_one_another() -> None:
    assert len(np.unique(halves(np.repeat(np.arange(5), 20), "data"), axis=0)) == SPLITS


def test_accuracies_on_the_halves_are_as_counted_by_hand() -> None:
    label = np.array([0, 0, 0, 1, 1, 2])
    right = np.array([1.0, 0.5, 0.0, 1.0, 0.0, 1.0])
    first = np.array([[1, 1, 0, 1, 0, 1], [0, 1, 1, 0, 1, 0]], bool)
    found = half_accuracy(right, label, first, 4)
    nan = np.nan
    expected = [
        [[0.75, 1.0, 1.0, nan], [0.0, 0.0, nan, nan]],
        [[0.25, 0.0, nan, nan], [1.0, 1.0, 1.0, nan]],
    ]
    np.testing.assert_array_equal(found, expected)
