"""EQL: which classes are tail, what is left out of the loss, and when it is cross entropy."""

from __future__ import annotations

import itertools
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import assert_ranks_equal_one, batch, close, f64, loss_of, losses, make
from torch import Tensor

from classfair_plugins.methods import eql, erm
from classfair_registry.contracts import Task
from classfair_registry.testing import Network, Toy

(SPEC,) = eql.classfair_methods()
TAIL = {"lambda": 0.3}
"""Makes the last class of the toy's three tail."""


def drop_mask(labels: list[int], tail: list[bool], beta: list[list[int]], gamma: float) -> Tensor:
    """Return what is dropped if the Bernoulli draws come out as ``beta``."""
    draws = torch.where(torch.tensor(beta) > 0, 0.0, 1.0)
    return eql.dropped(torch.tensor(labels), torch.tensor(tail), draws, gamma)


def test_sigmoid_form_with_background_is_the_worked_example(worked_example):
    example = worked_example("eql_sigmoid_1")
    inputs, expected = example["inputs"], example["expected"]
    tail = eql.tail_by_share(inputs["class_frequencies"], inputs["lambda"])
    assert tail == [bool(value) for value in expected["tail_mask"]]
    logits, labels = f64(inputs["logits"]), torch.tensor(inputs["labels"])
    assert inputs["background_label"] == 3
    close(
        example,
        eql.sigmoid_losses(logits, labels, torch.tensor(tail)).mean(),
        expected["loss"],
    )
    none = torch.tensor([False] * 3)
    close(example, eql.sigmoid_losses(logits, labels, none).mean(), expected["loss_without_eql"])
    kept = f64(expected["weights"]) * f64(expected["bce"])
    close(example, eql.sigmoid_losses(logits, labels, torch.tensor(tail)), kept.sum(1).tolist())


def test_sigmoid_form_on_balanced_classes_is_the_worked_example(worked_example):
    example = worked_example("eql_sigmoid_uniform_1")
    inputs = example["inputs"]
    method = make(SPEC, Toy(counts=(5, 5, 5)), form="sigmoid")
    loss, _ = loss_of(method, f64(inputs["logits"]), inputs["labels"])
    close(example, loss, example["expected"]["loss"])


def test_bias_of_the_sigmoid_head_starts_at_the_prior(worked_example):
    example = worked_example("eql_bias_init_1")
    expected = example["expected"]["bias"]
    close(example, f64(eql.initial_bias(example["inputs"]["prior_prob"])), expected)
    bias = make(SPEC, Toy(), form="sigmoid").classifier.head.bias
    close(example, bias, [expected] * 3)
    own = make(SPEC, Toy(), form="sigmoid", prior=None).classifier.head.bias
    assert torch.equal(own, make(SPEC, Toy()).classifier.head.bias)
    cosine = Toy(network=Network(head="cosine"))
    assert make(SPEC, cosine, form="sigmoid").loss(cosine.batch()).isfinite()


def test_softmax_form_is_the_worked_example(worked_example):
    example = worked_example("seql_1")
    inputs, expected = example["inputs"], example["expected"]
    tail = eql.tail_by_share(inputs["class_frequencies"], inputs["lambda"])
    assert tail == [bool(value) for value in expected["tail_mask"]]
    found = {}
    for beta in (0, 1):
        logits = f64([inputs["logits"]]).requires_grad_()
        drop = drop_mask([inputs["label"]], tail, [[beta] * 3], inputs["gamma"])
        found[beta] = eql.softmax_losses(logits, torch.tensor([inputs["label"]]), drop).sum()
        found[beta].backward()
        close(example, found[beta], expected[f"loss_beta{beta}"])
        if beta:
            close(example, logits.grad[0], expected["grad_logits_beta1"])
    mean = inputs["gamma"] * found[1] + (1 - inputs["gamma"]) * found[0]
    close(example, mean, expected["expected_loss"])


def test_all_classes_tail_is_the_worked_example(worked_example):
    example = worked_example("seql_all_tail_1")
    inputs, expected = example["inputs"], example["expected"]
    tail = eql.tail_by_share(inputs["class_frequencies"], inputs["lambda"])
    assert all(tail)
    mean = 0.0
    for row in expected["table"]:
        beta = [[1, row["beta_class1"], row["beta_class2"]]]
        drop = drop_mask([inputs["label"]], tail, beta, inputs["gamma"])
        loss = eql.softmax_losses(f64([inputs["logits"]]), torch.tensor([inputs["label"]]), drop)
        close(example, loss, [row["loss"]])
        mean += row["prob"] * loss.item()
    close(example, f64(mean), expected["expected_loss"])


def test_no_class_tail_is_the_worked_example(worked_example):
    example = worked_example("seql_none_tail_1")
    inputs = example["inputs"]
    toy = Toy(counts=(5, 5, 5))
    method = make(SPEC, toy, gamma=inputs["gamma"], **{"lambda": inputs["lambda"]})
    loss, _ = loss_of(method, f64([inputs["logits"]]), [inputs["label"]])
    close(example, loss, example["expected"]["loss"])


def test_the_two_rules_differ_at_the_threshold(worked_example):
    example = worked_example("seql_threshold_1")
    counts, at = example["inputs"]["class_counts"], example["inputs"]["count_threshold"]
    expected = example["expected"]
    strict = eql.tail_classes(counts, "softmax", at / sum(counts), None)
    assert strict == [bool(value) for value in expected["tail_mask_paper_strict_less"]]
    counted = eql.tail_classes(counts, "softmax", None, at)
    assert counted == [bool(value) for value in expected["tail_mask_author_snippet"]]


@pytest.mark.parametrize("classes", [10, 37, 100, 101, 102, 196, 1000])
def test_balanced_classes_have_no_tail_up_to_lambda_one_over_k(classes):
    counts = [50] * classes
    assert not any(eql.tail_classes(counts, "softmax", 1 / classes, None))
    assert not any(eql.tail_classes(counts, "softmax", None, None))
    assert all(eql.tail_classes(counts, "softmax", 1.01 / classes, None))


def slow_softmax(logits: Tensor, labels: list[int], dropped: Tensor) -> float:
    total = 0.0
    for row, label, gone in zip(logits.tolist(), labels, dropped.tolist(), strict=True):
        kept = [z for z, out in zip(row, gone, strict=True) if not out]
        total += math.log(sum(math.exp(z) for z in kept)) - row[label]
    return total / len(labels)


def slow_sigmoid(logits: Tensor, labels: list[int], tail: list[bool]) -> float:
    total = 0.0
    for row, label in zip(logits.tolist(), labels, strict=True):
        for k, z in enumerate(row):
            if k == label:
                total += math.log1p(math.exp(-z))
            elif not tail[k] or label == len(row):
                total += math.log1p(math.exp(z))
    return total / len(labels)


def test_losses_equal_loops_over_samples_and_classes():
    logits = 3 * torch.randn(6, 4, dtype=torch.float64)
    labels, tail = [0, 3, 1, 2, 3, 0], [False, True, False, True]
    drop = eql.dropped(torch.tensor(labels), torch.tensor(tail), torch.rand(6, 4), 0.6)
    softmax = eql.softmax_losses(logits, torch.tensor(labels), drop).mean().item()
    assert softmax == pytest.approx(slow_softmax(logits, labels, drop), rel=1e-12)
    labels[2] = 4
    sigmoid = eql.sigmoid_losses(logits, torch.tensor(labels), torch.tensor(tail)).mean().item()
    assert sigmoid == pytest.approx(slow_sigmoid(logits, labels, tail), rel=1e-12)


def test_losses_pass_gradcheck():
    labels, tail = torch.tensor([0, 2, 1]), torch.tensor([False, True, True])
    drop = eql.dropped(labels, tail, torch.tensor([[0.1, 0.9, 0.1]] * 3), 0.5)
    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: eql.softmax_losses(z, labels, drop), logits)
    assert torch.autograd.gradcheck(lambda z: eql.sigmoid_losses(z, labels, tail), logits)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.booleans(), min_size=2, max_size=6), st.floats(0, 1), st.integers(0, 99))
def test_only_negatives_of_tail_classes_are_dropped(tail, gamma, seed):
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(len(tail), (7,), generator=random)
    draws = torch.rand(7, len(tail), generator=random)
    drop = eql.dropped(labels, torch.tensor(tail), draws, gamma)
    for i, k in itertools.product(range(7), range(len(tail))):
        expected = tail[k] and k != labels[i] and draws[i, k] < gamma
        assert drop[i, k] == bool(expected)


def test_negatives_are_dropped_with_probability_gamma():
    labels, tail = torch.zeros(20_000, dtype=torch.int64), torch.tensor([False, True])
    random = torch.Generator().manual_seed(0)
    drop = eql.dropped(labels, tail, torch.rand(20_000, 2, generator=random), 0.95)
    assert drop[:, 1].float().mean().item() == pytest.approx(0.95, abs=0.005)


def test_without_a_tail_it_trains_as_erm_bit_for_bit_and_draws_nothing(monkeypatch):
    toy = Toy(counts=(8, 8, 8), passes=2)
    expected = losses(make(erm.classfair_methods()[0], toy), toy)
    monkeypatch.setattr(toy.world, "rand", lambda *shape: pytest.fail("a number was drawn"))
    assert losses(make(SPEC, toy), toy) == expected


def test_dropped_negatives_get_no_gradient_and_the_true_class_always_does():
    toy = Toy(counts=(15, 14, 11))
    logits, labels = torch.randn(40, 3), toy.train.labels.tolist()
    _, gradient = loss_of(make(SPEC, toy, gamma=1.0, **TAIL), logits, labels)
    truly = toy.train.labels == 2
    assert (gradient[~truly, 2] == 0).all()
    assert (gradient[truly, 2] < 0).all()


def test_the_spec_says_when_it_is_erm():
    even = Task(("a", "b"), (4, 4), (3, 8, 8), "scratch")
    chosen = {"form": "softmax", "gamma": 0.9, "lambda": 0.5, "tail_count": None, "prior": 0.001}
    assert SPEC.reduces_to(even, chosen) == "erm"
    assert SPEC.reduces_to(even, {**chosen, "lambda": None}) == "erm"
    assert SPEC.reduces_to(even, {**chosen, "form": "sigmoid"}) is None
    assert SPEC.reduces_to(even, {**chosen, "lambda": 0.51}) is None
    assert SPEC.reduces_to(even, {**chosen, "lambda": 0.51, "gamma": 0.0}) == "erm"
    assert SPEC.reduces_to(even, {**chosen, "tail_count": 4}) is None
    uneven = Task(("a", "b"), (3, 5), (3, 8, 8), "scratch")
    assert SPEC.reduces_to(uneven, chosen) is None


@pytest.mark.parametrize(
    ("lambda_", "level", "rare"),
    [(0.01, logging.WARNING, 0), (0.3, logging.INFO, 1), (1.0, logging.WARNING, 3)],
)
def test_the_number_of_tail_classes_is_logged_and_none_or_all_is_a_warning(
    caplog, lambda_, level, rare
):
    with caplog.at_level(logging.INFO):
        method = make(SPEC, Toy(), **{"lambda": lambda_})
    assert caplog.record_tuples == [(eql.__name__, level, f"eql: {rare} of 3 classes are tail")]
    assert method.diagnostics()["tail"].sum() == rare


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
def test_several_processes_train_as_one(size, form):
    assert_ranks_equal_one(size, lambda toy: make(SPEC, toy, form=form, gamma=0.5, **TAIL))


@pytest.mark.parametrize("form", ["softmax", "sigmoid"])
@pytest.mark.parametrize("labels", [[2], [0, 0, 0], [2, 1]])
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
def test_hard_batches_give_finite_losses_and_gradients(form, labels, size):
    method = make(SPEC, Toy(), form=form, gamma=1.0, **{"lambda": 1.0})
    given = torch.zeros(len(labels), 3)
    given[:, labels[0]] = size
    loss, gradient = loss_of(method, given, labels)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_draws_differ_between_samples_and_steps():
    toy = Toy(counts=(15, 14, 11))
    method = make(SPEC, toy, gamma=0.5, **{"lambda": 1.0})
    logits = torch.zeros(13, 3)
    torch.manual_seed(0)
    first, gradient = loss_of(method, logits, [0] * 13)
    second = method.loss(batch([0] * 13))
    assert len(gradient.unique(dim=0)) > 1
    assert first != second
