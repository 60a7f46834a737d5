"""LDAM-DRW: margins, loss, weights, and what is left of it on balanced data."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import assert_ranks_equal_one, close, f64, loss_of, losses, make
from torch import Tensor

from classfair_plugins.methods import ldam
from classfair_registry.contracts import Task
from classfair_registry.testing import Network, Toy

(SPEC,) = ldam.classfair_methods()


def lowered(inputs, max_m):
    """Return the cosines as a leaf and the logits of a worked example."""
    cosines = f64(inputs["cosines"]).requires_grad_()
    margin = ldam.margins(inputs["class_counts"], max_m)
    labels = torch.tensor(inputs["labels"])
    s = inputs["s"]
    return cosines, ldam.subtract_margin(s * cosines, labels, s * margin), labels


def test_margins_are_those_of_the_worked_example(worked_example):
    example = worked_example("ldam_margins_1")
    found = ldam.margins(example["inputs"]["class_counts"], example["inputs"]["max_m"])
    close(example, found, example["expected"]["margins"])


def test_loss_and_gradient_are_those_of_the_worked_example(worked_example):
    example = worked_example("ldam_loss_1")
    cosines, logits, labels = lowered(example["inputs"], example["inputs"]["max_m"])
    each = F.cross_entropy(logits, labels, reduction="none")
    each.mean().backward()
    close(example, logits, example["expected"]["scaled_logits"])
    close(example, each, example["expected"]["per_sample"])
    close(example, each.mean(), example["expected"]["loss"])
    close(example, cosines.grad, example["expected"]["grad_cosines"])


def test_equal_counts_give_the_largest_margin_and_not_cross_entropy(worked_example):
    example = worked_example("ldam_uniform_1")
    inputs, expected = example["inputs"], example["expected"]
    close(example, ldam.margins(inputs["class_counts"], inputs["max_m"]), expected["margins"])
    _, logits, labels = lowered(inputs, inputs["max_m"])
    close(example, F.cross_entropy(logits, labels), expected["loss"])
    _, logits, labels = lowered(inputs, 0.0)
    close(example, F.cross_entropy(logits, labels), expected["loss_with_zero_margin"])
    plain = F.cross_entropy(f64(inputs["cosines"]), labels)
    close(example, plain, expected["loss_plain_ce_on_cosines"])


def test_its_logits_are_s_times_the_cosines_of_the_worked_example(worked_example):
    example = worked_example("ldam_head_1")
    classifier = make(SPEC, Toy(), s=30.0).classifier
    classifier.backbone = torch.nn.Identity()
    vectors = f64(example["inputs"]["class_weight_vectors_rows"])
    classifier.head.weight = torch.nn.Parameter(vectors)
    logits = classifier(f64(example["inputs"]["features"]))
    close(example, logits / 30, example["expected"]["cosines"])


def slow_loss(
    logits: Tensor, labels: list[int], counts: tuple[int, ...], s: float, max_m: float, beta: float
) -> float:
    numerator = denominator = 0.0
    for row, label in zip(logits.tolist(), labels, strict=True):
        margin = max_m * (min(counts) / counts[label]) ** 0.25
        row[label] -= s * margin
        weight = (1 - beta) / (1 - beta ** counts[label])
        numerator += weight * (torch.logsumexp(f64(row), 0).item() - row[label])
        denominator += weight
    return numerator / denominator


def test_weighted_loss_equals_a_loop_over_samples():
    counts, labels = (15, 5, 2), [0, 0, 2, 1, 0]
    logits = 10 * torch.randn(5, 3, dtype=torch.float64)
    method = make(SPEC, Toy(counts=counts), s=10.0, beta=0.9).double()
    loss, _ = loss_of(method, logits, labels, progress=0.9)
    expected = slow_loss(logits, labels, counts, 10.0, 0.5, 0.9)
    # Margins and weights are float32 buffers.
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_lowered_logits_pass_gradcheck():
    labels = torch.tensor([0, 2, 1])
    margin = ldam.margins([100, 10, 1], 0.5)

    def loss(logits: Tensor) -> Tensor:
        return F.cross_entropy(ldam.subtract_margin(logits, labels, margin), labels)

    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, logits)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 10**6), st.integers(2, 1000), st.floats(0, 1))
def test_equal_counts_have_margins_max_m_and_weights_exactly_one(n, classes, beta):
    assert torch.equal(ldam.margins([n] * classes, 0.5), f64([0.5] * classes))
    assert torch.equal(ldam.class_weights([n] * classes, beta).float(), torch.ones(classes))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=9), st.integers(2, 9))
def test_margins_depend_on_ratios_and_weights_sum_to_the_number_of_classes(counts, factor):
    scaled = [n * factor for n in counts]
    torch.testing.assert_close(ldam.margins(counts, 0.5), ldam.margins(scaled, 0.5))
    assert ldam.margins(counts, 0.5).max() == 0.5
    weights = ldam.class_weights(counts, 0.9999)
    assert weights.sum().item() == pytest.approx(len(counts))
    assert weights.argmax() == torch.tensor(counts).argmin()


def test_beta_one_is_inverse_frequency_and_the_limit_of_beta():
    inverse = ldam.class_weights([10, 40], 1.0)
    torch.testing.assert_close(inverse, f64([1.6, 0.4]))
    torch.testing.assert_close(ldam.class_weights([10, 40], 1 - 1e-9), inverse, rtol=1e-6, atol=0)


def test_drw_changes_nothing_on_balanced_data_bit_for_bit():
    toy = Toy(counts=(8, 8, 8), passes=2)
    always = losses(make(SPEC, toy, drw_start=0.0), toy)
    never = losses(make(SPEC, toy, drw_start=1.0), toy)
    assert always == never


def test_classes_are_weighted_from_the_start_of_drw_on_and_not_before():
    toy = Toy(counts=(15, 5, 2))
    deferred, unweighted = make(SPEC, toy), make(SPEC, toy, drw_start=1.0)
    logits, labels = torch.randn(4, 3), [0, 0, 1, 2]
    plain, _ = loss_of(unweighted, logits, labels, progress=0.8)
    assert loss_of(deferred, logits, labels, progress=0.79)[0] == plain
    assert loss_of(deferred, logits, labels, progress=0.8)[0] != plain


def test_without_margin_on_the_recipes_head_the_loss_is_that_of_erm():
    toy = Toy(counts=(8, 8, 8))
    logits, labels = torch.randn(5, 3, dtype=torch.float64), [0, 1, 2, 2, 0]
    method = make(SPEC, toy, head="recipe", max_m=0.0).double()
    loss, gradient = loss_of(method, logits, labels, progress=0.9)
    leaf = logits.requires_grad_()
    expected = F.cross_entropy(leaf, torch.tensor(labels))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, leaf.grad, rtol=1e-12, atol=1e-15)


def test_the_spec_says_when_it_is_erm():
    even = Task(("a", "b"), (4, 4), (3, 8, 8), "scratch")
    uneven = Task(("a", "b"), (3, 4), (3, 8, 8), "scratch")
    chosen = {"head": "recipe", "max_m": 0.0, "drw_start": 0.8, "beta": 0.9999}
    assert SPEC.reduces_to(even, chosen) == "erm"
    assert SPEC.reduces_to(even, {**chosen, "head": "cosine"}) is None
    assert SPEC.reduces_to(even, {**chosen, "max_m": 0.5}) is None
    assert SPEC.reduces_to(uneven, chosen) is None
    assert SPEC.reduces_to(uneven, {**chosen, "beta": 0.0}) == "erm"
    assert SPEC.reduces_to(uneven, {**chosen, "drw_start": 1.0}) == "erm"


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_train_as_one(size):
    def made(toy):
        return make(SPEC, toy, drw_start=0.3, beta=0.9, s=8.0)

    assert_ranks_equal_one(size, made, counts=(15, 9, 3))


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("logits", [0.0, 1e4, -1e4])
def test_hard_batches_give_finite_losses_and_gradients(labels, logits):
    method = make(SPEC, Toy(counts=(15, 9, 1)), drw_start=0.0)
    given = torch.zeros(len(labels), 3)
    given[:, labels[0]] = logits
    loss, gradient = loss_of(method, given, labels)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_a_zero_feature_has_a_finite_gradient():
    toy = Toy(network=Network(feature_scale=0.0))
    method = make(SPEC, toy)
    loss = method.loss(toy.batch())
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def test_diagnostics_hold_a_margin_and_a_weight_for_each_class():
    found = make(SPEC, Toy(counts=(16, 4, 1)), beta=1.0).diagnostics()
    torch.testing.assert_close(found["margin"], torch.tensor([0.25, 0.5 * 0.25**0.25, 0.5]))
    torch.testing.assert_close(found["weight"], 3 * torch.tensor([1, 4, 16]) / 21)
