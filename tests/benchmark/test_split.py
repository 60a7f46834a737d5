"""Which images a cell trains on, and whether labels are what they should be."""

import numpy as np
import pytest

from classfair.data import check_labels, cut
from classfair.split import sizes
from classfair_registry.errors import DataBad, UsageError

LABELS = np.repeat(np.arange(3), (8, 20, 4))[np.random.default_rng(0).permutation(32)]


def test_a_cut_is_stratified_disjoint_and_ascending():
    train, val = cut(LABELS, 3, fraction=0.5, validation=0.25, seed=3)
    assert np.bincount(LABELS[train]).tolist() == [3, 7, 1]
    assert np.bincount(LABELS[val]).tolist() == [1, 3, 1]
    assert not set(train) & set(val)
    assert train.tolist() == sorted(train)
    assert val.tolist() == sorted(val)


def test_everything_is_used_without_fraction_and_validation():
    train, val = cut(LABELS, 3, fraction=1.0, validation=0.0, seed=0)
    assert train.tolist() == list(range(32))
    assert val.tolist() == []


def test_a_cut_is_the_same_on_every_machine_and_in_every_version():
    train, val = cut(np.arange(24) % 2, 2, fraction=0.5, validation=0.34, seed=7)
    assert train.tolist() == [8, 11, 14, 15, 17, 20, 21, 22]
    assert val.tolist() == [1, 6, 10, 19]


def test_a_smaller_fraction_is_part_of_a_larger_one():
    few, _ = cut(LABELS, 3, fraction=0.25, validation=0.0, seed=1)
    many, _ = cut(LABELS, 3, fraction=0.75, validation=0.0, seed=1)
    assert set(few) < set(many)


def test_seeds_differ_and_no_class_moves_another():
    first, _ = cut(LABELS, 3, fraction=0.5, validation=0.0, seed=0)
    second, _ = cut(LABELS, 3, fraction=0.5, validation=0.0, seed=1)
    assert first.tolist() != second.tolist()
    relabelled = np.where(LABELS == 2, 1, LABELS)
    third, _ = cut(relabelled, 2, fraction=0.5, validation=0.0, seed=0)
    assert [i for i in first if LABELS[i] == 0] == [i for i in third if LABELS[i] == 0]


@pytest.mark.parametrize(
    ("images", "fraction", "validation", "expected"),
    [
        (100, 0.285, 0.0, (29, 0)),  # 28.499999999999996 as floats multiply
        (5, 0.5, 0.0, (3, 0)),
        (3, 0.1, 0.0, (1, 0)),
        (10, 1.0, 0.25, (7, 3)),
        (3, 1.0, 0.1, (2, 1)),
        (6000, 0.1, 0.1, (540, 60)),
        (0, 0.5, 0.0, (0, 0)),
    ],
)
def test_shares_round_half_up_and_never_to_nothing(images, fraction, validation, expected):
    assert sizes(images, fraction, validation) == expected


@pytest.mark.parametrize(("fraction", "validation"), [(0.25, 0.1), (1.0, 0.9)])
def test_a_class_left_without_training_images_is_named(fraction, validation):
    with pytest.raises(UsageError, match="class 2 has 4 training images"):
        cut(LABELS, 3, fraction=fraction, validation=validation, seed=0)


# -- labels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        ([1, 2, 3], "from 1 to 3, but 3 classes are labelled 0 to 2; they count from 1: subtract"),
        ([-1, 0, 1], "from -1 to 1.*1 was subtracted from labels that counted from 0 already"),
        ([0, 1, 7], "from 0 to 7"),
        ([0, 0, 2], "no image of class 1; labels run from 0 to 2"),
        ([], "no labels"),
    ],
)
def test_wrong_labels_are_refused_with_their_cause(labels, says):
    with pytest.raises(DataBad, match=f"here: .*{says}"):
        check_labels(np.array(labels, dtype=np.int64), 3, "here")


def test_labels_that_are_no_integers_are_refused():
    with pytest.raises(DataBad, match="float64"):
        check_labels(np.array([0.0, 1.0, 2.0]), 3, "here")  # type: ignore[arg-type] # on purpose


def test_a_class_may_be_absent_from_a_test_split():
    check_labels(np.array([0, 2]), 3, "here", every=False)


def test_many_absent_classes_are_counted():
    with pytest.raises(DataBad, match="class 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 8 more"):
        check_labels(np.array([0, 19]), 20, "here")
