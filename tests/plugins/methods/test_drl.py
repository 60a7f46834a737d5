"""DRL: the robustness loss, its radii, the class-aware order and the three phases."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import (
    PLAIN,
    assert_ranks_equal_one,
    begin_pass,
    close,
    f64,
    losses,
    make,
    weights,
)
from torch import Tensor

from classfair_plugins.methods import drl
from classfair_registry.errors import UsageError
from classfair_registry.testing import Network, Position, Toy, World, in_lockstep, load, save, train

(SPEC,) = drl.classfair_methods()
ALONE = World()
EVEN = {"feature_share": 0.4, "classifier_share": 0.3}  # of six passes, two for each phase


def positives(labels: Tensor, classes: int) -> Tensor:
    return labels == torch.arange(classes)[:, None]


def robust(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    eps: Tensor,
    *,
    order: str = "intended",
    temperature: float = 1.0,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the loss and its part of each class."""
    partners = drl.official_partners(labels, ALONE) if order == "official" else labels
    own = positives(labels, len(prototypes))
    scores = drl.affinities(drl.distances_to(prototypes, features), own, eps[partners], temperature)
    each, counts = drl.class_losses(scores, own, ALONE)
    return drl.mean_over_classes(each, counts, class_weights), each


def parts(example: dict) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return features, labels, prototypes and radii of a worked example."""
    inputs = example["inputs"]
    labels = torch.tensor(inputs["centroid_labels"])
    features = f64(inputs["centroid_features"])
    prototypes = torch.stack([features[labels == k].mean(0) for k in range(3)])
    batch_labels = torch.tensor(inputs["batch_labels"])
    return f64(inputs["batch_features"]), batch_labels, prototypes, f64(inputs["epsilons"])


def test_both_orders_of_the_radii_are_the_worked_example(worked_example):
    example = worked_example("drolt_1")
    expected = example["expected"]
    features, labels, prototypes, eps = parts(example)
    close(example, prototypes, expected["prototypes"])
    distances = drl.distances_to(prototypes, features)
    close(example, distances, expected["distances_class_by_sample"])
    for order, total in (("intended", "loss_intended"), ("official", "loss_official_misordered")):
        leaf = eps.clone().requires_grad_()
        loss, each = robust(features, labels, prototypes, leaf, order=order)
        loss.backward()
        close(example, loss, expected[total])
        by_class = expected[f"per_class_loss_{order}"]
        close(example, each[:2], [by_class["0"], by_class["1"]])
        close(example, leaf.grad, expected[f"grad_eps_{order}_approx"])


def test_the_orders_agree_on_a_sorted_batch(worked_example):
    example = worked_example("drolt_sorted_1")
    for order in ("intended", "official"):
        loss, _ = robust(*parts(example), order=order)
        close(example, loss, example["expected"][f"loss_{order}"])


def test_equal_radii_and_temperature_are_the_worked_example(worked_example):
    example = worked_example("drolt_equal_eps_1")
    expected = example["expected"]
    features, labels, prototypes, eps = parts(example)
    close(example, robust(features, labels, prototypes, eps)[0], expected["loss"])
    official, _ = robust(features, labels, prototypes, eps, order="official")
    close(example, official, expected["loss_official"])
    without, _ = robust(features, labels, prototypes, 0 * eps)
    close(example, without, expected["loss_eps_zero"])
    warm, _ = robust(features, labels, prototypes, eps, temperature=0.5)
    close(example, warm, expected["loss_temperature_0.5_base_0.5"])


def test_class_weights_are_the_worked_example(worked_example):
    example = worked_example("drolt_class_weights_1")
    given_weights = f64(example["inputs"]["class_weights"])
    loss, _ = robust(*parts(example), class_weights=given_weights)
    close(example, loss, example["expected"]["loss_intended"])


def slow_robust(
    features: Tensor, labels: Tensor, prototypes: Tensor, eps: Tensor, temperature: float
) -> float:
    total, present = 0.0, sorted(set(labels.tolist()))
    for k in present:
        scores = []
        for feature, label in zip(features, labels.tolist(), strict=True):
            distance = math.dist(prototypes[k].tolist(), feature.tolist())
            scores.append(-(distance + (eps[k].item() if label == k else 0)) / temperature)
        normaliser = math.log(sum(math.exp(score) for score in scores))
        own = [s for s, label in zip(scores, labels.tolist(), strict=True) if label == k]
        total -= sum(score - normaliser for score in own) / len(own)
    return total / len(present)


def drawn(seed: int, samples: int = 7, classes: int = 4) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    features = torch.randn(samples, 3, dtype=torch.float64, generator=random)
    labels = torch.randint(classes, (samples,), generator=random)
    prototypes = torch.randn(classes, 3, dtype=torch.float64, generator=random)
    return features, labels, prototypes, torch.rand(classes, dtype=torch.float64, generator=random)


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_the_loss_equals_a_loop_over_classes_and_samples(seed, temperature):
    given_parts = drawn(seed)
    loss, _ = robust(*given_parts, temperature=temperature)
    assert loss.item() == pytest.approx(slow_robust(*given_parts, temperature), rel=1e-12)


@pytest.mark.parametrize("order", ["intended", "official"])
def test_the_loss_passes_gradcheck(order):
    features, labels, prototypes, eps = drawn(0, samples=5, classes=3)

    def loss(x: Tensor, radii: Tensor) -> Tensor:
        return robust(x, labels, prototypes, radii, order=order)[0]

    assert torch.autograd.gradcheck(loss, (features.requires_grad_(), eps.requires_grad_()))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.integers(0, 1000), st.integers(0, 1000))
def test_the_loss_ignores_the_order_of_the_batch_and_radii_only_raise_it(seed, shuffle):
    features, labels, prototypes, eps = drawn(seed)
    leaf = eps.requires_grad_()
    loss, _ = robust(features, labels, prototypes, leaf)
    loss.backward()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(shuffle))
    permuted, _ = robust(features[order], labels[order], prototypes, eps)
    torch.testing.assert_close(permuted, loss)
    assert (leaf.grad >= -1e-12).all()
    assert robust(features, labels, prototypes, 0 * eps)[0] <= loss + 1e-12


def test_an_absent_class_does_not_contribute():
    features, labels, prototypes, eps = drawn(0)
    labels[labels == 3] = 0
    loss, _ = robust(features, labels, prototypes, eps)
    three, _ = robust(features, labels, prototypes[:3], eps[:3])
    torch.testing.assert_close(loss, three)


@pytest.mark.parametrize("far", [1e4, 1e8])
def test_far_prototypes_and_zero_distances_stay_finite_in_float32(far):
    prototypes = torch.tensor([[far, 0.0], [0.0, far], [1.0, 1.0]])
    features = torch.tensor([[1.0, 1.0], [0.0, 0.0], [far, far]], requires_grad=True)
    labels, eps = torch.tensor([0, 1, 2]), torch.ones(3, requires_grad=True)
    loss, _ = robust(features, labels, prototypes, eps, temperature=0.07)
    loss.backward()
    assert loss.isfinite()
    assert features.grad.isfinite().all()
    assert eps.grad.isfinite().all()


def test_close_distances_far_from_the_origin_keep_their_digits():
    prototypes = torch.tensor([[1e4, 1e4]])
    features = torch.tensor([[1e4 + 0.5, 1e4]]).expand(40, 2)
    assert torch.equal(drl.distances_to(prototypes, features), torch.full((1, 40), 0.5))


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 9), min_size=2, max_size=6).filter(any),
    st.integers(1, 5),
    st.integers(1, 60),
    st.integers(0, 99),
)
def test_class_aware_order_gives_blocks_in_random_cycles(counts, block, length, seed):
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    members = torch.arange(len(labels)).split(counts)
    generator = torch.Generator().manual_seed(seed)
    order = drl.class_aware_order(members, block, length, generator)
    again = drl.class_aware_order(members, block, length, torch.Generator().manual_seed(seed))
    assert torch.equal(order, again)
    assert len(order) == length
    blocks = labels[order].split(block)
    assert all(len(set(one.tolist())) == 1 for one in blocks)
    present = sum(count > 0 for count in counts)
    firsts = [int(one[0]) for one in blocks]
    for cycle in range(0, len(firsts), present):
        assert len(set(firsts[cycle : cycle + present])) == len(firsts[cycle : cycle + present])
    for indices in members:
        # A member comes again only when all of its class have come.
        seen = [i for i in order.tolist() if i in set(indices.tolist())]
        for at in range(0, len(seen), max(1, len(indices))):
            assert len(set(seen[at : at + len(indices)])) == len(seen[at : at + len(indices)])


def test_a_pass_over_balanced_classes_meets_every_image_once():
    method = make(SPEC, Toy(counts=(8, 8, 8)))
    order = method.phases()[1].order(torch.Generator().manual_seed(0))
    assert sorted(order.tolist()) == list(range(24))
    assert method.phases()[2].order(torch.Generator().manual_seed(1)).tolist() != order.tolist()


def test_phases_share_the_recipes_passes_and_only_the_last_is_selectable():
    phases = make(SPEC, Toy()).phases()
    assert [phase.name for phase in phases] == ["pretrain", "features", "classifier"]
    assert [phase.selectable for phase in phases] == [False, False, True]
    assert [phase.share for phase in phases] == [0.66, 0.27, 0.07]
    nothing = make(SPEC, Toy(), feature_share=0.7, classifier_share=0.3).phases()[0]
    assert nothing.share == 0.0
    with pytest.raises(UsageError, match=r"feature_share 0.8 and classifier_share 0.3"):
        make(SPEC, Toy(), feature_share=0.8, classifier_share=0.3)


@pytest.mark.parametrize("source", ["plain", "augmented"])
def test_prototypes_are_class_means_of_features_in_eval_mode(source):
    toy = Toy(counts=(20, 12, 8))
    method = make(SPEC, toy, prototypes_on=source)
    begin_pass(method, toy, 1)
    reader = toy.data("train", "eval" if source == "plain" else "train")
    features = method.classifier.eval().features(reader.images(torch.arange(40))).detach()
    expected = torch.stack([features[toy.train.labels == k].mean(0) for k in range(3)])
    torch.testing.assert_close(method.prototypes, expected)


def named(module: torch.nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(before: dict[str, Tensor], module: torch.nn.Module) -> bool:
    return all(torch.equal(before[name], now) for name, now in module.state_dict().items())


def test_the_feature_phase_trains_encoder_and_radii_and_the_classifier_phase_only_the_head():
    toy = Toy()
    method = make(SPEC, toy)
    _, features, classifier = method.phases()
    begin_pass(method, toy, 1)
    head, body = named(method.classifier.head), named(method.classifier.backbone)
    eps = method.eps.clone()
    terms = features.step(toy.batch())
    assert set(terms) == {"loss", "ce", "robust"}
    torch.testing.assert_close(terms["loss"], terms["ce"] + terms["robust"])
    assert same(head, method.classifier.head)
    assert not same(body, method.classifier.backbone)
    assert (method.diagnostics()["eps"] < eps).all()
    body, eps = named(method.classifier.backbone), method.eps.clone()
    method.train()
    classifier.step(toy.batch())
    assert same(body, method.classifier.backbone)  # its BatchNorm statistics included
    assert not same(head, method.classifier.head)
    assert torch.equal(method.eps, eps)


def test_the_step_of_the_feature_phase_has_the_gradient_of_the_whole_loss():
    toy = Toy(counts=(20, 12, 8), network=PLAIN)
    method = make(SPEC, toy, weight=0.7)
    begin_pass(method, toy, 1)
    batch, other = toy.batch(), make(SPEC, toy, weight=0.7)
    features = other.classifier.features(batch.images)
    ce = F.cross_entropy(
        other.classifier.head(features), batch.labels, weight=torch.tensor([1.0, 0.6, 0.4])
    )
    extra, _ = robust(features, batch.labels, method.prototypes, other.eps)
    (ce + 0.7 * extra).backward()
    terms = method.phases()[1].step(batch)
    torch.testing.assert_close(terms["loss"], (ce + 0.7 * extra).detach())
    for mine, its in zip(
        method.classifier.backbone.parameters(), other.classifier.backbone.parameters(), strict=True
    ):
        torch.testing.assert_close(mine.grad, its.grad)
    torch.testing.assert_close(method.eps.grad, other.eps.grad)


@pytest.mark.parametrize(("clamp", "below"), [(True, False), (False, True)])
def test_radii_fall_below_zero_only_without_the_clamp(clamp, below):
    toy = Toy(passes=6)
    method = make(SPEC, toy, eps=0.01, eps_lr=0.1, clamp=clamp, **EVEN)
    losses(method, toy)
    assert bool((method.eps < 0).any()) == below


def test_fixed_radii_stay_and_may_depend_on_the_count():
    toy = Toy(counts=(16, 9, 4))
    shared = make(SPEC, toy, eps_form="shared", eps=0.5, **EVEN)
    losses(shared, toy)
    assert torch.equal(shared.diagnostics()["eps"], torch.full((3,), 0.5))
    counted = make(SPEC, toy, eps_form="by_count", eps=2.0)
    torch.testing.assert_close(counted.diagnostics()["eps"], 2 / torch.tensor([4.0, 3.0, 2.0]))
    assert len(counted.phases()[1].optimizers) == 1


def test_balanced_class_weights_are_one_on_equal_counts_and_leave_out_empty_classes():
    assert torch.equal(drl.balanced_weights(f64([5, 5, 5])), f64([1, 1, 1]))
    torch.testing.assert_close(drl.balanced_weights(f64([8, 0, 1])), f64([3 / 8, 0, 3]))
    toy = Toy(counts=(20, 12, 8))
    method = make(SPEC, toy, class_weights="balanced")
    features, labels = torch.randn(4, 6), torch.tensor([0, 0, 2, 2])
    distances = drl.distances_to(method.prototypes, features)
    found = method.robust(distances, labels, method.eps)
    expected, _ = robust(
        features, labels, method.prototypes, method.eps, class_weights=method.robust_weight
    )
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("lr", [None, 0.02])
def test_a_given_rate_is_kept_and_without_one_the_recipes_schedule_holds(lr):
    toy = Toy()
    asked = []
    original = toy.optimizer

    def optimizer(parameters, *, schedule=True, **overrides):
        asked.append((schedule, overrides))
        return original(parameters, schedule=schedule, **overrides)

    toy.optimizer = optimizer
    make(SPEC, toy, feature_lr=lr, classifier_lr=lr)
    later = (True, {}) if lr is None else (False, {"lr": lr})
    assert asked == [(True, {}), later, later, (False, {"lr": 0.005})]


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("order", ["intended", "official"])
def test_several_processes_train_as_one(size, order):
    def made(toy):
        return make(SPEC, toy, eps_order=order, eps_lr=0.05, **EVEN)

    def state(method):
        return torch.cat([weights(method), method.prototypes.flatten()])

    assert_ranks_equal_one(size, made, state, passes=3)


@pytest.mark.parametrize("size", [2, 3])
def test_the_official_order_is_that_of_the_global_batch(size):
    labels = torch.tensor([2, 0, 1, 1, 0, 2, 2])

    def partners(world: World) -> Tensor:
        with world.batch(len(labels)) as rows:
            return drl.official_partners(labels[rows], world)

    whole = drl.official_partners(labels, ALONE)
    assert whole.tolist() == [0, 2, 1, 1, 0, 2, 2]
    assert torch.equal(torch.cat(in_lockstep(size, partners)), whole)


@pytest.mark.parametrize(
    "network", [Network(feature_scale=0.0), Network(feature_scale=1e4), Network(head="cosine")]
)
def test_it_trains_on_zero_huge_and_normalised_features(network):
    toy = Toy(network=network)
    found = losses(make(SPEC, toy, **EVEN), toy)
    assert len(found) > 6
    assert all(math.isfinite(loss) for loss in found)


def test_a_batch_of_one_and_a_class_with_one_image_are_finite():
    toy = Toy(counts=(20, 19, 1), network=PLAIN)
    method = make(SPEC, toy)
    begin_pass(method, toy, 1)
    for index in ([3], toy.train.labels.argmax()[None].tolist()):
        assert method.phases()[1].step(toy.batch(index))["loss"].isfinite()
    assert weights(method).isfinite().all()


@pytest.mark.parametrize("steps", [1, 9, 14])
def test_it_goes_on_from_a_checkpoint_in_each_phase(steps):
    toy, fresh = Toy(), Toy(seed=1)
    whole, stopped, resumed = (make(SPEC, one, **EVEN) for one in (toy, toy, fresh))
    losses(whole, toy)
    at = Position()
    run = train(stopped, toy, at)
    for _ in range(steps):
        next(run)
    kept = load(resumed, save(stopped, at))
    assert len(list(train(resumed, fresh, kept))) > 0
    assert torch.equal(weights(resumed), weights(whole))
