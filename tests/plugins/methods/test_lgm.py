"""LGM: distances, margin and its ramp, likelihood, and the classifier that is judged."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import PLAIN, assert_ranks_equal_one, batch, close, f64, losses, make, weights
from torch import Tensor, nn

from classfair_plugins.methods import lgm
from classfair_registry.settings import build, describe, resolve
from classfair_registry.testing import Position, Toy, load, save, train

(SPEC,) = lgm.classfair_methods()


def made(toy: Toy, **chosen):
    """Make the method; ``lambda_`` is the setting of that name, which is no name in Python."""
    return make(SPEC, toy, **{name.rstrip("_"): value for name, value in chosen.items()})


def chosen_settings(**chosen) -> lgm.Settings:
    return build(lgm.Settings, resolve(describe(lgm.Settings), chosen, "test"))


class Fixed(nn.Module):
    """A backbone that gives its parameter as features."""

    def __init__(self, features: Tensor) -> None:
        super().__init__()
        self.inputs = nn.Parameter(features.clone())

    def forward(self, images: Tensor) -> Tensor:
        return self.inputs


def with_features(features: Tensor, means: Tensor, logs: Tensor | None = None, **chosen):
    """Return a method that is given features [B, D] and has means and log-variances [K, D]."""
    covariance = "identity" if logs is None else "diagonal"
    method = made(Toy(counts=(5,) * len(means)), covariance=covariance, ramp=0, **chosen)
    head = method.classifier.head
    head.means = nn.Parameter(means.clone())
    if logs is not None:
        head.log_variances = nn.Parameter(logs.clone())
    method.classifier.backbone = Fixed(features)
    return method


def test_identity_covariance_is_the_worked_example(worked_example):
    example = worked_example("lgm-1")
    inputs, expected = example["inputs"], example["expected"]
    features, means, labels = f64(inputs["features"]), f64(inputs["means"]), inputs["labels"]
    method = with_features(features, means, alpha=inputs["alpha"], lambda_=inputs["lam"])
    distance = lgm.distances(features, means, None)
    close(example, distance, expected["half_sq_dist"])
    a = torch.tensor(inputs["alpha"], dtype=torch.float64)
    logits = lgm.with_margin(distance, torch.zeros(2), torch.tensor(labels), a)
    close(example, logits, expected["logits_train"])
    each = F.cross_entropy(logits, torch.tensor(labels), reduction="none")
    close(example, each, expected["ce_per_sample"])
    terms = method.loss(batch(labels))
    terms["loss"].backward()
    close(example, terms["ce"], expected["L_cls"])
    close(example, terms["likelihood"], expected["L_lkd"])
    close(example, terms["loss"], expected["total"])
    close(example, method.classifier.backbone.inputs.grad, expected["feature_grad"])
    close(example, method.predict(torch.zeros(2)), expected["logits_test"])


def test_the_ramp_is_the_worked_example(worked_example):
    example = worked_example("lgm-3")
    progress = f64(example["inputs"]["iterations"]) / 120_000
    close(example, lgm.margin(progress, chosen_settings()), example["expected"]["alpha"])


def test_the_margin_never_passes_alpha_and_can_be_constant():
    progress = torch.linspace(0, 1, 50)
    constant = lgm.margin(progress, chosen_settings(ramp=0, alpha=0.7))
    assert torch.equal(constant, torch.full_like(progress, 0.7))
    below_start = lgm.margin(progress, chosen_settings(alpha=0.0))
    assert torch.equal(below_start, torch.zeros_like(progress))
    ramp = lgm.margin(progress, chosen_settings(ramp=4, alpha=0.5, alpha_start=0.1))
    assert (ramp.diff() >= 0).all()
    assert sorted(set(ramp.tolist())) == pytest.approx([0.1, 0.2, 0.4, 0.5])


def slow(features, labels, means, variances, alpha, lambda_):
    """Return the loss by the definition, with a loop over samples, classes and dimensions."""
    total = 0.0
    for x, label in zip(features, labels, strict=True):
        scores = []
        for k, (mu, var) in enumerate(zip(means, variances, strict=True)):
            parts = zip(x, mu, var, strict=True)
            distance = sum((a - b) ** 2 / v for a, b, v in parts) / 2
            half_log_det = sum(math.log(v) for v in var) / 2
            scores.append(-distance * (1 + alpha * (k == label)) - half_log_det)
            if k == label:
                total += lambda_ * (distance + half_log_det)
        top = max(scores)
        total += top + math.log(sum(math.exp(s - top) for s in scores)) - scores[label]
    return total / len(labels)


@pytest.mark.parametrize("covariance", ["identity", "diagonal"])
def test_the_loss_equals_its_definition_sample_by_sample(covariance):
    means = torch.randn(4, 3, dtype=torch.float64)
    logs = torch.randn(4, 3, dtype=torch.float64) if covariance == "diagonal" else None
    variances = torch.ones_like(means) if logs is None else logs.exp()
    for labels in ([0, 1, 1, 3, 0], [2], [3, 3, 2, 0, 1]):
        features = 2 * torch.randn(len(labels), 3, dtype=torch.float64) + 5
        method = with_features(features, means, logs, alpha=0.5, lambda_=0.2)
        expected = slow(features.tolist(), labels, means.tolist(), variances.tolist(), 0.5, 0.2)
        assert method.loss(batch(labels))["loss"].item() == pytest.approx(expected, rel=1e-6)
        # Progress is float32; the distances themselves are exact.
        squares = (features[:, None] - means).square() / variances
        found = lgm.distances(features, means, logs)
        torch.testing.assert_close(found, squares.sum(2) / 2, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("learned", [False, True])
def test_features_means_and_variances_pass_gradcheck(learned):
    features, means, logs = (
        torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (4, 3, 3)
    )
    labels, a = torch.tensor([0, 2, 2, 1]), torch.tensor(0.4, dtype=torch.float64)

    def loss(x: Tensor, mu: Tensor, log_var: Tensor | None = None) -> Tensor:
        distance = lgm.distances(x, mu, log_var)
        half = log_var.sum(1) / 2 if log_var is not None else torch.zeros(3)
        own = distance.gather(1, labels[:, None])[:, 0] + half[labels]
        return F.cross_entropy(lgm.with_margin(distance, half, labels, a), labels) + own.mean()

    inputs = (features, means, logs) if learned else (features, means)
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_without_margin_and_likelihood_it_is_a_linear_softmax_with_a_tied_bias(dtype, rtol):
    features, means = torch.randn(6, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    labels = [0, 1, 2, 2, 1, 0]
    method = with_features(features, means, alpha=0.0, lambda_=0.0)
    loss = method.loss(batch(labels))["loss"]
    x, mu = method.classifier.backbone.inputs, method.classifier.head.means
    linear = F.cross_entropy(x @ mu.T - mu.square().sum(1) / 2, torch.tensor(labels))
    torch.testing.assert_close(loss, linear, rtol=10 * rtol, atol=0)
    found, wanted = (torch.autograd.grad(value, [x, mu]) for value in (loss, linear))
    torch.testing.assert_close(found, wanted, rtol=10 * rtol, atol=rtol)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.floats(-50, 50), st.booleans(), st.integers(0, 99))
def test_the_loss_ignores_a_common_shift_of_features_and_means(shift, learned, seed):
    drawn = torch.Generator().manual_seed(seed)
    features, means, logs = (
        torch.randn(n, 3, generator=drawn, dtype=torch.float64) for n in (5, 4, 4)
    )
    found = [
        with_features(features + by, means + by, logs if learned else None)
        .loss(batch([0, 1, 2, 3, 3]))["loss"]
        .item()
        for by in (0.0, shift)
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-9)


def test_a_common_offset_costs_no_digits_in_float32():
    features, means = torch.randn(5, 8), torch.randn(4, 8)
    for logs in (None, torch.randn(4, 8)):
        precise = None if logs is None else logs.double()
        exact = lgm.distances(features.double(), means.double(), precise)
        moved = lgm.distances(features + 1000, means + 1000, logs)
        # The shifted inputs themselves are rounded to 6e-5.
        torch.testing.assert_close(moved, exact.float(), rtol=2e-3, atol=1e-3)


def test_distances_are_never_negative():
    points = torch.randn(50, 16) * 100
    distance = lgm.distances(points, points, None)
    assert (distance >= 0).all()
    assert distance.diagonal().max() < 1e-1


def test_the_margin_is_in_training_logits_only_and_vanishes_at_the_mean():
    features, means = f64([[1.0, 0], [0, 0]]), f64([[0.0, 0], [2, 0]])
    large, none = (with_features(features, means, alpha=alpha) for alpha in (0.9, 0.0))
    assert torch.equal(large.predict(torch.zeros(2)), none.predict(torch.zeros(2)))
    distance, labels = lgm.distances(features, means, None), torch.tensor([0, 0])
    a = torch.tensor(0.9, dtype=torch.float64)
    trained = lgm.with_margin(distance, torch.zeros(2), labels, a)
    torch.testing.assert_close(trained, f64([[-0.95, -0.5], [0, -2]]))


def test_the_judged_classifier_has_features_means_and_logits_without_margin():
    toy = Toy(network=PLAIN)
    method = made(toy, covariance="diagonal")
    losses(method, toy)
    method.eval()
    judged, images = method.evaluated(), toy.train.images
    with torch.no_grad():
        features = judged.features(images)
        means, logs = judged.class_vectors(), judged.head.log_variances
        expected = -lgm.distances(features, means, logs) - logs.sum(1) / 2
        torch.testing.assert_close(method.predict(images), expected)
        torch.testing.assert_close(judged.head(features), expected)
    assert means.shape == (3, judged.backbone.num_features)
    assert (expected.argmax(1) == toy.train.labels).float().mean() > 0.8


def test_it_starts_from_the_backbone_and_directions_that_other_methods_start_from():
    toy = Toy(network=PLAIN)
    method, other = made(toy), toy.classifier()
    means, vectors = method.classifier.class_vectors(), other.class_vectors()
    torch.testing.assert_close(F.normalize(means), F.normalize(vectors))
    assert means.square().mean().item() == pytest.approx(2 / means.shape[1])
    assert torch.equal(lgm.initial_means(torch.zeros(2, 3)), torch.zeros(2, 3))
    torch.testing.assert_close(
        dict(method.classifier.backbone.named_parameters()),
        dict(other.backbone.named_parameters()),
    )


def test_variances_stay_above_their_floor_and_can_grow_again():
    toy = Toy(network=PLAIN)
    method = made(toy, covariance="diagonal", floor=0.5, lambda_=1.0)
    logs = method.classifier.head.log_variances
    logs.data.fill_(-3.0)
    method.phases()[0].step(toy.batch())
    assert logs.min().item() == pytest.approx(math.log(0.5))
    # Features far from the means: the likelihood asks for larger variances, and gets them.
    method.classifier.head.means.data.fill_(20.0)
    for _ in range(5):
        method.phases()[0].step(toy.batch())
    assert (logs > math.log(0.5)).any()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("covariance", ["identity", "diagonal"])
def test_several_processes_train_as_one(size, covariance):
    assert_ranks_equal_one(size, lambda toy: made(toy, covariance=covariance))


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("learned", [False, True])
def test_hard_batches_give_finite_losses_and_gradients(labels, size, learned):
    logs = torch.full((3, 2), math.log(0.01)) if learned else None
    method = with_features(torch.full((len(labels), 2), size), torch.zeros(3, 2), logs)
    loss = method.loss(batch(labels))["loss"]
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def test_diagnostics_hold_means_and_learned_variances():
    means, logs = f64([[3.0, 4], [0, 0]]), f64([[0.0, math.log(3)], [0, 0]])
    found = with_features(f64([[0.0, 0]]), means, logs).diagnostics()
    torch.testing.assert_close(found["mean_norm"], f64([5.0, 0]))
    torch.testing.assert_close(found["variance"], f64([2.0, 1]))
    assert set(with_features(f64([[0.0, 0]]), means).diagnostics()) == {"mean_norm"}


def test_it_is_never_erm():
    assert SPEC.reduces_to(Toy().task, {"alpha": 0.0, "lambda": 0.0}) is None


def test_means_and_variances_go_on_from_a_checkpoint():
    toy, fresh = Toy(passes=2), Toy(passes=2, seed=1)
    whole, stopped, resumed = (made(t, covariance="diagonal") for t in (toy, toy, fresh))
    losses(whole, toy)
    at = Position()
    run = train(stopped, toy, at)
    next(run), next(run)
    kept = load(resumed, save(stopped, at))
    assert len(list(train(resumed, fresh, kept))) > 0
    assert torch.equal(weights(resumed), weights(whole))
