"""DRO: the adversary's weights, the loss they make, and its options."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import assert_ranks_equal_one, close, f64, loss_of, losses, make, weights
from torch import Tensor

from classfair_plugins.methods import dro
from classfair_registry.testing import Network, Position, Toy, load, save, train

(SPEC,) = dro.classfair_methods()
small = st.floats(-5, 5)


def test_a_step_with_an_absent_class_is_the_worked_example(worked_example):
    example = worked_example("gdro-1")
    inputs, expected = example["inputs"], example["expected"]
    method = make(SPEC, Toy(counts=(5, 5, 5)), eta=inputs["step_size"]).double()
    method.q.copy_(f64(inputs["q"]))
    loss, gradient = loss_of(method, f64(inputs["logits"]), inputs["labels"])
    close(example, method.q, expected["q_new"])
    close(example, loss, expected["robust_loss"])
    close(example, method.average, expected["group_loss"])  # first seen, so the means themselves
    leaf = f64(inputs["logits"]).requires_grad_()
    F.cross_entropy(leaf, torch.tensor(inputs["labels"]), reduction="sum").backward()
    close(
        example, gradient, (f64(expected["grad_weight_per_sample"])[:, None] * leaf.grad).tolist()
    )


def test_the_loss_over_present_classes_is_the_worked_example(worked_example):
    example = worked_example("gdro-1")
    method = make(SPEC, Toy(counts=(5, 5, 5)), present=True).double()
    loss, _ = loss_of(method, f64(example["inputs"]["logits"]), example["inputs"]["labels"])
    close(example, loss, example["expected"]["robust_loss_renormalised_over_present"])


def test_updates_accumulate_as_in_the_worked_example(worked_example):
    example = worked_example("gdro-2")
    inputs, expected = example["inputs"], example["expected"]
    q = f64(inputs["q"])
    for step in ("1", "2"):
        means = f64(inputs[f"group_loss_step{step}"])
        q = dro.exponentiated(q, means, inputs["step_size"])
        close(example, q, expected[f"q_step{step}"])
        close(example, q @ means, expected[f"loss_step{step}"])


def test_the_adjustment_is_the_worked_example(worked_example):
    example = worked_example("gdro-3a")
    inputs, expected = example["inputs"], example["expected"]
    means, sizes = f64(inputs["group_loss"]), f64(inputs["train_group_counts"])
    exponent = dro.adjusted(means, sizes, inputs["generalization_adjustment"])
    close(example, exponent - means, expected["adjustment"])
    q = dro.exponentiated(f64(inputs["q"]), exponent, inputs["step_size"])
    close(example, q, expected["q_new"])
    close(example, q @ means, expected["robust_loss_unadjusted"])
    close(example, q @ exponent, expected["robust_loss_as_logged_by_reference"])


def test_one_adjustment_a_class_follows_the_formula(worked_example):
    example = worked_example("gdro-4")
    inputs, expected = example["inputs"], example["expected"]
    means, sizes = f64(inputs["group_loss"]), f64(inputs["train_group_counts"])
    exponent = dro.adjusted(means, sizes, f64(inputs["generalization_adjustment"]))
    q = dro.exponentiated(f64(inputs["q"]), exponent, inputs["step_size"])
    close(example, q, expected["q_new_formula"])
    # The reference drops an adjustment of which one entry is zero.
    q = dro.exponentiated(f64(inputs["q"]), dro.adjusted(means, sizes, 0.0), inputs["step_size"])
    close(example, q, expected["q_new_reference"])


def test_greedy_weights_are_the_worked_example(worked_example):
    example = worked_example("gdro-5")
    inputs, expected = example["inputs"], example["expected"]
    sizes = f64(inputs["group_fraction"])
    reference = f64(inputs["ema_group_loss"])
    found = dro.greedy(reference, sizes, inputs["alpha"], inputs["min_var_weight"])
    close(example, found, expected["weights"])
    close(example, found @ f64(inputs["batch_group_loss"]), expected["robust_loss"])


def test_running_means_are_the_worked_example(worked_example):
    example = worked_example("gdro-6")
    inputs, expected = example["inputs"], example["expected"]
    average, seen = f64([0.0, 0.0]), torch.tensor([False, False])
    for given_batch, after in zip(inputs["batches"], expected["ema_after_each"], strict=True):
        counts = torch.tensor(given_batch["group_count"])
        means = f64(given_batch["group_loss"])
        average = dro.running_mean(average, seen, means, counts, inputs["gamma"])
        seen = seen | (counts > 0)
        close(example, average, after)


def slow_step(
    logits: Tensor, labels: list[int], q: list[float], eta: float, renormalize: bool
) -> tuple[float, list[float]]:
    each = [torch.logsumexp(z, 0).item() - z[y].item() for z, y in zip(logits, labels, strict=True)]
    means = []
    for k in range(len(q)):
        own = [loss for loss, y in zip(each, labels, strict=True) if y == k]
        means.append(sum(own) / len(own) if own else 0.0)
    raised = [w * math.exp(eta * m) for w, m in zip(q, means, strict=True)]
    new = [w / sum(raised) for w in raised]
    loss = sum(w * m for w, m in zip(new, means, strict=True))
    return loss / (sum(new[k] for k in set(labels)) if renormalize else 1.0), new


@pytest.mark.parametrize("present", [False, True])
def test_steps_equal_a_loop_over_classes(present):
    method = make(SPEC, Toy(counts=(5, 5, 5, 5)), eta=0.3, present=present).double()
    q = [0.25] * 4
    for labels in ([0, 1, 1, 3, 0], [2], [3, 3, 2, 0, 1]):
        logits = 3 * torch.randn(len(labels), 4, dtype=torch.float64)
        expected, q = slow_step(logits, labels, q, 0.3, present)
        loss, _ = loss_of(method, logits, labels)
        assert loss.item() == pytest.approx(expected, rel=1e-12)
        assert method.q.tolist() == pytest.approx(q, rel=1e-12)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_without_a_step_size_a_balanced_batch_is_erm(dtype, rtol):
    method = make(SPEC, Toy(counts=(5, 5, 5)), eta=0.0).to(dtype)
    logits, labels = torch.randn(6, 3, dtype=dtype), [0, 1, 2, 2, 1, 0]
    loss, gradient = loss_of(method, logits, labels)
    leaf = logits.requires_grad_()
    expected = F.cross_entropy(leaf, torch.tensor(labels))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=rtol, atol=0)
    torch.testing.assert_close(gradient, leaf.grad, rtol=rtol, atol=rtol / 10)


def test_loss_passes_gradcheck():
    labels = [0, 2, 2, 1]
    logits = torch.randn(4, 3, dtype=torch.float64)
    method = make(SPEC, Toy(counts=(5, 5, 5)), eta=0.5).double()
    _, gradient = loss_of(method, logits, labels)
    fixed = method.q[labels] / torch.tensor([1, 2, 2, 1])

    # No gradient goes into q: that of the loss is the one with q held fixed.
    def loss(z: Tensor) -> Tensor:
        return (fixed * F.cross_entropy(z, torch.tensor(labels), reduction="none")).sum()

    leaf = logits.requires_grad_()
    assert torch.autograd.gradcheck(loss, leaf)
    loss(leaf).backward()
    torch.testing.assert_close(gradient, leaf.grad)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(small, min_size=2, max_size=6), small, st.floats(0, 2))
def test_q_sums_to_one_and_ignores_a_constant_in_all_losses(values, constant, eta):
    means = f64(values)
    q = torch.full_like(means, 1 / len(values))
    found = dro.exponentiated(q, means, eta)
    torch.testing.assert_close(found.sum(), f64(1.0))
    torch.testing.assert_close(dro.exponentiated(q, means + constant, eta), found)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(small, min_size=2, max_size=6, unique=True), st.floats(0.05, 1), st.floats(0, 1))
def test_greedy_weights_sum_to_one_and_follow_the_order_of_the_losses(values, alpha, floor):
    reference = f64(values)
    found = dro.greedy(reference, torch.ones_like(reference), alpha, floor)
    torch.testing.assert_close(found.sum(), f64(1.0))
    ordered = found[reference.argsort(descending=True)]
    assert (ordered.diff() <= 1e-12).all()
    spread = dro.greedy(reference, torch.ones_like(reference), 1.0, floor)
    torch.testing.assert_close(spread, torch.full_like(reference, 1 / len(values)))


def test_the_adjustment_has_no_effect_on_equal_counts_and_favours_the_rare_on_others():
    even = Toy(counts=(8, 8, 8), passes=1)
    with_it = losses(make(SPEC, even, adjustment=3.0), even)
    assert with_it == pytest.approx(losses(make(SPEC, even), even), rel=1e-5)
    uneven = Toy(counts=(20, 8, 2))
    method = make(SPEC, uneven, adjustment=3.0, eta=1.0)
    loss_of(method, torch.zeros(3, 3), [0, 1, 2])
    assert method.q[0] < method.q[1] < method.q[2]


def test_normalized_losses_enter_as_shares_of_their_sum():
    torch.testing.assert_close(dro.over_their_sum(f64([1.0, 3.0])), f64([0.25, 0.75]))
    assert torch.equal(dro.over_their_sum(f64([0.0, 0.0])), f64([0.0, 0.0]))
    method = make(SPEC, Toy(counts=(5, 5)), eta=1.0, normalize_losses=True).double()
    loss_of(method, torch.zeros(3, 2, dtype=torch.float64), [0, 0, 0])
    torch.testing.assert_close(method.q, f64([math.e, 1]) / (math.e + 1))


def test_an_absent_class_keeps_exponent_zero():
    method = make(SPEC, Toy(counts=(5, 5, 5)), eta=0.5).double()
    loss_of(method, torch.zeros(2, 3, dtype=torch.float64), [0, 1])
    torch.testing.assert_close(method.q[0] / method.q[2], f64(3**0.5))
    torch.testing.assert_close(method.q[0], method.q[1])


def test_greedy_mode_weighs_the_worst_class_alone_and_trains():
    toy = Toy(counts=(5, 5, 5))
    method = make(SPEC, toy, mode="greedy", alpha=1 / 3).double()
    logits = f64([[9.0, 0, 0], [9.0, 0, 0], [0, 0, 9.0]])
    loss, _ = loss_of(method, logits, [0, 1, 2])
    torch.testing.assert_close(method.q, f64([0, 1, 0]), atol=1e-6, rtol=0)
    assert loss.item() == pytest.approx(9.0, abs=1e-3)
    # The weighted class is absent: nothing to minimise, and nothing to divide by.
    absent = make(SPEC, toy, mode="greedy", alpha=1 / 3, present=True).double()
    loss_of(absent, logits, [0, 1, 2])
    assert loss_of(absent, logits[:1], [0])[0].item() == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("mode", ["exponentiated", "greedy"])
def test_several_processes_train_as_one(size, mode):
    chosen = {"mode": mode, "eta": 0.3, "alpha": 0.5, "adjustment": 1.0, "present": True}

    def state(method):
        return torch.cat([weights(method), method.q, method.average])

    assert_ranks_equal_one(size, lambda toy: make(SPEC, toy, **chosen), state)


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
@pytest.mark.parametrize(
    "chosen", [{}, {"present": True, "normalize_losses": True}, {"mode": "greedy"}]
)
def test_hard_batches_give_finite_losses_gradients_and_weights(labels, size, chosen):
    method = make(SPEC, Toy(counts=(15, 9, 1)), **chosen)
    given_logits = torch.zeros(len(labels), 3)
    given_logits[:, labels[0]] = size
    for _ in range(3):
        loss, gradient = loss_of(method, given_logits, labels)
        assert loss.isfinite()
        assert gradient.isfinite().all()
        torch.testing.assert_close(method.q.sum(), torch.tensor(1.0))


def test_its_terms_say_how_uneven_q_is():
    toy = Toy(counts=(5, 5, 5), network=Network(norm="none", dropout=0))
    method = make(SPEC, toy, eta=0.0)
    terms = method.phases()[0].step(toy.batch())
    assert set(terms) == {"loss", "ce", "q_max", "q_entropy"}
    assert terms["q_entropy"].item() == pytest.approx(math.log(3))
    assert not any(term.requires_grad for term in terms.values())
    torch.testing.assert_close(method.diagnostics()["q"], torch.full((3,), 1 / 3))


def test_q_goes_on_from_a_checkpoint():
    toy, fresh = Toy(passes=2), Toy(passes=2, seed=1)
    whole, stopped, resumed = make(SPEC, toy), make(SPEC, toy), make(SPEC, fresh)
    losses(whole, toy)
    at = Position()
    run = train(stopped, toy, at)
    next(run), next(run)
    kept = load(resumed, save(stopped, at))
    assert len(list(train(resumed, fresh, kept))) > 0
    assert torch.equal(resumed.q, whole.q)
