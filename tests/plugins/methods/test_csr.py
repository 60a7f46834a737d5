"""CSR: counting errors, the weights from their singular vectors, the loss, and its guards."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import (
    PLAIN,
    Answers,
    assert_ranks_equal_one,
    batch,
    begin_pass,
    close,
    f64,
    loss_of,
    losses,
    make,
    weights,
)
from torch import Tensor

from classfair_plugins.methods import csr, erm
from classfair_registry.testing import Network, Toy

(SPEC,) = csr.classfair_methods()


@pytest.mark.parametrize("name", ["csr-1", "csr-2"])
def test_weights_are_those_of_the_worked_examples(worked_example, name):
    example = worked_example(name)
    expected, counts = example["expected"], f64(example["inputs"]["confusion_counts"])
    close(example, csr.top_outer(counts), expected["outer_u1v1"])
    close(example, csr.class_pair_weights(counts, "rescaled", True), expected["weight_matrix"])
    close(example, csr.class_pair_weights(counts, "raw", True), expected["outer_u1v1"])
    norm = torch.linalg.matrix_norm(counts, 2)
    close(example, norm, expected["spectral_norm"])
    # What the outer product is for: u1 v1^T is the derivative of the spectral norm.
    step = torch.rand(counts.shape, dtype=torch.float64)
    moved = torch.linalg.matrix_norm(counts + 1e-7 * step, 2)
    slope = (csr.top_outer(counts) * step).sum().item()
    assert ((moved - norm) / 1e-7).item() == pytest.approx(slope, rel=1e-5)


def test_the_loss_is_the_worked_example(worked_example):
    example = worked_example("csr-3")
    inputs, expected = example["inputs"], example["expected"]
    method = make(SPEC, Toy(counts=(5, 5, 5)), alpha=inputs["alpha"]).double()
    method.weights.copy_(f64(inputs["weight_matrix"]))
    method.classifier = Answers(f64(inputs["logits"]))
    terms = method.loss(batch(inputs["labels"]))
    close(example, terms["loss"], expected["total"])
    close(example, terms["ce"], expected["ce_mean"])
    close(example, terms["regularizer"], expected["fairness_term"])
    total, gradient = loss_of(method, f64(inputs["logits"]), inputs["labels"])
    leaf = f64(inputs["logits"]).requires_grad_()
    each = F.cross_entropy(leaf, torch.tensor(inputs["labels"]), reduction="none")
    close(example, each, expected["per_sample_ce"])
    (f64(expected["effective_gradient_weight"]) * each).mean().backward()
    close(example, gradient, leaf.grad.tolist())
    assert total == terms["loss"]


def slow_confusion(logits: Tensor, labels: list[int], margin: str, gamma: float) -> Tensor:
    counts = torch.zeros(logits.shape[1], logits.shape[1], dtype=torch.float64)
    for row, label in zip(logits.tolist(), labels, strict=True):
        if margin == "relative":
            row[label] *= 1 - gamma
        if margin == "additive":
            row[label] -= gamma
        guess = max(range(len(row)), key=row.__getitem__)
        if guess != label:
            counts[guess, label] += 1
    return counts


@pytest.mark.parametrize("margin", ["relative", "additive", "none"])
def test_errors_equal_those_of_a_loop_over_samples(margin):
    logits = torch.randn(60, 4, dtype=torch.float64)
    labels = torch.randint(4, (60,))
    found = csr.confusion(csr.lowered(logits, labels, margin, 0.5), labels)
    assert torch.equal(found, slow_confusion(logits, labels.tolist(), margin, 0.5))
    assert found.sum() > 0


def slow_loss(logits: Tensor, labels: list[int], matrix: Tensor, alpha: float) -> float:
    total = 0.0
    for row, label in zip(logits.tolist(), labels, strict=True):
        ce = math.log(sum(math.exp(z) for z in row)) - row[label]
        guess = max(range(len(row)), key=row.__getitem__)
        w = matrix[guess, label].item()
        total += (1 - alpha) * ce + alpha * (w * (math.log(w) + ce) if w > 0 else 0.0)
    return total / len(labels)


def test_the_loss_equals_a_loop_over_samples():
    method = make(SPEC, Toy(counts=(5, 5, 5)), alpha=0.4).double()
    matrix = torch.rand(3, 3, dtype=torch.float64)
    matrix[0, 0] = 0.0
    method.weights.copy_(matrix)
    logits, labels = 2 * torch.randn(7, 3, dtype=torch.float64), [0, 1, 2, 2, 1, 0, 0]
    logits[0] = f64([3.0, 0.0, 0.0])
    loss, _ = loss_of(method, logits, labels)
    assert loss.item() == pytest.approx(slow_loss(logits, labels, matrix, 0.4), rel=1e-12)


def test_the_regularizer_passes_gradcheck_at_fixed_weights():
    given_weights = f64([0.0, 0.01, 2.01])
    labels = torch.tensor([0, 2, 1])

    def loss(logits: Tensor) -> Tensor:
        return csr.regularizer(F.cross_entropy(logits, labels, reduction="none"), given_weights)

    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, logits)


matrices = st.lists(st.integers(0, 50), min_size=16, max_size=16).map(
    lambda values: f64(values).view(4, 4).fill_diagonal_(0)
)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(matrices, st.floats(0.1, 100))
def test_weights_do_not_change_when_all_counts_are_scaled_and_stay_in_their_range(counts, factor):
    found = csr.class_pair_weights(counts, "rescaled", True)
    scaled = csr.class_pair_weights(factor * counts, "rescaled", True)
    torch.testing.assert_close(scaled, found, rtol=1e-5, atol=1e-5)
    assert found.min() >= 0.01 - 1e-12
    assert found.max() <= 2.01 + 1e-12
    assert (csr.class_pair_weights(counts, "raw", True) >= 0).all()


@pytest.mark.parametrize("chosen", ["rescaled", "raw"])
@pytest.mark.parametrize(
    "counts",
    [
        [[0.0, 0.0], [0.0, 0.0]],  # no errors
        [[0.0, 3.0], [3.0, 0.0]],  # two equal singular values
        [[0.0, 2.0, 0.0], [0.0, 0.0, 2.0], [2.0, 0.0, 0.0]],  # three
    ],
)
def test_weights_are_one_where_singular_vectors_are_not_defined(counts, chosen):
    found = csr.class_pair_weights(f64(counts), chosen, True)
    assert torch.equal(found, torch.ones_like(found))


def test_weights_are_one_where_all_classes_are_confused_alike():
    alike = 7 * (1 - torch.eye(5, dtype=torch.float64))
    assert torch.equal(csr.class_pair_weights(alike, "rescaled", True), torch.ones(5, 5).double())
    torch.testing.assert_close(
        csr.class_pair_weights(alike, "raw", True), torch.full((5, 5), 0.2).double()
    )


def test_correct_predictions_can_be_left_out():
    counts = f64([[0, 4, 1], [2, 0, 3], [0, 1, 0]])
    every = csr.class_pair_weights(counts, "rescaled", True)
    errors = csr.class_pair_weights(counts, "rescaled", False)
    assert (errors.diagonal() == 0).all()
    assert (every.diagonal() > 0).all()
    off = ~torch.eye(3, dtype=torch.bool)
    assert torch.equal(errors[off], every[off])


def test_a_relative_margin_raises_a_negative_true_logit_and_an_additive_one_never_does():
    logits, labels = torch.tensor([[-2.0, 1.0], [-2.0, 1.0]]), torch.tensor([0, 1])
    relative = csr.lowered(logits, labels, "relative", 0.1)
    torch.testing.assert_close(relative, torch.tensor([[-1.8, 1.0], [-2.0, 0.9]]))
    additive = csr.lowered(logits, labels, "additive", 0.1)
    torch.testing.assert_close(additive, torch.tensor([[-2.1, 1.0], [-2.0, 0.9]]))
    assert torch.equal(csr.lowered(logits, labels, "none", 0.1), logits)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_without_the_regularizer_it_is_erm(dtype, rtol):
    method = make(SPEC, Toy(), alpha=0.0).to(dtype)
    method.weights.uniform_()
    logits, labels = torch.randn(6, 3, dtype=dtype), [0, 1, 2, 2, 1, 0]
    loss, gradient = loss_of(method, logits, labels)
    leaf = logits.requires_grad_()
    expected = F.cross_entropy(leaf, torch.tensor(labels))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=rtol, atol=0)
    torch.testing.assert_close(gradient, leaf.grad, rtol=rtol, atol=rtol / 10)
    assert SPEC.reduces_to(Toy().task, {"alpha": 0.0}) == "erm"
    assert SPEC.reduces_to(Toy().task, {"alpha": 0.3}) is None


def test_weights_one_are_erm():
    logits, labels = torch.randn(6, 3, dtype=torch.float64), [0, 1, 2, 2, 1, 0]
    loss, gradient = loss_of(make(SPEC, Toy()).double(), logits, labels)
    expected, slope = loss_of(make(erm.classfair_methods()[0], Toy()), logits, labels)
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, slope, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("counted_on", ["plain", "augmented"])
@pytest.mark.parametrize("shares", [False, True])
def test_each_pass_counts_the_errors_of_the_current_network(counted_on, shares):
    toy = Toy(counts=(20, 12, 8))
    method = make(SPEC, toy, counted_on=counted_on, shares=shares)
    begin_pass(method, toy)
    images = toy.data("train", "eval" if counted_on == "plain" else "train").images(
        torch.arange(40)
    )
    logits = method.classifier.eval()(images).detach()
    labels = toy.train.labels.tolist()
    errors = slow_confusion(logits.double(), labels, "relative", 0.1)
    assert errors.sum() > 0
    if shares:
        errors /= f64([20.0, 12.0, 8.0])
    expected = csr.class_pair_weights(errors, "rescaled", True).float()
    torch.testing.assert_close(method.diagnostics()["W"], expected)


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_train_as_one(size):
    def state(method):
        return torch.cat([weights(method), method.weights.flatten()])

    assert_ranks_equal_one(size, lambda toy: make(SPEC, toy), state, passes=2)


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("smallest", [0.0, 0.01])
def test_hard_batches_give_finite_losses_and_gradients(labels, size, smallest):
    method = make(SPEC, Toy(counts=(15, 9, 1)))
    method.weights.fill_(smallest)
    given_logits = torch.zeros(len(labels), 3)
    given_logits[:, labels[0]] = size
    loss, gradient = loss_of(method, given_logits, labels)
    assert loss.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize(
    "network",
    [PLAIN, Network(feature_scale=0.0), Network(norm="none", dropout=0, feature_scale=1e4)],
)
def test_it_trains_on_networks_that_answer_the_same_or_hugely(network):
    toy = Toy(network=network, passes=2)
    assert all(math.isfinite(loss) for loss in losses(make(SPEC, toy), toy))
