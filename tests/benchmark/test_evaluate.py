"""Judging: every stored number against a slow version, image by image."""

from __future__ import annotations

import made
import numpy as np
import pytest
import torch
from torch import nn

from classfair import evaluate
from classfair.data import open_data
from classfair_registry.errors import Diverged
from classfair_registry.plain import BaseMethod


class Fixed(BaseMethod):
    """A classifier of pixel sums with given weights."""

    def __init__(self, weights: torch.Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(6, len(weights), bias=False)
        self.head.weight.data = weights
        self.features = lambda images: images.mean((1, 3))
        self.class_vectors = lambda: self.head.weight

    def evaluated(self):
        return self


def judged(validation: float = 0.0):
    recipe = made.recipe(data={"name": "made", "validation": validation})
    data = open_data(made.dataset(test=30), recipe.data, None, made.CPU)
    noise = torch.randn(3, 6, generator=torch.Generator().manual_seed(1))
    method = Fixed(2 * torch.eye(6)[::2] + noise)
    return method, data, evaluate.predictions(method, data.test, 3, data.val, 5)


def logits_of(method, part):
    images = part.images.plain(torch.arange(len(part)))
    features = method.features(images)
    return features.double(), method.head(features).detach().double()


def test_each_image_is_judged_as_by_hand():
    method, data, found = judged()
    _, logits = logits_of(method, data.test)
    for i, (row, label) in enumerate(zip(logits, data.test.images.labels, strict=True)):
        p = row.softmax(0)
        others = [k for k in range(3) if k != label]
        assert found.top5[i].tolist() == row.argsort(descending=True).tolist()
        assert found.p_label[i] == pytest.approx(float(p[label]))
        assert found.p_other[i] == pytest.approx(float(max(p[k] for k in others)))
        assert found.p_max[i] == pytest.approx(float(p.max()))
        assert found.z_label[i] == pytest.approx(float(row[label]))
        assert found.z_other[i] == pytest.approx(float(max(row[k] for k in others)))
    assert found.index.tolist() == list(range(30))
    found.check("here")


def test_classes_are_described_as_by_hand():
    method, data, found = judged()
    features, logits = logits_of(method, data.test)
    means = torch.stack([features[data.test.images.labels == k].mean(0) for k in range(3)])
    for k in range(3):
        own = features[data.test.images.labels == k]
        spread = float((own - means[k]).square().sum(1).mean())
        assert found.feature_mean_square[k] == pytest.approx(float(means[k].square().sum()))
        assert found.feature_spread[k] == pytest.approx(spread)
        centre = float((means[k] - means.mean(0)).square().sum())
        assert found.feature_collapse[k] == pytest.approx(spread / centre)
        mean = logits[data.test.images.labels == k].softmax(1).mean(0)
        assert found.mean_probability[k] == pytest.approx(mean.numpy())
        vectors = method.head.weight.detach().double().numpy()
        others = [vectors[j] for j in range(3) if j != k]
        cosines = [v @ vectors[k] / np.linalg.norm(v) / np.linalg.norm(vectors[k]) for v in others]
        assert found.vector_norm[k] == pytest.approx(np.linalg.norm(vectors[k]))
        assert found.vector_angle[k] == pytest.approx(np.degrees(np.arccos(max(cosines))))


def test_without_validation_there_is_no_temperature():
    _, _, found = judged()
    assert np.isnan(found.temperature).all()
    assert np.isnan(found.p_label_scaled).all()


def test_the_temperature_maximises_the_likelihood_of_validation():
    method, data, found = judged(validation=0.4)
    _, logits = logits_of(method, data.val)
    labels = data.val.images.labels

    def likelihood(temperature: float) -> float:
        return -float(nn.functional.cross_entropy(logits / temperature, labels))

    best = float(found.temperature[0])
    assert likelihood(best) >= likelihood(best * 1.01)
    assert likelihood(best) >= likelihood(best / 1.01)
    _, test = logits_of(method, data.test)
    expected = (test / best).softmax(1).gather(1, data.test.images.labels[:, None])[:, 0]
    assert found.p_label_scaled == pytest.approx(expected.numpy())


def test_the_batch_size_changes_nothing(monkeypatch):
    _, _, whole = judged()
    monkeypatch.setattr(evaluate, "BATCH", 7)
    _, _, small = judged()
    for name, array in whole.arrays().items():
        if array.dtype.kind == "f":
            assert small.arrays()[name] == pytest.approx(array, nan_ok=True), name
        else:
            assert (small.arrays()[name] == array).all(), name


def test_a_logit_that_is_not_finite_is_a_divergence():
    method, data, _ = judged()
    method.head.weight.data[0, 0] = torch.nan
    with pytest.raises(Diverged, match="test logit"):
        evaluate.predictions(method, data.test, 3, None, 5)
