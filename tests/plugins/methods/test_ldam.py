"""LDAM-DRW: margins, loss, weights, and what is left of it on balanced data."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_fakes import Setup, batch_of, close, examples, f64, make, on_ranks, toy, train
from torch import Tensor

from classfair_plugins.methods import ldam
from classfair_registry.contracts import Batch, Task

EXAMPLES = examples(1)
SPEC = ldam.classfair_methods()[0]


def example_losses(name: str, max_m: float | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Return the leaf cosines, the lowered logits and the losses of a worked example."""
    given = EXAMPLES[name]["inputs"]
    s, cosines = given["s"], f64(given["cosines"]).requires_grad_()
    labels = torch.tensor(given["labels"])
    margin = ldam.margins(given["class_counts"], given["max_m"] if max_m is None else max_m)
    lowered = ldam.subtract_margin(s * cosines, labels, s * margin)
    return cosines, lowered, F.cross_entropy(lowered, labels, reduction="none")


def test_margins_of_the_worked_example() -> None:
    example = EXAMPLES["ldam_margins_1"]
    found = ldam.margins(example["inputs"]["class_counts"], example["inputs"]["max_m"])
    close(example, found, example["expected"]["margins"])


def test_loss_and_gradient_of_the_worked_example() -> None:
    example = EXAMPLES["ldam_loss_1"]
    cosines, lowered, losses = example_losses("ldam_loss_1")
    losses.mean().backward()
    close(example, lowered, example["expected"]["scaled_logits"])
    close(example, losses, example["expected"]["per_sample"])
    close(example, losses.mean(), example["expected"]["loss"])
    close(example, cosines.grad, example["expected"]["grad_cosines"])


def test_equal_counts_give_the_largest_margin_and_not_cross_entropy() -> None:
    example = EXAMPLES["ldam_uniform_1"]
    expected = example["expected"]
    close(example, ldam.margins(example["inputs"]["class_counts"], 0.5), expected["margins"])
    close(example, example_losses("ldam_uniform_1")[2].mean(), expected["loss"])
    without = example_losses("ldam_uniform_1", max_m=0.0)[2].mean()
    close(example, without, expected["loss_with_zero_margin"])
    cosines = f64(example["inputs"]["cosines"])
    plain = F.cross_entropy(cosines, torch.tensor(example["inputs"]["labels"]))
    close(example, plain, expected["loss_plain_ce_on_cosines"])


def test_cosines_of_the_worked_example_come_from_the_head_over_its_scale() -> None:
    example = EXAMPLES["ldam_head_1"]
    features = f64(example["inputs"]["features"])
    method = make(SPEC, Setup(*toy(dtype=torch.float64), 3))
    head = method.classifier.head
    head.weight = torch.nn.Parameter(f64(example["inputs"]["class_weight_vectors_rows"]))
    close(example, head(features) / method.settings.s, example["expected"]["cosines"])


def slow_loss(cosines: Tensor, labels: Tensor, counts: list[int], s: float, max_m: float) -> float:
    rarest = min(counts)
    weights = [(1 - 0.9999) / (1 - 0.9999**n) for n in counts]
    numerator = denominator = 0.0
    for row, label in zip(cosines.tolist(), labels.tolist(), strict=True):
        margin = max_m * (rarest / counts[label]) ** 0.25
        logits = [s * (c - margin * (k == label)) for k, c in enumerate(row)]
        loss = torch.logsumexp(f64(logits), 0).item() - logits[label]
        numerator += weights[label] * loss
        denominator += weights[label]
    return numerator / denominator


def test_weighted_loss_equals_a_loop_over_samples() -> None:
    counts = [9, 5, 2]
    setup = Setup(*toy(counts, dtype=torch.float64), 3)
    method = make(SPEC, setup)
    batch = batch_of(setup, progress=0.9)
    cosines = method.classifier(batch.images).detach() / 30
    # The buffers were rounded to float32 before they were widened again.
    expected = slow_loss(cosines, batch.labels, counts, 30, 0.5)
    assert method.loss(batch).item() == pytest.approx(expected, rel=1e-6)


def test_lowered_logits_pass_gradcheck() -> None:
    labels = torch.tensor([0, 2, 1])
    logits = torch.randn(3, 3, dtype=torch.float64, requires_grad=True)
    margin = ldam.margins([100, 10, 1], 0.5)

    def loss(z: Tensor) -> Tensor:
        return F.cross_entropy(ldam.subtract_margin(z, labels, margin), labels)

    assert torch.autograd.gradcheck(loss, logits)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(1, 10**6), st.integers(2, 1000), st.floats(0, 1))
def test_equal_counts_have_margins_max_m_and_weights_exactly_one(
    n: int, classes: int, beta: float
) -> None:
    assert torch.equal(ldam.margins([n] * classes, 0.5), f64([0.5] * classes))
    assert torch.equal(ldam.class_weights([n] * classes, beta).float(), torch.ones(classes))


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.lists(st.integers(1, 5000), min_size=2, max_size=9), st.integers(2, 9))
def test_margins_depend_on_ratios_and_weights_sum_to_k(counts: list[int], factor: int) -> None:
    scaled = [n * factor for n in counts]
    torch.testing.assert_close(ldam.margins(counts, 0.5), ldam.margins(scaled, 0.5))
    assert ldam.margins(counts, 0.5).max() == 0.5
    weights = ldam.class_weights(counts, 0.9999)
    assert weights.sum().item() == pytest.approx(len(counts))
    assert weights.argmax() == torch.tensor(counts).argmin()


def test_beta_one_is_inverse_frequency_and_the_limit_of_beta() -> None:
    inverse = ldam.class_weights([10, 40], 1.0)
    torch.testing.assert_close(inverse, f64([1.6, 0.4]))
    torch.testing.assert_close(ldam.class_weights([10, 40], 1 - 1e-9), inverse, rtol=1e-6, atol=0)


def test_drw_changes_nothing_on_balanced_data_bit_for_bit() -> None:
    setup = Setup(*toy(), 3)
    always = train(make(SPEC, setup, drw_start=0.0), setup)
    never = train(make(SPEC, setup, drw_start=1.0), setup)
    assert [x.item() for x in always] == [x.item() for x in never]


def test_classes_are_weighted_from_the_start_of_drw_on_and_not_before() -> None:
    setup = Setup(*toy((12, 6, 2)), 3)
    method, unweighted = make(SPEC, setup), make(SPEC, setup, drw_start=1.0)
    early, late = batch_of(setup, progress=0.79), batch_of(setup, progress=0.8)
    assert method.loss(early) == unweighted.loss(early)
    assert method.loss(late) != unweighted.loss(late)


def test_without_margin_on_the_recipes_head_it_is_erm() -> None:
    setup = Setup(*toy(dtype=torch.float64), 3)
    method = make(SPEC, setup, head="recipe", max_m=0.0)
    batch = batch_of(setup, progress=0.9)
    expected = F.cross_entropy(method.classifier(batch.images), batch.labels)
    torch.testing.assert_close(method.loss(batch), expected, rtol=1e-12, atol=0)
    chosen = {"head": "recipe", "max_m": 0.0, "drw_start": 0.8, "beta": 0.9999}
    assert SPEC.reduces_to(setup.task, chosen) == "erm"
    assert SPEC.reduces_to(setup.task, {**chosen, "head": "cosine"}) is None
    assert SPEC.reduces_to(setup.task, {**chosen, "max_m": 0.5}) is None
    uneven = Task(("a", "b"), (3, 4), (1, 1, 1), "scratch")
    assert SPEC.reduces_to(uneven, chosen) is None
    assert SPEC.reduces_to(uneven, {**chosen, "beta": 0.0}) == "erm"


@pytest.mark.parametrize("counts", [(9, 7), (5, 5, 6)])
def test_several_processes_train_as_one(counts: tuple[int, ...]) -> None:
    images, labels = toy((9, 5, 2), dtype=torch.float64)

    def run(world: object, _rows: slice) -> list[Tensor]:
        setup = Setup(images, labels, 3, world)
        return train(make(SPEC, setup, drw_start=0.0), setup)

    parts = on_ranks(counts, run)
    alone = run(None, slice(None))
    torch.testing.assert_close([sum(part) for part in zip(*parts, strict=True)], alone)


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_hard_batches_give_finite_losses_and_gradients(labels: list[int], scale: float) -> None:
    setup = Setup(*toy((8, 3, 1)), 3)
    method = make(SPEC, setup, drw_start=0.0)
    images = scale * torch.ones(len(labels), 1, 1, 3)
    with torch.no_grad():
        method.classifier.backbone.linear.bias.fill_(-1.0)  # a zero feature where scale is 0
    batch = Batch(torch.arange(len(labels)), [images], torch.tensor(labels), torch.tensor(0.5))
    loss = method.loss(batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert all(torch.isfinite(p.grad).all() for p in method.parameters())


def test_diagnostics_hold_a_margin_and_a_weight_for_each_class() -> None:
    method = make(SPEC, Setup(*toy((8, 3, 1)), 3))
    assert {name: len(values) for name, values in method.diagnostics().items()} == {
        "margin": 3,
        "weight": 3,
    }
