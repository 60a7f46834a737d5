from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classfair_plugins.methods import erm, supcon
from classfair_registry.plain import safe_normalize
from classfair_registry.settings import NoSettings
from classfair_registry.testing import Network, Toy, in_lockstep

DOUBLE = torch.float64


def losses_of(features, labels, temperature=0.5, base_temperature=0.07):
    """Return the view-major [V B] losses of [B, V, d] features."""
    views = features.shape[1]
    rows, labels = features.transpose(0, 1).flatten(0, 1), labels.repeat(views)
    itself = torch.eye(len(rows), dtype=torch.bool)
    positive = (labels[:, None] == labels) & ~itself
    return supcon.contrastive_losses(rows, rows, positive, itself, temperature, base_temperature)


def random_features(seed=0, size=5, views=2, width=3, num_classes=3):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, views, width, generator=generator, dtype=DOUBLE)
    return safe_normalize(features), torch.randint(num_classes, (size,), generator=generator)


# -- the loss ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["supcon_1", "supcon_no_positive_1", "supcon_collapse_1"])
def test_losses_are_those_of_the_worked_examples(worked_example, name):
    example = worked_example(name)
    inputs, expected = example["inputs"], example["expected"]
    features = torch.tensor(inputs["features_B_V_d"], dtype=DOUBLE)
    labels, t = torch.tensor(inputs["labels"]), inputs["temperature"]
    losses = losses_of(features, labels, t, inputs["base_temperature"])
    assert losses.mean().item() == pytest.approx(expected["loss"], abs=example["tolerance"])
    each = expected.get("per_anchor_view_major") or expected.get("per_anchor")
    if each is not None:
        assert losses.tolist() == pytest.approx(each, abs=example["tolerance"])
    if "loss_base_equals_temperature" in expected:
        unscaled = losses_of(features, labels, t, t).mean().item()
        assert unscaled == pytest.approx(expected["loss_base_equals_temperature"], abs=1e-5)


def slow_loss(rows, labels, i, temperature):
    similar = [math.exp(float(rows[i] @ row) / temperature) for row in rows]
    others = sum(similar) - similar[i]
    logs = [
        math.log(similar[j] / others) for j in range(len(rows)) if j != i and labels[j] == labels[i]
    ]
    return -sum(logs) / len(logs) if logs else 0.0


@pytest.mark.parametrize("views", [1, 2, 3])
def test_losses_are_those_of_loops_over_pairs(views):
    features, labels = random_features(views=views)
    losses = losses_of(features, labels, 0.5, 0.5)
    rows, labels = features.transpose(0, 1).flatten(0, 1), labels.repeat(views)
    slow = [slow_loss(rows, labels, i, 0.5) for i in range(len(rows))]
    assert losses.tolist() == pytest.approx(slow)


def test_gradient_agrees_with_finite_differences():
    features, labels = random_features()
    assert torch.autograd.gradcheck(
        lambda x: losses_of(safe_normalize(x), labels).sum(), features.requires_grad_()
    )


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.permutations(range(5)))
def test_order_of_images_and_of_views_does_not_matter(seed, order):
    features, labels = random_features(seed)
    loss = losses_of(features, labels).mean()
    torch.testing.assert_close(losses_of(features[order], labels[order]).mean(), loss)
    torch.testing.assert_close(losses_of(features.flip(1), labels).mean(), loss)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.01, 10))
def test_base_temperature_only_scales(seed, base):
    features, labels = random_features(seed)
    scaled = losses_of(features, labels, 0.5, base) * base
    torch.testing.assert_close(scaled, losses_of(features, labels, 0.5, 1.0))


def test_labels_that_are_all_distinct_give_the_unsupervised_loss():
    features, _ = random_features()
    losses = losses_of(features, torch.arange(5), 0.5, 0.5)
    rows = features.transpose(0, 1).flatten(0, 1)
    logits = (rows @ rows.T / 0.5).fill_diagonal_(-torch.inf)
    other_view = (torch.arange(10) + 5) % 10
    expected = torch.nn.functional.cross_entropy(logits, other_view, reduction="none")
    torch.testing.assert_close(losses, expected)


@pytest.mark.parametrize("temperature", [0.001, 0.07, 10.0])
def test_losses_stay_finite_at_any_temperature(temperature):
    features, labels = random_features()
    features = features.float().requires_grad_()
    loss = losses_of(features, labels, temperature).mean()
    loss.backward()
    assert loss.isfinite()
    assert features.grad.isfinite().all()


def test_a_lone_row_costs_nothing():
    row = torch.ones(1, 1, 1).requires_grad_()
    losses_of(row, torch.tensor([0])).sum().backward()
    assert losses_of(row, torch.tensor([0])).tolist() == [0.0]
    assert row.grad.item() == 0


# -- the stages -------------------------------------------------------------------------------


def changed(before, module):
    return {name for name, value in module.state_dict().items() if not value.equal(before[name])}


def snapshot(module):
    return {name: value.clone() for name, value in module.state_dict().items()}


def test_pretraining_trains_the_encoder_and_the_projection_on_two_views():
    toy = Toy()
    method = supcon.SupCon(toy, supcon.Settings())
    pretrain, probe = method.phases()
    assert (pretrain.views, pretrain.share, pretrain.selectable) == (2, 1.0, False)
    assert (probe.views, probe.share) == (1, 0.25)
    before = snapshot(method)
    pretrain.step(toy.batch(views=2))
    moved = {name.split(".")[0] + "." + name.split(".")[1] for name in changed(before, method)}
    assert "classifier.backbone" in moved
    assert {"projection.0", "projection.2"} <= moved
    assert "classifier.head" not in moved


def test_the_probe_trains_the_head_alone_on_a_frozen_encoder_in_evaluation_mode():
    toy = Toy(network=Network(dropout=0.5))
    method = supcon.SupCon(toy, supcon.Settings(probe_lr=0.5))
    probe = method.phases()[1]
    assert method.optimizer.rates.lr == 0.5
    assert method.optimizer.rates.weight_decay == 0.0
    before = snapshot(method)
    method.train()
    first = probe.step(toy.batch())["loss"]
    assert changed(before, method) == {"classifier.head.weight", "classifier.head.bias"}
    plain = toy.classifier().eval()
    expected = torch.nn.functional.cross_entropy(plain(toy.batch().images), toy.batch().labels)
    torch.testing.assert_close(first, expected)


def test_joint_training_blocks_the_gradient_of_the_classifier():
    toy = Toy(network=Network(dropout=0.0))
    joint = supcon.SupCon(toy, supcon.Settings(mode="joint"))
    staged = supcon.SupCon(toy, supcon.Settings())
    staged.load_state_dict(joint.state_dict())
    (phase,) = joint.phases()
    assert phase.views == 2
    terms = phase.step(toy.batch(views=2))
    loss = staged.phases()[0].step(toy.batch(views=2))["loss"]
    torch.testing.assert_close(terms["contrast"], loss)
    torch.testing.assert_close(terms["loss"], terms["contrast"] + terms["cross_entropy"])
    for one, other in zip(
        joint.classifier.backbone.parameters(),
        staged.classifier.backbone.parameters(),
        strict=True,
    ):
        torch.testing.assert_close(one.grad, other.grad)
    assert joint.classifier.head.weight.grad.any()


@pytest.mark.parametrize("mode", ["two-stage", "joint"])
def test_in_a_probe_it_is_erm_bit_for_bit(mode):
    toy = Toy(regime="probe")
    method = supcon.SupCon(toy, supcon.Settings(mode=mode))
    plain = erm.ERM(toy, NoSettings())
    assert supcon.reduces_to(toy.task, {"mode": mode}) == "erm"
    assert supcon.reduces_to(Toy().task, {}) is None
    (phase,) = method.phases()
    assert phase.share == 1.0
    for each in (phase, plain.phases()[0]):
        method.train(), plain.train()
        for _ in range(3):
            each.step(toy.batch())
    assert method.classifier.head.weight.equal(plain.classifier.head.weight)


def test_the_projection_has_one_hidden_layer_of_the_features_width():
    method = supcon.SupCon(Toy(), supcon.Settings(projection=7))
    width = method.classifier.backbone.num_features
    assert [tuple(p.shape) for p in method.projection.parameters()] == [
        (width, width),
        (width,),
        (7, width),
        (7,),
    ]


@pytest.mark.parametrize("mode", ["two-stage", "joint"])
@pytest.mark.parametrize("feature_scale", [0.0, 1e4])
@pytest.mark.parametrize("index", [[0], [0, 1, 2], list(range(13))])
def test_losses_and_weights_stay_finite(mode, feature_scale, index):
    toy = Toy(network=Network(norm="none", feature_scale=feature_scale))
    method = supcon.SupCon(toy, supcon.Settings(mode=mode))
    for phase in method.phases():
        terms = phase.step(toy.batch(index, views=phase.views))
        assert all(value.isfinite() for value in terms.values())
    assert all(value.isfinite().all() for value in method.parameters())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("mode", ["two-stage", "joint"])
def test_several_processes_take_the_steps_of_one(size, mode):
    def weights_after_steps(world):
        toy = Toy(network=Network(norm="none", dropout=0), world=world)
        torch.manual_seed(0)
        method = supcon.SupCon(toy, supcon.Settings(mode=mode))
        for phase in method.phases():
            for first, total in ((0, 13), (5, 2), (8, 7)):
                with world.batch(total) as rows:
                    batch = toy.batch(range(first + rows.start, first + rows.stop))
                    views = [batch.images, batch.images.flip(3)]
                    phase.step(dataclasses.replace(batch, views=views))
        return torch.cat([value.detach().flatten() for value in method.parameters()])

    (alone,) = in_lockstep(1, weights_after_steps)
    for each in in_lockstep(size, weights_after_steps):
        torch.testing.assert_close(each, alone, rtol=1e-4, atol=1e-5)
