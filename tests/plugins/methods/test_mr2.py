from __future__ import annotations

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from classfair_plugins.methods import erm, mr2
from classfair_registry.contracts import Batch
from classfair_registry.errors import UsageError
from classfair_registry.settings import NoSettings, build, describe, resolve
from classfair_registry.testing import Network, Toy, in_lockstep

DOUBLE = torch.float64
PRESETS = ("paper", "official-2025-05", "official-head")


def random_batch(seed=0, size=12, width=5, num_classes=4):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, width, generator=generator, dtype=DOUBLE)
    labels = torch.randint(num_classes, (size,), generator=generator)
    return features, labels


class Given(nn.Module):
    """A classifier whose features are its parameter, so that a loss can be given any features."""

    def __init__(self, features, num_classes):
        super().__init__()
        self.values = nn.Parameter(features)
        weight = torch.linspace(-1, 1, num_classes * features.shape[1], dtype=features.dtype)
        self.register_buffer("weight", weight.view(num_classes, -1))

    def features(self, images):
        return self.values

    def head(self, features):
        return features @ self.weight.T


def method_on(features, num_classes, **given):
    method = mr2.MR2(Toy(counts=(1,) * num_classes), mr2.Settings(**given)).to(features.dtype)
    method.classifier = Given(features, num_classes)
    return method


def batch_of(labels):
    return Batch(torch.arange(len(labels)), [torch.zeros(len(labels))], labels, torch.zeros(()))


# -- the formulas, against slow versions ------------------------------------------------------


def slow_norm(values, p):
    if p >= mr2.INFINITE:
        return max(abs(float(v)) for v in values)
    return sum(abs(float(v)) ** p for v in values) ** (1 / p)


def slow_statistics(features, labels, k, p):
    """Return (||mu||_p^2, mean ||phi - mu||_p^2) of one class, by loops."""
    members = [features[i] for i in range(len(labels)) if labels[i] == k]
    if not members:
        return 0.0, 0.0
    mean = sum(members) / len(members)
    spread = sum(slow_norm(member - mean, p) ** 2 for member in members) / len(members)
    return slow_norm(mean, p) ** 2, spread


def slow_pair_loss(features, labels, i, s_bar, temperature):
    total = 1.0
    for j in range(len(labels)):
        if j != i and labels[j] == labels[i]:
            distance = ((features[i] - features[j]) ** 2).sum()
            total = total + torch.exp((distance - 2 * s_bar) / temperature)
    return torch.as_tensor(total, dtype=DOUBLE).log()


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, 5.0, mr2.INFINITE])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_square_norm_is_the_squared_p_norm_at_any_scale(p, scale):
    values = torch.tensor([[3.0, -4.0, 0.5], [0.0, 0.0, 0.0]]) * scale
    expected = [(slow_norm(row.double(), p)) ** 2 for row in values]
    assert mr2.square_norm(values, p).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("p", [1.0, 2.0, 3.0, mr2.INFINITE])
def test_batch_statistics_are_those_of_loops_over_classes(p):
    features, labels = random_batch()
    counts, means, statistics = mr2.batch_statistics(features, labels, 5, p)
    assert counts.tolist() == [(labels == k).sum().item() for k in range(5)]
    for k in range(5):
        mean, spread = slow_statistics(features, labels, k, p)
        euclidean = slow_statistics(features, labels, k, 2.0)[1]
        assert statistics[:, k].tolist() == pytest.approx([mean, spread, euclidean])
    assert means[4].tolist() == [0.0] * 5


def test_for_p_2_the_variability_is_the_mean_squared_length_of_a_class():
    features, labels = random_batch(num_classes=3)
    _, _, statistics = mr2.batch_statistics(features, labels, 3, 2.0)
    for k in range(3):
        expected = features[labels == k].square().sum(1).mean()
        torch.testing.assert_close(statistics[0, k] + statistics[1, k], expected)


def test_moving_average_takes_first_values_whole_and_leaves_absent_classes_alone():
    old = torch.tensor([[1.0, 2.0, 0.0, 0.0]])
    new = torch.tensor([[3.0, 0.0, 5.0, 0.0]])
    seen = torch.tensor([True, True, False, False])
    present = torch.tensor([True, False, True, False])
    averaged = mr2.moving_average(old, new, seen, present, 0.9)
    assert averaged[0].tolist() == pytest.approx([1.2, 2.0, 5.0, 0.0])


def test_margins_are_those_of_equation_1():
    variability = torch.tensor([1.0, 8.0, 27.0], dtype=DOUBLE)
    seen = torch.ones(3, dtype=torch.bool)
    margins = mr2.class_margins(variability, seen, 2.0, "skip")
    assert margins.tolist() == pytest.approx([1.0, 2.0, 3.0])


@settings(max_examples=20, derandomize=True, deadline=None)
@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=8),
    st.floats(0.5, 4),
    st.floats(0.001, 1000),
)
def test_margins_average_c_bar_and_minimise_the_bound(variability, c_bar, scale):
    a = torch.tensor(variability, dtype=DOUBLE)
    seen = torch.ones(len(a), dtype=torch.bool)
    margins = mr2.class_margins(a, seen, c_bar, "skip")
    assert margins.mean().item() == pytest.approx(c_bar)
    torch.testing.assert_close(mr2.class_margins(scale * a, seen, c_bar, "zero"), margins)
    # Corollary 1: no other margins of that mean have a smaller sum of a / margin^2.
    for shift in torch.randn(5, len(a), generator=torch.Generator().manual_seed(0)).double():
        other = margins + 0.1 * margins.min() * (shift - shift.mean()) / shift.abs().max()
        assert (a / other**2).sum() >= (a / margins**2).sum() * (1 - 1e-12)


def test_unseen_classes_are_skipped_or_raise_the_margins_of_the_others():
    variability = torch.tensor([4.0, 4.0, 0.0, 0.0])
    seen = torch.tensor([True, True, False, False])
    assert mr2.class_margins(variability, seen, 2.0, "skip").tolist() == [2.0] * 4
    as_zero = mr2.class_margins(variability, seen, 2.0, "zero")
    assert as_zero[:2].tolist() == pytest.approx([4.0, 4.0])


def test_a_class_without_any_variability_keeps_a_small_margin():
    margins = mr2.class_margins(torch.tensor([0.0, 1.0]), torch.ones(2).bool(), 2.0, "skip")
    assert margins[0].item() == pytest.approx(2 * mr2.MARGIN_FLOOR)
    alike = mr2.class_margins(torch.zeros(2), torch.ones(2).bool(), 2.0, "skip")
    assert alike.tolist() == [2.0, 2.0]


def test_margin_cross_entropy_divides_all_logits_by_the_margin_of_the_label():
    logits, labels = random_batch(width=4)
    margins = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=DOUBLE)
    slow = 0.0
    for row, label in zip(logits, labels, strict=True):
        terms = [math.exp((float(z) - float(row[label])) / float(margins[label])) for z in row]
        slow += math.log(sum(terms)) / len(labels)
    assert mr2.margin_cross_entropy(logits, labels, margins).item() == pytest.approx(slow)


def test_margins_of_one_give_the_cross_entropy_bit_for_bit():
    logits, labels = random_batch(width=4)
    loss = mr2.margin_cross_entropy(logits.float(), labels, torch.ones(4))
    assert torch.equal(loss, F.cross_entropy(logits.float(), labels))


@pytest.mark.parametrize("temperature", [1.0, 50.0])
def test_pair_losses_are_those_of_loops_over_pairs(temperature):
    features, labels = random_batch()
    positive = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    s_bar = torch.tensor(0.7, dtype=DOUBLE)
    losses = mr2.pair_losses(features, features, positive, s_bar, temperature)
    for i in range(len(labels)):
        slow = slow_pair_loss(features, labels, i, s_bar, temperature)
        assert losses[i].item() == pytest.approx(slow.item())


def test_pair_loss_lies_between_the_hinge_and_the_hinge_plus_log_of_the_pairs():
    features, labels = random_batch(width=40)
    positive = (labels[:, None] == labels) & ~torch.eye(len(labels), dtype=torch.bool)
    losses = mr2.pair_losses(features, features, positive, torch.tensor(1.0, dtype=DOUBLE))
    distances = torch.cdist(features, features).square() - 2.0
    hinge = distances.masked_fill(~positive, 0).amax(1).clamp(min=0)
    assert (losses >= hinge - 1e-9).all()
    assert (losses <= hinge + (positive.sum(1) + 1).log() + 1e-9).all()


def test_an_anchor_without_positives_costs_nothing():
    features, _ = random_batch(size=3)
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    assert mr2.pair_losses(features, features, nothing, torch.zeros(())).tolist() == [0, 0, 0]


def test_gradients_agree_with_finite_differences():
    features, labels = random_batch(size=7, width=4)
    features.requires_grad_()
    positive = (labels[:, None] == labels) & ~torch.eye(7, dtype=torch.bool)
    s_bar = torch.tensor(0.3, dtype=DOUBLE)
    assert torch.autograd.gradcheck(lambda x: mr2.pair_losses(x, x, positive, s_bar, 2.0), features)
    margins = torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=DOUBLE)
    assert torch.autograd.gradcheck(
        lambda x: mr2.margin_cross_entropy(x, labels, margins), features
    )


# -- the method, against the equations and the released code ----------------------------------


def slow_objective(batches, num_classes, weight, rules, decay=0.9):
    """Return the loss of the last of several batches, from the equations and tables, by loops."""
    known = {}
    for features, labels in batches:
        fixed = features.detach()
        for k in set(labels.tolist()):
            mean, spread = slow_statistics(fixed, labels, k, rules.p)
            new = [mean, spread, slow_statistics(fixed, labels, k, 2.0)[1]]
            old = known.get(k, new)
            known[k] = [decay * o + (1 - decay) * n for o, n in zip(old, new, strict=True)]
    among = len(known) if rules.unseen == "skip" else num_classes
    roots = {k: (values[0] + values[1]) ** (1 / 3) for k, values in known.items()}
    gamma = {k: rules.c_bar * root / (sum(roots.values()) / among) for k, root in roots.items()}
    s_bar = 0.0 if rules.s_bar == "zero" else sum(v[2] for v in known.values()) / among
    width = features.shape[1]
    temperature = {"one": 1, "10d": 10 * width}[rules.pair_temperature]
    scale = {"one": 1, "d": width, "d/10": width / 10}[rules.pair_scale]
    logit, pair = 0.0, 0.0
    for i, label in enumerate(labels.tolist()):
        scaled = (features[i] @ weight.T) / gamma[label]
        logit = logit - scaled.log_softmax(0)[label] / len(labels)
        alike = (labels == label).sum().item()
        if alike > 1:
            samples = rules.pair_average == "samples"
            count = len(labels) if samples else num_classes * alike
            pair = pair + slow_pair_loss(features, labels, i, s_bar, temperature) / count
    return logit + rules.lambda_ * scale * pair


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
