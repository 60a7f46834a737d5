"""DFL: the pull, the three rules for centres, where centres start, and when it is ERM."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import (
    PLAIN,
    assert_ranks_equal_one,
    batch,
    close,
    f64,
    losses,
    make,
    weights,
)
from torch import Tensor, nn

from classfair_plugins.methods import dfl
from classfair_plugins.methods.erm import classfair_methods as erm_methods
from classfair_registry.contracts import Task
from classfair_registry.testing import Network, Position, Toy, load, save, train

(SPEC,) = dfl.classfair_methods()
RULES = ("paper", "kaiyangzhou", "jxgu1016")


def made(toy: Toy, **chosen):
    """Make the method; ``lambda_`` is the setting of that name, which is no name in Python."""
    return make(SPEC, toy, **{name.rstrip("_"): value for name, value in chosen.items()})


class Given(nn.Module):
    """A classifier whose features are a parameter, with the logits that they are for a head."""

    def __init__(self, features: Tensor, num_classes: int) -> None:
        super().__init__()
        self.inputs = nn.Parameter(features.clone())
        self.head = nn.Linear(features.shape[1], num_classes, dtype=features.dtype)

    def features(self, images: Tensor) -> Tensor:
        return self.inputs


def with_features(features: Tensor, centers: Tensor, **chosen):
    """Return a method that is given features [B, D] and has centres [K, D]."""
    method = made(Toy(counts=(5,) * len(centers)), **chosen).to(features.dtype)
    method.classifier = Given(features, len(centers))
    method.centers = centers.clone()
    return method


EXAMPLES = {"paper": "dfl-1", "kaiyangzhou": "dfl-2", "jxgu1016": "dfl-3"}


@pytest.mark.parametrize("rule", RULES)
def test_pull_gradient_and_centres_are_those_of_the_worked_example(worked_example, rule):
    example = worked_example(EXAMPLES[rule])
    inputs, expected = example["inputs"], example["expected"]
    alpha = inputs.get("alpha", inputs.get("lr_cent"))
    features, centers = f64(inputs["features"]), f64(inputs["centers"])
    method = with_features(features, centers, rule=rule, alpha=alpha, lambda_=1.0)
    terms = method.loss(batch(inputs["labels"]))
    terms["pull"].backward()
    gradient = method.classifier.inputs.grad
    if rule == "paper":
        close(example, terms["pull"], expected["loss_mean_half"])
        close(example, 4 * terms["pull"], expected["loss_sum_half"])
        close(example, gradient, expected["feature_grad_of_mean_half"])
        close(example, 4 * gradient, expected["feature_grad_of_sum_half"])
        close(example, (centers - method.centers) / alpha, expected["delta_c"])
    else:
        close(example, terms["pull"], expected["loss"])
        close(example, (centers - method.centers) / alpha, expected["center_grad"])
    if rule == "kaiyangzhou":
        close(example, gradient, expected["feature_grad"])
    close(example, method.centers, expected["centers_new"])


def slow(features, labels, centers, rule, alpha):
    """Return the pull and the centres after it, by loops over samples and classes."""
    size, total, after = len(labels), 0.0, [row[:] for row in centers]
    for x, label in zip(features, labels, strict=True):
        square = sum((a - b) ** 2 for a, b in zip(x, centers[label], strict=True))
        total += square / size / (1 if rule == "kaiyangzhou" else 2)
    for k, center in enumerate(centers):
        own = [x for x, label in zip(features, labels, strict=True) if label == k]
        for d in range(len(center)):
            residual = sum(x[d] - center[d] for x in own)
            after[k][d] += (
                alpha
                * {
                    "paper": residual / (1 + len(own)),
                    "kaiyangzhou": 2 * residual / size,
                    "jxgu1016": residual / (1 + len(own)) / size,
                }[rule]
            )
    return total, after


@pytest.mark.parametrize("rule", RULES)
def test_steps_equal_loops_over_samples_and_classes(rule):
    centers = torch.randn(4, 3, dtype=torch.float64)
    for labels in ([0, 1, 1, 3, 0], [2], [3, 3, 2, 0, 1]):
        features = 3 * torch.randn(len(labels), 3, dtype=torch.float64)
        method = with_features(features, centers, rule=rule, alpha=0.7)
        found = method.loss(batch(labels))["pull"]
        total, after = slow(features.tolist(), labels, centers.tolist(), rule, 0.7)
        assert found.item() == pytest.approx(total, rel=1e-12)
        torch.testing.assert_close(method.centers, f64(after), rtol=1e-12, atol=1e-12)
        centers = method.centers


@pytest.mark.parametrize("rule", RULES)
def test_the_pull_passes_gradcheck(rule):
    centers = torch.randn(5, 3, dtype=torch.float64)
    features = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dfl.pull(x, centers, rule), features)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
    st.floats(-100, 100),
    st.sampled_from(RULES),
)
def test_the_pull_ignores_a_common_shift_and_centres_move_with_it(labels, shift, rule):
    drawn = torch.Generator().manual_seed(len(labels))
    features = torch.randn(len(labels), 2, generator=drawn, dtype=torch.float64)
    centers = torch.randn(4, 2, generator=drawn, dtype=torch.float64)
    found = []
    for offset in (0.0, shift):
        method = with_features(features + offset, centers + offset, rule=rule)
        terms = method.loss(batch(labels))
        found.append((terms["pull"], method.centers - offset))
    torch.testing.assert_close(found[0], found[1])
    absent = [k for k in range(4) if k not in labels]
    assert torch.equal(found[0][1][absent], centers[absent])


def test_a_class_mean_that_is_the_centre_stays_and_repeats_approach_it():
    features, labels = f64([[2.0, 0], [4.0, 2]]), [1, 1]
    still = with_features(features, f64([[9.0, 9], [3.0, 1]]))
    still.loss(batch(labels))
    assert torch.equal(still.centers, f64([[9.0, 9], [3.0, 1]]))
    method = with_features(features, torch.zeros(2, 2, dtype=torch.float64))
    for _ in range(60):
        method.loss(batch(labels))
    torch.testing.assert_close(method.centers, f64([[0.0, 0], [3.0, 1]]))


def test_centres_move_whatever_lambda_is():
    features, zeros = f64([[2.0, 0]]), torch.zeros(2, 2, dtype=torch.float64)
    moved = []
    for chosen in (0.0, 1.0):
        method = with_features(features, zeros, lambda_=chosen)
        method.loss(batch([1]))
        moved.append(method.centers)
    assert torch.equal(moved[0], moved[1])
    torch.testing.assert_close(moved[0], f64([[0.0, 0], [0.5, 0]]))


def test_first_seen_centres_start_at_the_mean_of_their_first_batch_only():
    zeros = torch.zeros(3, 1, dtype=torch.float64)
    method = with_features(f64([[1.0], [3], [8]]), zeros, start="first-seen")
    terms = method.loss(batch([0, 0, 2]))
    assert terms["pull"].item() == pytest.approx(1 / 3)
    torch.testing.assert_close(method.centers, f64([[2.0], [0], [8]]))
    method.classifier.inputs.data = f64([[4.0], [5], [6]])
    method.loss(batch([0, 1, 1]))
    # Class 0 moves by alpha / 2 of the distance, class 1 is placed, class 2 stays.
    torch.testing.assert_close(method.centers, f64([[2.5], [5.5], [8]]))


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_without_the_pull_loss_and_gradient_are_those_of_erm(dtype, rtol):
    features, labels = torch.randn(6, 4, dtype=dtype), [0, 1, 2, 2, 1, 0]
    method = with_features(features, torch.ones(3, 4, dtype=dtype), lambda_=0.0)
    classifier = method.classifier
    loss = method.loss(batch(labels))["loss"]
    expected = F.cross_entropy(classifier.head(classifier.inputs), torch.tensor(labels))
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=0)
    parameters = list(classifier.parameters())
    found, wanted = (torch.autograd.grad(value, parameters) for value in (loss, expected))
    torch.testing.assert_close(found, wanted, rtol=rtol, atol=rtol / 10)


def test_in_a_probe_it_trains_as_erm():
    toy, other = Toy(network=PLAIN, regime="probe"), Toy(network=PLAIN, regime="probe")
    method, erm = made(toy, lambda_=10.0), make(erm_methods()[0], other)
    losses(method, toy), losses(erm, other)
    torch.testing.assert_close(weights(method), weights(erm), rtol=1e-6, atol=1e-8)


def test_the_spec_says_when_it_is_erm():
    scratch = Task(("a", "b"), (4, 4), (3, 8, 8), "scratch")
    probe = Task(("a", "b"), (4, 4), (3, 8, 8), "probe")
    assert SPEC.reduces_to(scratch, {"lambda": 0.003}) is None
    assert SPEC.reduces_to(scratch, {"lambda": 0.0}) == "erm"
    assert SPEC.reduces_to(probe, {"lambda": 0.003}) == "erm"


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("rule", RULES)
def test_several_processes_train_as_one(size, rule):
    assert_ranks_equal_one(
        size,
        lambda toy: made(toy, rule=rule, start="first-seen", lambda_=0.1),
        lambda method: torch.cat([weights(method), method.centers.flatten()]),
    )


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("size", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("start", ["zero", "first-seen"])
def test_hard_batches_give_finite_losses_gradients_and_centres(labels, size, start):
    features = torch.full((len(labels), 2), size)
    method = with_features(features, torch.zeros(3, 2), start=start)
    loss = method.loss(batch(labels))["loss"]
    loss.backward()
    assert loss.isfinite()
    assert method.classifier.inputs.grad.isfinite().all()
    assert method.centers.isfinite().all()


@pytest.mark.parametrize("head", ["linear", "cosine"])
def test_training_moves_the_centres_without_gradient_or_optimiser(head):
    toy = Toy(network=Network(head=head))
    method = made(toy)
    losses(method, toy)
    norms = method.diagnostics()["center_norm"]
    assert (norms > 0).all()
    assert not norms.requires_grad
    if head == "cosine":
        assert (norms <= 1).all()
    owned = {id(parameter) for parameter in method.optimizer.parameters}
    assert owned == {id(parameter) for parameter in method.classifier.parameters()}
    assert F.cross_entropy(method.predict(toy.train.images), toy.train.labels) < 1


def test_centres_go_on_from_a_checkpoint():
    toy, fresh = Toy(passes=2), Toy(passes=2, seed=1)
    chosen = {"start": "first-seen", "lambda_": 0.1}
    whole, stopped = made(toy, **chosen), made(toy, **chosen)
    resumed = made(fresh, **chosen)
    losses(whole, toy)
    at = Position()
    run = train(stopped, toy, at)
    next(run), next(run)
    kept = load(resumed, save(stopped, at))
    assert len(list(train(resumed, fresh, kept))) > 0
    assert torch.equal(resumed.centers, whole.centers)
    assert torch.equal(weights(resumed), weights(whole))
