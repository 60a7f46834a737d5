from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from classfair_plugins.methods import erm, sam
from classfair_registry.settings import NoSettings
from classfair_registry.testing import Network, Toy, in_lockstep
from classfair_registry.testing.optimizer import Rates, Sgd

DOUBLE = torch.float64


def quadratic(weight_decay=0.0, **given):
    """Return SAM on the worked examples' loss 0.5 (w1^2 + 4 w2^2) at (1, 1), and its weights."""
    method = sam.SAM(Toy(), sam.Settings(rho=0.05, **given))
    weights = nn.Parameter(torch.ones(2, dtype=DOUBLE))
    rates = Rates(lr=0.1, momentum=0.0, weight_decay=weight_decay, clip=None)
    method.optimizer = Sgd([("w", weights)], Toy().world, None, rates)
    curvature, decay = torch.tensor([1.0, 4.0], dtype=DOUBLE), method.settings.inner_decay or 0.0
    method.loss = lambda _: 0.5 * ((curvature + decay) * weights.square()).sum()
    return method, weights


def close(actual, expected, example):
    expected = torch.tensor(expected, dtype=actual.dtype)
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=example["tolerance"])


def test_perturbation_and_step_are_those_of_the_worked_example(worked_example):
    example = worked_example("sam-1")
    expected = example["expected"]
    weights = torch.tensor(example["inputs"]["w"], dtype=DOUBLE)
    gradient = torch.tensor(expected["grad"], dtype=DOUBLE)
    (uphill,) = sam.ascent([weights], [gradient], example["inputs"]["rho"])
    close(uphill, expected["perturbation"], example)
    method, weights = quadratic()
    terms = method.step(Toy().batch())
    close(weights, expected["w_new"], example)
    worst = torch.tensor(expected["w_adv"], dtype=DOUBLE)
    at_worst = 0.5 * (worst[0] ** 2 + 4 * worst[1] ** 2)
    assert terms["loss"].item() == 2.5
    assert terms["perturbed"].item() == pytest.approx(at_worst.item(), abs=1e-6)


def test_weight_decay_is_in_the_base_step_or_in_both_passes(worked_example):
    example = worked_example("sam-2")
    decay = example["inputs"]["weight_decay"]
    method, weights = quadratic(weight_decay=decay)
    method.step(Toy().batch())
    close(weights, example["expected"]["w_new_decay_in_base_optimizer"], example)
    method, weights = quadratic(inner_decay=decay)
    method.step(Toy().batch())
    close(weights, example["expected"]["w_new_decay_inside_loss"], example)


def test_inner_decay_replaces_the_decay_of_the_base_step():
    method = sam.SAM(Toy(), sam.Settings(inner_decay=0.01))
    assert method.optimizer.rates.weight_decay == 0
    plain = sam.SAM(Toy(), sam.Settings())
    assert plain.optimizer.rates.weight_decay == Rates().weight_decay
    method.eval(), plain.eval()
    squares = sum(weight.square().sum().item() for weight in method.parameters())
    added = method.loss(Toy().batch()) - plain.loss(Toy().batch())
    assert added.item() == pytest.approx(0.005 * squares, rel=1e-4)


def test_running_statistics_move_on_the_clean_pass_only(worked_example):
    example = worked_example("sam-3")
    inputs, expected = example["inputs"], example["expected"]
    norm = nn.BatchNorm1d(1, momentum=inputs["bn_momentum"], dtype=DOUBLE)
    images = torch.tensor(inputs["x"], dtype=DOUBLE)[:, None]
    weight = nn.Parameter(torch.tensor(inputs["w"], dtype=DOUBLE))
    norm(weight * images)
    with sam.unchanged(norm.buffers()):
        norm(inputs["w_adv"] * images)
        close(norm.running_mean, [expected["wrong_if_second_pass_also_updates"][0]], example)
    close(norm.running_mean, [expected["final_running_mean"]], example)
    close(norm.running_var, [expected["final_running_var"]], example)
    assert norm.num_batches_tracked.item() == 1


def test_a_step_leaves_batch_statistics_as_one_clean_pass_does():
    toy = Toy(network=Network(dropout=0.0))
    method = sam.SAM(toy, sam.Settings(rho=0.5))
    once = toy.classifier()
    once(toy.batch().images)
    method.step(toy.batch())
    for one, other in zip(once.buffers(), method.classifier.buffers(), strict=True):
        assert torch.equal(one, other)


def test_a_zero_gradient_gives_no_perturbation(worked_example):
    example = worked_example("sam-4")
    weights = torch.tensor(example["inputs"]["w"])
    gradient = torch.tensor(example["inputs"]["grad"])
    for adaptive in (False, True):
        (uphill,) = sam.ascent([weights], [gradient], 0.05, adaptive=adaptive)
        close(uphill, example["expected"]["perturbation"], example)


@settings(max_examples=20, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.001, 1000), st.booleans())
def test_perturbation_has_length_rho_and_ignores_the_scale_of_the_loss(seed, scale, adaptive):
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(3, 2, generator=generator, dtype=DOUBLE) for _ in range(2)]
    slopes = [torch.randn(3, 2, generator=generator, dtype=DOUBLE) for _ in range(2)]
    uphill = sam.ascent(weights, slopes, 0.3, adaptive=adaptive)
    scaled = sam.ascent(weights, [scale * slope for slope in slopes], 0.3, adaptive=adaptive)
    for one, other in zip(uphill, scaled, strict=True):
        torch.testing.assert_close(one, other)
    sizes = [w.abs() if adaptive else torch.ones_like(w) for w in weights]
    length = sum((e / size).square().sum() for e, size in zip(uphill, sizes, strict=True)).sqrt()
    assert length.item() == pytest.approx(0.3)


def test_adaptive_perturbation_is_that_of_a_loop_over_weights():
    pairs = [(2.0, 1.0), (-1.0, 3.0), (0.0, 5.0)]
    norm = math.sqrt(sum((w * g) ** 2 for w, g in pairs))
    expected = [0.1 * w * w * g / norm for w, g in pairs]
    weights, slopes = torch.tensor(pairs).T
    (uphill,) = sam.ascent([weights], [slopes], 0.1, adaptive=True)
    assert uphill.tolist() == pytest.approx(expected)


def weights_after(method, toy, steps=3):
    for number in range(steps):
        torch.manual_seed(number)
        method.phases()[0].step(toy.batch())
    return [value.clone() for value in method.state_dict().values()]


@pytest.mark.parametrize("adaptive", [False, True])
def test_rho_0_trains_as_erm_bit_for_bit(adaptive):
    toy = Toy(network=Network(dropout=0.5))
    assert sam.reduces_to(toy.task, {"rho": 0.0, "adaptive": adaptive}) == "erm"
    method = sam.SAM(toy, sam.Settings(rho=0.0, adaptive=adaptive))
    expected = weights_after(erm.ERM(toy, NoSettings()), toy)
    for one, other in zip(weights_after(method, toy), expected, strict=True):
        assert torch.equal(one, other)


def test_both_passes_drop_the_same_unless_asked_for_new_masks():
    toy = Toy(network=Network(dropout=0.5))
    for dropout, same in (("same", True), ("new", False)):
        method = sam.SAM(toy, sam.Settings(rho=0.0, dropout=dropout))
        terms = method.step(toy.batch())
        assert torch.equal(terms["loss"], terms["perturbed"]) is same


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rho": 0.05}, None),
        ({"rho": 0.0, "inner_decay": 0.01}, None),
        ({"rho": 0.0, "dropout": "new"}, None),
    ],
)
def test_anything_else_is_not_erm(given, expected):
    assert sam.reduces_to(Toy().task, given) is expected


@pytest.mark.parametrize("feature_scale", [0.0, 1e4])
@pytest.mark.parametrize("index", [[0], [0, 1], list(range(13))])
def test_losses_and_weights_stay_finite(feature_scale, index):
    toy = Toy(network=Network(norm="none", feature_scale=feature_scale))
    method = sam.SAM(toy, sam.Settings(rho=0.5))
    terms = method.step(toy.batch(index))
    assert all(value.isfinite() for value in terms.values())
    assert all(value.isfinite().all() for value in method.parameters())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("given", [{}, {"adaptive": True, "rho": 0.5}, {"inner_decay": 0.01}])
def test_several_processes_take_the_steps_of_one(size, given):
    def weights_after_steps(world):
        toy = Toy(network=Network(norm="none", dropout=0), world=world)
        method = sam.SAM(toy, sam.Settings(**given))
        for total in (13, 2, 7):
            with world.batch(total) as rows:
                method.step(toy.batch(range(rows.start, rows.stop)))
        return torch.cat([value.detach().flatten() for value in method.parameters()])

    (alone,) = in_lockstep(1, weights_after_steps)
    for each in in_lockstep(size, weights_after_steps):
        torch.testing.assert_close(each, alone, rtol=1e-4, atol=1e-6)
