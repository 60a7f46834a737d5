"""CMIC-DL: concentration, separation, where the mean answers come from, and when it is ERM."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from method_tools import (
    PLAIN,
    Answers,
    assert_ranks_equal_one,
    batch,
    close,
    f64,
    losses,
    make,
    weights,
)
from torch import Tensor

from classfair_plugins.methods import cmic_dl
from classfair_registry.contracts import Task
from classfair_registry.testing import Network, Position, Toy, load, save, train

(SPEC,) = cmic_dl.classfair_methods()
FLOOR = 1e-25


def made(toy: Toy, **chosen):
    """Make the method; ``lambda_`` is the setting of that name, which is no name in Python."""
    return make(SPEC, toy, **{name.rstrip("_"): value for name, value in chosen.items()})


def with_logits(logits: Tensor, **chosen):
    """Return a method whose classifier gives these logits [B, K], in their dtype."""
    method = made(Toy(counts=(5,) * logits.shape[1]), **chosen).to(logits.dtype)
    method.classifier = Answers(logits)
    method.centroids.fill_(1 / logits.shape[1])  # Made in float32.
    return method


def test_concentration_and_separation_are_the_worked_example(worked_example):
    example = worked_example("cmic-1")
    expected = example["expected"]
    p, labels = f64(example["inputs"]["probabilities"]), torch.tensor(example["inputs"]["labels"])
    sums = cmic_dl.answer_sums(p, labels)
    q = sums[:, :-1] / sums[:, -1:]
    close(example, q, expected["centroids"])
    each = cmic_dl.concentration(p.log(), q[labels].log())
    close(example, torch.stack([each[:2].mean(), each[2:].mean()]), expected["cmi_per_class"])
    close(example, each.mean(), expected["cmi"])
    different = (labels[:, None] != labels).double()
    total = cmic_dl.separation(p.log(), p.log(), different).sum()
    close(example, total / 16, expected["separation_gamma"])
    close(example, total / different.sum(), expected["separation_mean_over_different_pairs"])
    close(example, each.mean() / (total / 16), expected["ncmi"])
    close(example, each.mean() / (total / different.sum()), expected["ncmi_with_that"])


@pytest.mark.parametrize("normalizer", ["square", "pairs"])
def test_the_loss_has_the_terms_of_the_worked_example(worked_example, normalizer):
    example = worked_example("cmic-1")
    expected, labels = example["expected"], example["inputs"]["labels"]
    method = with_logits(f64(example["inputs"]["probabilities"]).log(), normalizer=normalizer)
    method.centroids.copy_(f64(expected["centroids"]))
    terms = method.loss(batch(labels))
    wanted = {"square": "separation_gamma", "pairs": "separation_mean_over_different_pairs"}
    close(example, terms["concentration"], expected["cmi"])
    close(example, terms["separation"], expected[wanted[normalizer]])
    combined = terms["ce"] + 0.7 * terms["concentration"] - 0.2 * terms["separation"]
    torch.testing.assert_close(terms["loss"], combined)


def test_the_moving_average_is_the_worked_example(worked_example):
    example = worked_example("cmic-3")
    inputs, expected = example["inputs"], example["expected"]
    q, counts = f64(inputs["Q"]), f64([8, 8])
    for step, means in enumerate(inputs["class_batch_means"], 1):
        q = cmic_dl.moved(q, f64(means), counts, inputs["decay"])
        close(example, q, expected[f"Q_step{step}"])
    left = f64(cmic_dl.DECAY["probe"]) ** 7820
    close(example, left, expected["uniform_init_share_after_7820_steps_decay_0p9999"])


def test_from_a_uniform_start_concentration_is_the_worked_examples_entropy_reward(worked_example):
    example = worked_example("cmic-4")
    logits, labels = f64(example["inputs"]["logits"]), example["inputs"]["labels"]
    method = with_logits(logits)
    log_p = cmic_dl.log_answers(logits, FLOOR)
    found = cmic_dl.concentration(log_p, method.centroids[labels].log())
    close(example, found, example["expected"]["kl_to_uniform"])
    entropy = -(log_p.exp() * log_p).sum(1)
    close(example, math.log(3) - entropy, example["expected"]["log_K_minus_entropy"])


def slow(logits, labels, q, detach, normalizer):
    """Return the loss's two terms and their gradient, by loops over samples and pairs."""
    z = logits.clone().requires_grad_()
    log_p = z - z.logsumexp(1, keepdim=True)
    size = len(labels)
    cmi = sum((log_p[i].exp() * (log_p[i] - q[labels[i]].log())).sum() / size for i in range(size))
    gamma, pairs = torch.zeros((), dtype=torch.float64), 0
    for i in range(size):
        for j in range(size):
            if labels[i] != labels[j]:
                other = log_p[j].detach() if detach else log_p[j]
                gamma = gamma - (log_p[i].exp() * other).sum()
                pairs += 1
    gamma = gamma / (size**2 if normalizer == "square" else max(pairs, 1))
    (0.7 * cmi - 0.2 * gamma).backward()
    return cmi.item(), gamma.item(), z.grad


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("normalizer", ["square", "pairs"])
def test_the_loss_equals_loops_over_samples_and_pairs(detach, normalizer):
    q = torch.randn(4, 4, dtype=torch.float64).softmax(1)
    for labels in ([0, 1, 1, 3, 0], [2], [3, 3, 2, 0, 1]):
        logits = 3 * torch.randn(len(labels), 4, dtype=torch.float64)
        method = with_logits(logits, detach=detach, normalizer=normalizer)
        method.centroids.copy_(q)
        terms = method.loss(batch(labels))
        (terms["loss"] - terms["ce"]).backward()
        cmi, gamma, gradient = slow(logits, labels, q, detach, normalizer)
        assert terms["concentration"].item() == pytest.approx(cmi, rel=1e-12)
        assert terms["separation"].item() == pytest.approx(gamma, rel=1e-12, abs=1e-15)
        torch.testing.assert_close(method.classifier.logits.grad, gradient, rtol=1e-9, atol=1e-12)


def test_the_separations_gradient_has_the_closed_form():
    labels = torch.tensor([0, 1, 1, 2])
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    different = (labels[:, None] != labels).double()

    def total(z: Tensor) -> Tensor:
        log_p = cmic_dl.log_answers(z, FLOOR)
        return cmic_dl.separation(log_p, log_p, different).sum()

    assert torch.autograd.gradcheck(total, logits)
    (found,) = torch.autograd.grad(total(logits), logits)
    p = logits.detach().softmax(1)
    for i in range(4):
        expected = torch.zeros(3, dtype=torch.float64)
        for j in range(4):
            if labels[i] != labels[j]:
                a = -p[j].log()
                expected += p[i] * (a - p[i] @ a) + p[i] - p[j]
        torch.testing.assert_close(found[i], expected)


def test_concentration_passes_gradcheck():
    log_q = torch.randn(4, 3, dtype=torch.float64).log_softmax(1)
    logits = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda z: cmic_dl.concentration(cmic_dl.log_answers(z, FLOOR), log_q), logits
    )


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=8), st.integers(0, 99), st.booleans())
def test_concentration_is_never_negative_and_zero_if_a_class_answers_alike(labels, seed, alike):
    drawn, label = torch.Generator().manual_seed(seed), torch.tensor(labels)
    logits = 3 * torch.randn(len(labels), 3, generator=drawn, dtype=torch.float64)
    if alike:
        logits = torch.randn(3, 3, generator=drawn, dtype=torch.float64)[label]
    log_p = cmic_dl.log_answers(logits, FLOOR)
    sums = cmic_dl.answer_sums(log_p.exp(), label)
    q = sums[:, :-1] / sums[:, -1:].clamp(min=1)
    each = cmic_dl.concentration(log_p, q[label].log())
    assert (each >= -1e-12).all()
    assert (each.mean() < 1e-12) == (alike or len(set(labels)) == len(labels))
    # The mean divergence is the entropy of the mean less the mean entropy, class by class.
    entropy = torch.special.entr(q[label]).sum(1) - torch.special.entr(log_p.exp()).sum(1)
    assert each.mean().item() == pytest.approx(entropy.mean().item(), abs=1e-12)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 9), min_size=3, max_size=3), st.floats(0, 1))
def test_rows_of_q_stay_distributions_and_absent_classes_keep_theirs(counts, decay):
    drawn = torch.Generator().manual_seed(sum(counts))
    q, means = (
        torch.randn(3, 3, generator=drawn, dtype=torch.float64).softmax(1) for _ in range(2)
    )
    found = cmic_dl.moved(q, means, torch.tensor(counts), decay)
    torch.testing.assert_close(found.sum(1), torch.ones(3, dtype=torch.float64))
    for k, count in enumerate(counts):
        row = decay * q[k] + (1 - decay) * means[k] if count else q[k]
        torch.testing.assert_close(found[k], row)


def test_q_moves_after_the_loss_by_the_answers_of_the_batch():
    logits, labels = torch.randn(4, 3, dtype=torch.float64), [0, 0, 2, 0]
    method = with_logits(logits, decay=0.9)
    terms = method.loss(batch(labels))
    uniform = cmic_dl.concentration(cmic_dl.log_answers(logits, FLOOR), f64([-math.log(3)] * 3))
    torch.testing.assert_close(terms["concentration"], uniform.mean())
    p = logits.softmax(1)
    expected = f64([[1 / 3] * 3] * 3)
    expected[0] = 0.9 / 3 + 0.1 * p[[0, 1, 3]].mean(0)
    expected[2] = 0.9 / 3 + 0.1 * p[2]
    torch.testing.assert_close(method.centroids, expected)
    assert not method.centroids.requires_grad


def test_a_pass_puts_q_to_the_class_means_over_the_split():
    toy = Toy(network=PLAIN)
    method = made(toy, centroids="pass")
    (phase,) = method.phases()
    method.eval()
    with torch.no_grad():
        phase.each_pass(toy.data("train"), 0, 3)
        p = method.classifier(toy.train.images).softmax(1)
    means = torch.stack([p[toy.train.labels == k].mean(0) for k in range(3)])
    torch.testing.assert_close(method.centroids, means)
    before = method.centroids.clone()
    phase.step(toy.batch())
    assert torch.equal(method.centroids, before)


def test_a_probe_reads_the_same_places_of_each_class_and_leaves_batchnorm_alone():
    sizes = torch.tensor([4, 2, 8])
    by_class = torch.arange(100, 114)
    found = cmic_dl.same_places(by_class, sizes, torch.tensor([0.0, 0.5, 1 - 2**-24]))
    assert found.tolist() == [100, 102, 103, 104, 105, 105, 106, 110, 113]

    toy = Toy(counts=(15, 14, 11), network=Network(dropout=0))
    probing, batching = (made(toy, centroids=name) for name in ("probe", "batch"))
    images = probing.data.images(
        cmic_dl.same_places(probing.by_class, probing.sizes, torch.rand(8))
    )
    assert images.shape == (24, 3, 8, 8)
    for method in (probing, batching):
        method.train()
        torch.manual_seed(0)
        method.phases()[0].step(toy.batch())
        assert method.classifier.training
    mean = "classifier.backbone.norm.running_mean"
    assert torch.equal(probing.state_dict()[mean], batching.state_dict()[mean])
    assert not torch.equal(probing.centroids, batching.centroids)


def test_a_probe_moves_q_by_the_mean_answers_to_its_images():
    toy = Toy(counts=(15, 14, 11), network=PLAIN)
    method = made(toy, centroids="probe", decay=0.0)
    torch.manual_seed(3)
    drawn = torch.rand(cmic_dl.PROBED)
    index = cmic_dl.same_places(method.by_class, method.sizes, drawn)
    labels = toy.train.labels[index]
    assert labels.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    with torch.no_grad():
        p = method.classifier(toy.train.images[index]).softmax(1)
    torch.manual_seed(3)
    method.loss(toy.batch())
    torch.testing.assert_close(method.centroids, p.view(3, 8, 3).mean(1))


def test_a_class_without_images_leaves_its_row_of_q_and_the_others_right():
    toy = Toy(counts=(15, 0, 11, 0), network=PLAIN)
    method = made(toy, centroids="probe")
    method.loss(toy.batch())
    assert method.centroids.isfinite().all()
    torch.testing.assert_close(method.centroids[[1, 3]], torch.full((2, 4), 0.25))
    assert not torch.equal(method.centroids[0], method.centroids[1])


def test_the_decay_goes_with_the_source_of_q_unless_it_is_given():
    assert made(Toy()).decay == 0.99
    assert made(Toy(), centroids="pass").decay == 0.0
    assert made(Toy(), centroids="probe").decay == 0.9999
    assert made(Toy(), centroids="probe", decay=0.5).decay == 0.5


@pytest.mark.parametrize(("dtype", "rtol"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_without_both_terms_loss_and_gradient_are_those_of_erm(dtype, rtol):
    logits, labels = torch.randn(6, 3, dtype=dtype), [0, 1, 2, 2, 1, 0]
    method = with_logits(logits, lambda_=0.0, beta=0.0)
    loss = method.loss(batch(labels))["loss"]
    loss.backward()
    leaf = logits.requires_grad_()
    expected = F.cross_entropy(leaf, torch.tensor(labels))
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=rtol, atol=0)
    torch.testing.assert_close(method.classifier.logits.grad, leaf.grad, rtol=rtol, atol=rtol / 10)


def test_the_spec_says_when_it_is_erm():
    task = Task(("a", "b"), (4, 4), (3, 8, 8), "scratch")
    assert SPEC.reduces_to(task, {"lambda": 0.0, "beta": 0.0}) == "erm"
    assert SPEC.reduces_to(task, {"lambda": 0.7, "beta": 0.0}) is None
    assert SPEC.reduces_to(task, {"lambda": 0.0, "beta": 0.2}) is None


@pytest.mark.parametrize("normalizer", ["square", "pairs"])
def test_a_batch_of_one_class_has_no_separation(normalizer):
    method = with_logits(torch.randn(3, 4), normalizer=normalizer, detach=False)
    assert method.loss(batch([2, 2, 2]))["separation"] == 0


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "chosen",
    [
        {"detach": False, "beta": 0.05},
        {"normalizer": "pairs"},
        {"centroids": "pass"},
        {"centroids": "probe", "decay": 0.5},
    ],
    ids=str,
)
def test_several_processes_train_as_one(size, chosen):
    assert_ranks_equal_one(
        size,
        lambda toy: made(toy, **chosen),
        lambda method: torch.cat([weights(method), method.centroids.flatten()]),
    )


@pytest.mark.parametrize("labels", [[1], [0, 0, 0], [2, 0]])
@pytest.mark.parametrize("size", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("detach", [False, True])
def test_hard_batches_give_finite_losses_gradients_and_mean_answers(labels, size, detach):
    logits = torch.zeros(len(labels), 3)
    logits[:, labels[0]] = size
    method = with_logits(logits, detach=detach, normalizer="pairs", decay=0.0)
    for _ in range(3):
        loss = method.loss(batch(labels))["loss"]
        method.classifier.logits.grad = None
        loss.backward()
        assert loss.isfinite()
        assert method.classifier.logits.grad.isfinite().all()
        assert method.centroids.isfinite().all()


def test_training_concentrates_and_separates_the_answers():
    toy = Toy(network=PLAIN, passes=8)
    method = made(toy)
    terms = list(train(method, toy, Position()))
    assert terms[-1]["separation"] > terms[0]["separation"]
    assert (method.diagnostics()["q_own"] > 1 / 3).all()


def test_q_goes_on_from_a_checkpoint():
    toy, fresh = Toy(passes=2), Toy(passes=2, seed=1)
    for name in ("batch", "probe"):
        whole, stopped, resumed = (made(t, centroids=name) for t in (toy, toy, fresh))
        losses(whole, toy)
        at = Position()
        run = train(stopped, toy, at)
        next(run), next(run)
        kept = load(resumed, save(stopped, at))
        assert len(list(train(resumed, fresh, kept))) > 0
        assert torch.equal(resumed.centroids, whole.centroids)
