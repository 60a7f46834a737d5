from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from mr2_tools import DOUBLE, random_batch, slow_norm, slow_pair_loss, slow_statistics

from classfair_plugins.methods import mr2


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
