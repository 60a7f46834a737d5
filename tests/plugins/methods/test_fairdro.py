"""FairDRO: the ball's best response, its schedule, the loss, and the two readings."""

from __future__ import annotations

import logging
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import PLAIN, assert_ranks_equal_one, close, f64, loss_of, losses, make, weights
from torch import Tensor

from classfair_plugins.methods import fairdro
from classfair_registry.contracts import Task
from classfair_registry.testing import Position, Toy, load, save, train

(SPEC,) = fairdro.classfair_methods()
class_losses = st.lists(st.floats(0, 5), min_size=2, max_size=8)
rhos = st.floats(0, 6)


def spread(losses: Tensor) -> Tensor:
    return (losses - losses.mean()).square().mean().sqrt()


def test_the_best_response_and_its_value_are_the_worked_example(worked_example):
    example = worked_example("fairdro-1")
    losses, rho = f64(example["inputs"]["group_loss"]), example["inputs"]["rho"]
    q, expected = fairdro.best_response(losses, rho), example["expected"]
    close(example, q, expected["q_star"])
    close(example, 3 * q, expected["K_times_q"])
    close(example, q @ losses, expected["robust_value"])
    close(example, losses.mean() + math.sqrt(2 * rho) * spread(losses), expected["robust_value"])


@pytest.mark.parametrize("decay", ["linear", "cosine"])
def test_weights_follow_the_worked_example_of_three_updates(worked_example, decay):
    example = worked_example("fairdro-2")
    inputs, expected = example["inputs"], example["expected"]
    steps = [fairdro.step_size(t, inputs["total_epochs"], decay) for t in range(3)]
    close(example, f64(steps), expected["gamma" if decay == "linear" else "cosine_gamma"])
    q = f64(inputs["q_init"])
    after = zip(inputs["epoch_losses"], expected["q_after_epoch"], steps, strict=True)
    for means, wanted, step in after:
        q = q + step * (fairdro.best_response(f64(means), inputs["rho"]) - q)
        if decay == "linear":
            close(example, q, wanted)
    assert q.sum().item() == pytest.approx(1)


def test_a_large_ball_gives_the_negative_weights_of_the_worked_example(worked_example):
    example = worked_example("fairdro-3")
    losses, rho = f64(example["inputs"]["group_loss"]), example["inputs"]["rho"]
    q, expected = fairdro.best_response(losses, rho), example["expected"]
    close(example, q, expected["q_star"])
    close(example, q.sum(), expected["sum"])
    close(example, q @ losses, expected["robust_value"])
    clipped = fairdro.nonnegative_response(losses, rho)
    close(example, clipped, expected["q_star_nonnegative_version"])


def test_one_ball_for_each_class_over_its_groups_is_the_worked_example(worked_example):
    # The published objective, with groups beside classes, from the same best response.
    example = worked_example("fairdro-4")
    cells, rho = f64(example["inputs"]["group_by_class_loss"]), example["inputs"]["rho"]
    q = torch.stack([fairdro.best_response(column, rho) for column in cells.T])
    close(example, q, example["expected"]["q_per_class"])
    close(example, (q * cells.T).sum(1).mean(), example["expected"]["robust_loss"])


def test_the_literal_reading_is_the_worked_examples_class_balanced_mean(worked_example):
    example = worked_example("fairdro-5")
    means = f64(example["inputs"]["class_loss"])
    q = torch.stack([fairdro.best_response(cell[None], 5.0) for cell in means])
    close(example, q, example["expected"]["q_per_class"])
    method = make(SPEC, Toy(counts=(5, 5, 5)), reading="literal").double()
    # One sample a class, whose cross-entropy is the loss of the example.
    logits = f64([[0.0, -50, math.log(math.exp(loss) - 1)] for loss in means])
    shifted = torch.stack([logits[0], logits[1].roll(1), logits[2].flip(0)])
    loss, _ = loss_of(method, shifted, [0, 1, 2])
    close(example, loss, example["expected"]["class_balanced_mean"])


def slow_nonnegative(losses: Tensor, rho: float) -> Tensor:
    """Bisect the temperature at which the projection to the simplex reaches the ball's surface."""
    classes = len(losses)

    def project(scale: float) -> list[float]:
        low, high = -1e6, 1e6
        values = [scale * value for value in losses.tolist()]
        for _ in range(60):
            level = (low + high) / 2
            if sum(max(value - level, 0) for value in values) > 1:
                low = level
            else:
                high = level
        return [max(value - high, 0) for value in values]

    def inside(q: list[float]) -> bool:
        return sum((weight - 1 / classes) ** 2 for weight in q) <= 2 * rho / classes

    low, high = 0.0, 1e5
    for _ in range(50):
        scale = (low + high) / 2
        low, high = (scale, high) if inside(project(scale)) else (low, scale)
    return f64(project(low))


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=7, unique=True), rhos)
def test_clipped_weights_equal_a_search_over_the_simplex_and_the_ball(values, rho):
    losses = f64(values) / 10
    found = fairdro.nonnegative_response(losses, rho)
    torch.testing.assert_close(found, slow_nonnegative(losses, rho), rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(class_losses, rhos)
def test_weights_sum_to_one_stay_in_the_ball_and_reach_mean_plus_spread(values, rho):
    losses = f64(values)
    for respond in (fairdro.best_response, fairdro.nonnegative_response):
        q = respond(losses, rho)
        assert q.sum().item() == pytest.approx(1, abs=1e-9)
        assert len(q) / 2 * (q - 1 / len(q)).square().sum() <= rho + 1e-9
    assert q.min() >= 0
    bound = losses.mean() + math.sqrt(2 * rho) * spread(losses)
    assert q @ losses <= bound + 1e-9
    closed = fairdro.best_response(losses, rho)
    assert (closed @ losses).item() == pytest.approx(bound.item(), abs=1e-6)
    if closed.min() > 1e-6:
        torch.testing.assert_close(q, closed, rtol=0, atol=1e-6)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 50), min_size=2, max_size=7), rhos, st.floats(0.1, 9), st.floats())
def test_weights_ignore_scale_and_offset_of_the_losses(values, rho, scale, offset):
    losses = f64(values) / 10
    offset = math.tanh(offset) if math.isfinite(offset) else 1.0
    for respond in (fairdro.best_response, fairdro.nonnegative_response):
        moved = respond(scale * losses + offset, rho)
        torch.testing.assert_close(moved, respond(losses, rho), rtol=0, atol=1e-6)


@pytest.mark.parametrize("respond", [fairdro.best_response, fairdro.nonnegative_response])
def test_equal_losses_get_equal_weights_whatever_the_rounding(respond):
    for value in (0.0, 0.1, 1 / 3, 7.7):
        equal = f64([value] * 7)
        torch.testing.assert_close(respond(equal, 2.0), torch.full_like(equal, 1 / 7))
        nearly = equal * (1 + 1e-15 * torch.arange(7))
        torch.testing.assert_close(respond(nearly, 2.0), torch.full_like(equal, 1 / 7))


def slow_loss(logits: Tensor, labels: list[int], q: list[float]) -> float:
    total = 0.0
    for k, weight in enumerate(q):
        own = [row for row, label in zip(logits, labels, strict=True) if label == k]
        each = [(row.logsumexp(0) - row[k]).item() for row in own]
        total += weight * sum(each) / len(each) if each else 0.0
    return total


def test_the_loss_equals_a_loop_over_classes_also_with_negative_weights():
    method = make(SPEC, Toy(counts=(5, 5, 5, 5))).double()
    q = [0.7, -0.2, 0.1, 0.4]
    method.q.copy_(f64(q))
    for labels in ([0, 1, 1, 3, 0], [2], [3, 3, 2, 0, 1]):
        logits = 3 * torch.randn(len(labels), 4, dtype=torch.float64)
        loss, _ = loss_of(method, logits, labels)
        assert loss.item() == pytest.approx(slow_loss(logits, labels, q), rel=1e-12)


def test_the_loss_passes_gradcheck_and_gives_the_gradient_that_training_uses():
    labels = [0, 2, 2, 1]
    method = make(SPEC, Toy(counts=(5, 5, 5))).double()
    q = f64([0.7, -0.2, 0.5])
    method.q.copy_(q)
    fixed = q[labels] / torch.tensor([1, 2, 2, 1])

    def loss(z: Tensor) -> Tensor:
        return (fixed * F.cross_entropy(z, torch.tensor(labels), reduction="none")).sum()

    leaf = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(loss, leaf)
    loss(leaf).backward()
    torch.testing.assert_close(loss_of(method, leaf.detach(), labels)[1], leaf.grad)


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("chosen", [{"rho": 0.0}, {"reading": "literal"}])
def test_without_a_ball_a_balanced_batch_is_erm(chosen, dtype, rtol):
    method = make(SPEC, Toy(counts=(5, 5, 5)), **chosen).to(dtype)
    method.q.fill_(1 / 3)  # Made in float32.
    logits, labels = torch.randn(6, 3, dtype=dtype), [0, 1, 2, 2, 1, 0]
    loss, gradient = loss_of(method, logits, labels)
    leaf = logits.requires_grad_()
    expected = F.cross_entropy(leaf, torch.tensor(labels))
    expected.backward()
    torch.testing.assert_close(loss, expected.detach(), rtol=rtol, atol=0)
    torch.testing.assert_close(gradient, leaf.grad, rtol=rtol, atol=rtol / 10)


def test_the_spec_says_when_it_is_erm():
    even = Task(("a", "b"), (4, 4), (3, 8, 8), "scratch")
    uneven = Task(("a", "b"), (3, 4), (3, 8, 8), "scratch")
    ball, literal = {"reading": "ball", "rho": 0.5}, {"reading": "literal", "rho": 0.5}
    assert SPEC.reduces_to(even, ball) is None
    assert SPEC.reduces_to(even, {**ball, "rho": 0.0}) == "erm"
    assert SPEC.reduces_to(even, literal) == "erm"
    assert SPEC.reduces_to(uneven, literal) is None


def test_the_literal_reading_warns_and_takes_no_pass_of_its_own(caplog):
    with caplog.at_level(logging.INFO):
        literal = make(SPEC, Toy(), reading="literal")
        make(SPEC, Toy(), rho=0.125)
    warning, information = caplog.records
    assert warning.levelno == logging.WARNING
    assert "class-balanced ERM" in warning.message
    assert "sqrt(2 rho) = 0.5" in information.message
    assert literal.phases()[0].each_pass is None


@pytest.mark.parametrize("q_loss", ["zero-one", "ce"])
def test_the_update_takes_the_class_losses_of_the_whole_split(q_loss):
    toy = Toy(counts=(15, 14, 11), network=PLAIN)
    method = make(SPEC, toy, q_loss=q_loss, rho=0.02, decay="cosine")
    (phase,) = method.phases()
    method.eval()
    with torch.no_grad():
        phase.each_pass(toy.data("train"), 0, 4)
        torch.testing.assert_close(method.q, torch.full((3,), 1 / 3))
        phase.each_pass(toy.data("train"), 2, 4)
        logits = method.classifier(toy.train.images)
    each = F.cross_entropy(logits, toy.train.labels, reduction="none")
    if q_loss == "zero-one":
        each = (logits.argmax(1) != toy.train.labels).float()
    means = torch.stack([each[toy.train.labels == k].mean() for k in range(3)])
    target = fairdro.best_response(means, 0.02)
    assert target.std() > 0.01
    # The second of four updates by cosine: 0.854 of the way.
    expected = 1 / 3 + (1 + 0.5**0.5) / 2 * (target - 1 / 3)
    torch.testing.assert_close(method.q, expected)


def test_weights_are_negative_only_if_they_may_be():
    toy = Toy(counts=(15, 14, 11), network=PLAIN)
    lowest = []
    for clip in (True, False):
        method = make(SPEC, toy, q_loss="ce", rho=1.5, clip=clip)
        method.eval()
        with torch.no_grad():
            method.phases()[0].each_pass(toy.data("train"), 1, 4)
        lowest.append(method.q.min().item())
    assert lowest[0] == 0
    assert lowest[1] < -0.05


def test_a_class_without_images_counts_as_average():
    toy = Toy(counts=(15, 0, 11), network=PLAIN)
    method = make(SPEC, toy, q_loss="ce")
    method.eval()
    with torch.no_grad():
        means = method._class_losses(toy.data("train"))
    assert means[1].item() == pytest.approx((means[0] + means[2]).item() / 2)
    assert fairdro.best_response(means, 0.5)[1].item() == pytest.approx(1 / 3)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("chosen", [{"q_loss": "ce", "rho": 1.0}, {"clip": False}])
def test_several_processes_train_as_one(size, chosen):
    assert_ranks_equal_one(
        size,
        lambda toy: make(SPEC, toy, **chosen),
        lambda method: torch.cat([weights(method), method.q]),
    )


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
def test_hard_batches_give_finite_losses_and_gradients(labels, size):
    method = make(SPEC, Toy(counts=(15, 9, 1)))
    method.q.copy_(torch.tensor([1.4, -0.5, 0.1]))
    given_logits = torch.zeros(len(labels), 3)
    given_logits[:, labels[0]] = size
    loss, gradient = loss_of(method, given_logits, labels)
    assert loss.isfinite()
    assert gradient.isfinite().all()


def test_training_moves_q_and_no_gradient_reaches_it():
    toy = Toy(network=PLAIN)
    method = make(SPEC, toy)
    losses(method, toy)
    q = method.diagnostics()["q"]
    assert not q.requires_grad
    assert q.std() > 0
    assert q.sum().item() == pytest.approx(1, abs=1e-5)


def test_q_goes_on_from_a_checkpoint():
    toy, fresh = Toy(passes=3), Toy(passes=3, seed=1)
    whole, stopped, resumed = make(SPEC, toy), make(SPEC, toy), make(SPEC, fresh)
    losses(whole, toy)
    at = Position()
    run = train(stopped, toy, at)
    for _ in range(5):
        next(run)
    kept = load(resumed, save(stopped, at))
    assert len(list(train(resumed, fresh, kept))) > 0
    assert torch.equal(resumed.q, whole.q)
