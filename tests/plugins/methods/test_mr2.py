from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from mr2_tools import PRESETS, Given, batch_of, method_on, random_batch, slow_objective

from classfair_plugins.methods import erm, mr2
from classfair_registry.errors import UsageError
from classfair_registry.settings import NoSettings, build, describe, resolve
from classfair_registry.testing import Network, Toy, in_lockstep

# -- the method, against the equations and the released code ----------------------------------


@pytest.mark.parametrize("preset", PRESETS)
def test_loss_and_gradient_after_several_batches_are_those_of_the_rules(preset):
    batches = [random_batch(seed, num_classes=6) for seed in range(3)]
    method = method_on(batches[0][0], 6, preset=preset)
    weight = method.classifier.weight
    for features, labels in batches:
        method.classifier = Given(features, 6)
        loss = method.loss(batch_of(labels))["loss"]
    (gradient,) = torch.autograd.grad(loss, method.classifier.values)
    free = batches[-1][0].clone().requires_grad_()
    batches[-1] = (free, batches[-1][1])
    slow = slow_objective(batches, 6, weight, mr2.PRESETS[preset])
    torch.testing.assert_close(loss, slow)
    torch.testing.assert_close(gradient, torch.autograd.grad(slow, free)[0])


def test_the_released_scale_is_almost_a_penalty_on_the_spread():
    features, labels = random_batch(size=40, width=64)
    features = features.relu()
    method = method_on(features, 4, preset="official-head", logit=False)
    (gradient,) = torch.autograd.grad(
        method.loss(batch_of(labels))["representation"], method.classifier.values
    )
    free = features.clone().requires_grad_()
    spreads = sum((free[labels == k].var(0, unbiased=False)).sum() for k in range(4))
    (expected,) = torch.autograd.grad(2 / (100 * 4) * spreads, free)
    assert F.cosine_similarity(gradient.flatten(), expected.flatten(), dim=0) > 0.999
    assert gradient.norm().item() == pytest.approx(expected.norm().item(), rel=0.02)


def test_presets_set_what_is_null_and_leave_what_is_given():
    head = mr2.rules_of(mr2.Settings(preset="official-head", c_bar=1.0, s_bar="live-p"))
    expected = dataclasses.replace(mr2.PRESETS["official-head"], c_bar=1.0, s_bar="live-p")
    assert head == expected
    assert mr2.rules_of(mr2.Settings()) == mr2.PRESETS["paper"]


def test_every_preset_is_complete_and_its_values_are_legal():
    described = {item.name: item for item in describe(mr2.Settings)}
    for name, rules in mr2.PRESETS.items():
        for rule, value in dataclasses.asdict(rules).items():
            checked = described[rule.rstrip("_")].check(value, name)
            assert checked is not None
            assert checked == value


def test_yaml_names_lambda_and_refuses_an_infinite_p():
    described = describe(mr2.Settings)
    made = build(mr2.Settings, resolve(described, {"lambda": 0.3, "p": 1e6}, "mr2"))
    assert (made.lambda_, made.p) == (0.3, mr2.INFINITE)
    with pytest.raises(UsageError, match=r"mr2\.p"):
        resolve(described, {"p": math.inf}, "mr2")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"representation": False}, {"loss"}),
        ({"lambda_": 0.0}, {"loss"}),
        ({"logit": False}, {"loss", "logit", "representation"}),
    ],
)
def test_each_of_the_two_losses_can_be_left_out(given, names):
    features, labels = random_batch()
    method = method_on(features, 4, **given)
    terms = method.loss(batch_of(labels))
    assert set(terms) == names
    if not given.get("logit", True):
        plain = F.cross_entropy(method.classifier.head(features), labels)
        torch.testing.assert_close(terms["logit"], plain)
        assert method.diagnostics()["gamma"].tolist() == [1.0] * 4


def test_uniform_margins_are_c_bar_for_every_class():
    features, labels = random_batch()
    method = method_on(features, 4, margins="uniform", c_bar=3.0, representation=False)
    plain = F.cross_entropy(method.classifier.head(features) / 3, labels)
    torch.testing.assert_close(method.loss(batch_of(labels))["loss"], plain)


def test_features_of_length_one_have_class_margins_only_in_another_norm():
    features, labels = random_batch(size=40)
    for p, alike in ((2.0, True), (3.0, False)):
        method = method_on(F.normalize(features), 4, p=p)
        method.loss(batch_of(labels))
        margins = method.diagnostics()["gamma"]
        assert margins.mean().item() == pytest.approx(2.0)
        assert torch.allclose(margins, torch.full_like(margins, 2.0)) is alike


def test_s_bar_zero_takes_the_margin_out_of_the_exponents():
    features, labels = random_batch()
    method = method_on(features, 4, s_bar="zero")
    positive = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    expected = mr2.pair_losses(features, features, positive, torch.zeros(())).mean()
    torch.testing.assert_close(method.loss(batch_of(labels))["representation"], expected)


def test_live_p_measures_s_bar_in_the_norm_of_the_statistics():
    statistics = torch.tensor([[1.0, 1.0], [2.0, 4.0], [6.0, 8.0]])
    seen = torch.tensor([True, True])
    for s_bar, expected in (("live", 7.0), ("live-p", 3.0), ("zero", 0.0)):
        rules = mr2.rules_of(mr2.Settings(s_bar=s_bar))
        assert mr2.mean_spread(statistics, seen, rules).item() == expected


def test_averages_live_on_over_passes_unless_they_restart():
    toy = Toy()
    for restart in (False, True):
        method = mr2.MR2(toy, mr2.Settings(restart=restart))
        (phase,) = method.phases()
        phase.step(toy.batch())
        if phase.each_pass is not None:
            phase.each_pass(toy.data("train"), 1, 2)
        assert method.seen.any().item() is not restart
        assert method.statistics.any().item() is not restart


def test_order_within_the_batch_does_not_matter():
    features, labels = random_batch()
    shuffle = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    one = method_on(features, 4).loss(batch_of(labels))["loss"]
    other = method_on(features[shuffle], 4).loss(batch_of(labels[shuffle]))["loss"]
    torch.testing.assert_close(one, other)


# -- reductions -------------------------------------------------------------------------------


def test_uniform_unit_margins_alone_train_as_erm_bit_for_bit():
    toy = Toy()
    plain = erm.ERM(toy, NoSettings())
    given = {"margins": "uniform", "c_bar": 1.0, "representation": False}
    assert mr2.reduces_to(toy.task, given) == "erm"
    method = mr2.MR2(toy, mr2.Settings(**given))
    for _ in range(3):
        for each in (plain, method):
            torch.manual_seed(0)
            each.phases()[0].step(toy.batch())
    for one, other in zip(plain.parameters(), method.parameters(), strict=True):
        assert torch.equal(one, other)


def test_equal_statistics_with_c_bar_1_and_lambda_0_are_the_cross_entropy():
    features, labels = random_batch()
    features = F.normalize(features)  # so that each class's mean squared length is one
    method = method_on(features, 4, c_bar=1.0, lambda_=0.0)
    loss = method.loss(batch_of(labels))["loss"]
    plain = F.cross_entropy(method.classifier.head(method.classifier.values), labels)
    values = method.classifier.values
    torch.testing.assert_close(loss, plain, rtol=1e-12, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(loss, values), torch.autograd.grad(plain, values), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize(
    ("regime", "given", "expected"),
    [
        ("scratch", {}, None),
        ("probe", {}, None),
        ("scratch", {"logit": False}, None),
        ("probe", {"logit": False}, "erm"),
        ("scratch", {"c_bar": 0, "lambda": 0}, "erm"),
        ("scratch", {"c_bar": 1, "lambda": 0}, None),
        ("finetune", {"margins": "uniform", "c_bar": 1, "representation": False}, "erm"),
        ("finetune", {"margins": "uniform", "representation": False}, None),
    ],
)
def test_reduces_to_erm_where_neither_loss_is_left(regime, given, expected):
    assert mr2.reduces_to(Toy(regime=regime).task, given) == expected


def test_a_probe_leaves_out_the_representation_loss():
    toy = Toy(regime="probe")
    terms = mr2.MR2(toy, mr2.Settings()).phases()[0].step(toy.batch())
    assert set(terms) == {"loss"}


# -- numbers that hurt ------------------------------------------------------------------------


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


CASES = {
    "absent class": (normal(4, 3), [0, 0, 1, 1]),
    "single-sample classes": (normal(3, 3), [0, 1, 2]),
    "batch of one": (normal(1, 3), [1]),
    "constant features": (torch.ones(4, 3), [0, 0, 1, 1]),
    "zero vectors": (torch.zeros(4, 3), [0, 0, 1, 1]),
    "one class zero": (torch.tensor([[0.0] * 3, [0.0] * 3, [9.0] * 3, [7.0] * 3]), [0, 0, 1, 1]),
    "logits of 1e4": (1e4 * normal(6, 3), [0, 0, 1, 1, 2, 2]),
    "tiny features": (1e-12 * normal(6, 3), [0, 0, 1, 1, 2, 2]),
    "huge features": (1e12 * normal(6, 3), [0, 0, 1, 1, 2, 2]),
}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_stay_finite(case, preset):
    features, labels = CASES[case]
    method = method_on(features, 4, preset=preset)
    for _ in range(2):
        terms = method.loss(batch_of(torch.tensor(labels)))
        (gradient,) = torch.autograd.grad(terms["loss"], method.classifier.values)
        assert all(value.isfinite() for value in terms.values())
        assert gradient.isfinite().all()
    assert method.diagnostics()["gamma"].isfinite().all()


def test_a_common_offset_does_not_cost_the_distances_their_digits():
    features, labels = random_batch()
    exact = method_on(features, 4, logit=False).loss(batch_of(labels))["representation"]
    shifted = (features + 1000).float()
    rounded = method_on(shifted, 4, logit=False).loss(batch_of(labels))["representation"]
    assert rounded.item() == pytest.approx(exact.item(), rel=1e-3)


def test_no_tensor_of_pairs_times_features_is_kept():
    features = normal(64, 200)
    method = method_on(features, 4)
    sizes = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda kept: sizes.append(kept.numel()) or kept, lambda kept: kept
    ):
        method.loss(batch_of(torch.arange(64) % 4))
    assert 0 < max(sizes) <= 64 * 200


# -- several processes ------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("preset", PRESETS)
def test_several_processes_take_the_steps_of_one(size, preset):
    def weights_after_steps(world):
        toy = Toy(network=Network(norm="none", dropout=0), world=world)
        method = mr2.MR2(toy, mr2.Settings(preset=preset))
        for total in (13, 2, 7):
            with world.batch(total) as rows:
                method.phases()[0].step(toy.batch(range(rows.start, rows.stop)))
        values = [value.detach().flatten() for value in method.parameters()]
        return torch.cat([*values, method.statistics.flatten()])

    (alone,) = in_lockstep(1, weights_after_steps)
    for each in in_lockstep(size, weights_after_steps):
        torch.testing.assert_close(each, alone, rtol=1e-4, atol=1e-6)
