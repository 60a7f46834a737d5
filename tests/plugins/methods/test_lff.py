from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from classfair_plugins.methods import lff
from classfair_registry.testing import Network, Toy, in_lockstep

DOUBLE = torch.float64


def close(actual, expected, example):
    expected = torch.tensor(expected, dtype=DOUBLE)
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=example["tolerance"])


# -- the biased network's loss ----------------------------------------------------------------


@pytest.mark.parametrize("form", ["official", "paper"])
def test_surrogate_loss_and_gradient_are_those_of_the_worked_example(worked_example, form):
    example = worked_example("lff_gce_1")
    inputs, expected = example["inputs"], example["expected"]
    logits = torch.tensor(inputs["logits_b"], dtype=DOUBLE, requires_grad=True)
    losses = lff.surrogate_losses(logits, torch.tensor(inputs["labels"]), inputs["q"], form)
    losses.mean().backward()
    close(losses, expected[f"{form}_per_sample"], example)
    assert losses.mean().item() == pytest.approx(expected[f"{form}_loss"], abs=1e-6)
    close(logits.grad, expected[f"{form}_grad_logits"], example)


def random_logits(seed=0, size=6, num_classes=4):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(size, num_classes, generator=generator, dtype=DOUBLE)
    return logits, torch.randint(num_classes, (size,), generator=generator)


def test_surrogate_is_that_of_a_loop_over_samples():
    logits, labels = random_logits()
    for form in ("official", "paper"):
        losses = lff.surrogate_losses(logits, labels, 0.7, form)
        for row, label, loss in zip(logits.tolist(), labels.tolist(), losses, strict=True):
            p = math.exp(row[label]) / sum(math.exp(z) for z in row)
            slow = -0.7 * p**0.7 * math.log(p) if form == "official" else (1 - p**0.7) / 0.7
            assert loss.item() == pytest.approx(slow)


def test_generalised_cross_entropy_agrees_with_finite_differences():
    logits, labels = random_logits()
    assert torch.autograd.gradcheck(
        lambda z: lff.surrogate_losses(z, labels, 0.7, "paper"), logits.requires_grad_()
    )


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.1, 1.0))
def test_the_official_gradient_is_q_times_that_of_the_paper(seed, q):
    logits, labels = random_logits(seed)
    logits.requires_grad_()
    official, paper = (
        torch.autograd.grad(lff.surrogate_losses(logits, labels, q, form).sum(), logits)[0]
        for form in ("official", "paper")
    )
    torch.testing.assert_close(official, q * paper)


@pytest.mark.parametrize("form", ["official", "paper"])
def test_surrogate_stays_finite_for_hopeless_and_for_certain_answers(form):
    logits = torch.tensor([[1e4, 0.0], [0.0, 1e4], [0.0, 0.0]], requires_grad=True)
    losses = lff.surrogate_losses(logits, torch.tensor([1, 1, 0]), 0.7, form)
    losses.sum().backward()
    assert losses.isfinite().all()
    assert logits.grad.isfinite().all()


# -- the debiased network's weights -----------------------------------------------------------


def test_averages_and_weights_over_three_batches_are_those_of_the_example(worked_example):
    example = worked_example("lff_ema_weights_1")
    inputs = example["inputs"]
    toy = Toy(counts=(2, 3))
    method = lff.LfF(toy, lff.Settings(decay=inputs["alpha"])).double()
    object.__setattr__(method.task, "labels", torch.tensor(inputs["train_labels"]))
    for step, after in zip(inputs["steps"], example["expected"]["after_each_step"], strict=True):
        losses = torch.tensor([step["ce_b"], step["ce_d"]], dtype=DOUBLE)
        index = torch.tensor(step["index"])
        close(method._weights(index, losses), after["weight"], example)
        close(method.table, [after["ema_b"], after["ema_d"]], example)
        for table, norm in zip(method.table, (after["norm_b"], after["norm_d"]), strict=True):
            close(lff.relative_losses(table, method.task.labels, index, 2), norm, example)


def test_the_class_maximum_takes_away_the_difficulty_of_the_class(worked_example):
    example = worked_example("lff_class_scale_1")
    inputs = example["inputs"]
    labels, index = torch.tensor(inputs["train_labels"]), torch.tensor(inputs["first_batch_index"])
    relative = []
    for name in ("b", "d"):
        table = torch.tensor(inputs[f"ce_{name}"], dtype=DOUBLE)
        relative.append(lff.relative_losses(table, labels, index, 2))
        close(relative[-1], example["expected"][f"norm_{name}"], example)
    close(lff.difficulty_weights(*relative), example["expected"]["weight"], example)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 100))
def test_scaling_the_losses_of_one_class_changes_no_weight(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(2, 20, generator=generator, dtype=DOUBLE) + 0.1
    labels, index = torch.arange(20) % 4, torch.randperm(20, generator=generator)[:9]

    def weights(values):
        return lff.difficulty_weights(*(lff.relative_losses(t, labels, index, 4) for t in values))

    scaled = torch.where(labels == 2, scale * table, table)
    torch.testing.assert_close(weights(scaled), weights(table))


def test_relative_losses_are_those_of_a_loop_over_the_training_set():
    generator = torch.Generator().manual_seed(0)
    table, labels = torch.rand(30, generator=generator, dtype=DOUBLE), torch.arange(30) % 7
    index = torch.randperm(30, generator=generator)[:11]
    slow = [
        table[i] / max(table[j] for j in range(30) if labels[j] == labels[i])
        for i in index.tolist()
    ]
    torch.testing.assert_close(lff.relative_losses(table, labels, index, 7), torch.stack(slow))


def test_a_class_whose_losses_are_all_zero_is_weighted_by_half():
    nothing = torch.zeros(3)
    relative = lff.relative_losses(nothing, torch.tensor([0, 0, 1]), torch.tensor([0, 2]), 2)
    assert lff.difficulty_weights(relative, relative).tolist() == [0.5, 0.5]


# -- the step ---------------------------------------------------------------------------------


class Answers(nn.Module):
    """A classifier whose logits are its parameter."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits.clone())

    def forward(self, images):
        return self.logits


def test_a_step_has_the_gradients_of_the_two_weighted_losses():
    toy = Toy()
    method = lff.LfF(toy, lff.Settings()).double()
    batch = toy.batch()
    labels, count = batch.labels, len(batch.labels)
    biased, debiased = random_logits(1, count, 3)[0], random_logits(2, count, 3)[0]
    for name, logits in (("biased", biased), ("classifier", debiased)):
        setattr(method, name, Answers(logits))
    method.biased_optimizer = toy.optimizer(method.biased)
    method.optimizer = toy.optimizer(method.classifier)
    terms = method.step(batch)

    rows = torch.arange(count)
    one_hot = torch.eye(3, dtype=DOUBLE)[labels]
    p, u = biased.softmax(1), [-z.log_softmax(1)[rows, labels] for z in (biased, debiased)]
    for k in range(3):
        for losses in u:
            losses[labels == k] /= losses[labels == k].max()
    weight = u[0] / (u[0] + u[1] + 1e-8)
    expected = 0.7 * p[rows, labels, None] ** 0.7 * (p - one_hot) / count
    torch.testing.assert_close(method.biased.logits.grad, expected)
    expected = weight[:, None] * (debiased.softmax(1) - one_hot) / count
    torch.testing.assert_close(method.classifier.logits.grad, expected)
    torch.testing.assert_close(terms["loss"], terms["biased"] + terms["debiased"])


def test_the_two_networks_start_differently_and_the_debiased_one_is_judged():
    toy = Toy()
    method = lff.LfF(toy, lff.Settings())
    for index, network in enumerate((method.classifier, method.biased)):
        for one, other in zip(
            network.parameters(), toy.classifier(index).parameters(), strict=True
        ):
            assert torch.equal(one, other)
    assert method.evaluated() is method.classifier
    method.step(toy.batch([3, 5]))
    assert method.visited.nonzero()[:, 0].tolist() == [3, 5]


@pytest.mark.parametrize("feature_scale", [0.0, 1e4])
@pytest.mark.parametrize("index", [[0], [0, 1, 2], list(range(13))])
def test_losses_and_weights_stay_finite(feature_scale, index):
    toy = Toy(network=Network(norm="none", feature_scale=feature_scale))
    method = lff.LfF(toy, lff.Settings())
    for _ in range(2):
        terms = method.step(toy.batch(index))
        assert all(value.isfinite() for value in terms.values())
    assert all(value.isfinite().all() for value in method.parameters())


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_take_the_steps_of_one(size):
    def weights_after_steps(world):
        toy = Toy(network=Network(norm="none", dropout=0), world=world)
        method = lff.LfF(toy, lff.Settings())
        for first, total in ((0, 13), (5, 2), (8, 7)):
            with world.batch(total) as rows:
                method.step(toy.batch(range(first + rows.start, first + rows.stop)))
        values = [value.detach().flatten() for value in method.parameters()]
        return torch.cat([*values, method.table.flatten(), method.visited])

    (alone,) = in_lockstep(1, weights_after_steps)
    for each in in_lockstep(size, weights_after_steps):
        torch.testing.assert_close(each, alone, rtol=1e-4, atol=1e-6)
