"""Predictions: thirds with ties, files that cannot lie about their lengths."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from classfair_registry.errors import ClassfairError
from classfair_registry.predictions import Predictions, load_arrays, membership, save_arrays


def made(labels: list[int], answers: list[int], classes: int = 3) -> Predictions:
    n = len(labels)
    nan, flat = np.full(n, np.nan), np.full(n, 0.5)
    per_class = np.ones(classes)
    return Predictions(
        index=np.arange(n),
        label=np.array(labels),
        top5=np.array(answers)[:, None],
        p_label=flat,
        p_other=flat,
        p_max=flat,
        z_label=flat,
        z_other=flat,
        mean_probability=np.full((classes, classes), 1 / classes),
        vector_norm=per_class,
        vector_angle=per_class,
        feature_mean_square=per_class,
        feature_spread=per_class,
        feature_collapse=per_class,
        temperature=np.array([np.nan]),
        p_label_scaled=nan,
        p_other_scaled=nan,
        p_max_scaled=nan,
        names=np.array([""] * n),
    )


def test_a_hundred_classes_are_cut_34_33_33():
    shares = membership(np.linspace(1, 0, 100))
    assert shares.sum(1).tolist() == [34, 33, 33]
    assert shares[0, :34].all()
    assert shares[2, 67:].all()


def test_a_tie_is_the_average_over_its_orders():
    scores = np.array([0.9, 0.5, 0.5, 0.5, 0.2])
    total = np.zeros((3, 5))
    orders = [o for o in itertools.permutations(range(5)) if (np.diff(scores[list(o)]) <= 0).all()]
    for order in orders:
        for third, part in enumerate(np.array_split(np.array(order), 3)):
            total[third, part] += 1 / len(orders)
    assert membership(scores) == pytest.approx(total)


@settings(derandomize=True, max_examples=50)
@given(st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0, np.nan]), min_size=1, max_size=20))
def test_every_ranked_class_is_shared_out_once(scores):
    shares = membership(scores)
    ranked = ~np.isnan(scores)
    assert shares.sum(0) == pytest.approx(ranked.astype(float))
    assert shares.sum(1) == pytest.approx(
        [len(part) for part in np.array_split(np.arange(ranked.sum()), 3)]
    )


def test_accuracy_is_per_class_and_blank_for_an_empty_one():
    found = made([0, 0, 1, 1], [0, 1, 1, 1])
    assert found.class_accuracy[:2].tolist() == [0.5, 1.0]
    assert np.isnan(found.class_accuracy[2])
    assert found.thirds[:, 2].tolist() == [0, 0, 0]


def test_another_ranking_moves_the_thirds():
    found = made([0, 1, 2], [0, 2, 2])
    assert found.third_mean(found.class_accuracy, "hard") == 0.0
    ranked = found.ranked_by(np.array([0.0, 1.0, 0.5]))
    assert ranked.third_mean(ranked.class_accuracy, "hard") == 1.0
    with pytest.raises(ValueError, match="2 scores for 3 classes"):
        found.ranked_by(np.zeros(2))


def test_a_file_comes_back_and_its_bytes_depend_on_the_arrays_alone(tmp_path):
    found = made([0, 1, 2], [0, 1, 1])
    found.save(tmp_path / "a.npz")
    found.save(tmp_path / "b.npz")
    back = Predictions.load(tmp_path / "a.npz")
    assert back.digest() == found.digest()
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert made([0, 1, 2], [0, 1, 2]).digest() != found.digest()


def test_a_torn_file_is_an_error_that_names_it(tmp_path):
    path = tmp_path / "predictions.npz"
    made([0, 1, 2], [0, 1, 1]).save(path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(ClassfairError, match=r"predictions\.npz"):
            Predictions.load(path)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("p_max", np.zeros(2), "p_max has length 2, not 3"),
        ("label", np.array([0, 1, 3]), "label is not within 0..2"),
        ("index", np.array([0, 1, 1]), "counted twice"),
    ],
)
def test_arrays_that_do_not_fit_together_are_refused(tmp_path, name, value, said):
    path = tmp_path / "predictions.npz"
    save_arrays(path, {**made([0, 1, 2], [0, 1, 1]).arrays(), name: value})
    with pytest.raises(ClassfairError, match=said):
        Predictions.load(path)


def test_objects_in_a_file_are_never_unpickled(tmp_path):
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ClassfairError, match="cannot be read"):
        load_arrays(path)
