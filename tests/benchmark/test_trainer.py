"""The loop: repeats and resumes to the last bit, seeds, passes, progress, divergence."""

from __future__ import annotations

import hashlib

import made
import pytest
import torch
from torch import Tensor, nn

from classfair.classifier import Body, Counter
from classfair.recipe import Schedule
from classfair.schedule import Clock, factor
from classfair.seeds import seed_of
from classfair.trainer import Stopped, passes_of, spans
from classfair_registry.contracts import Batch, Phase
from classfair_registry.errors import Diverged
from classfair_registry.plain import BaseMethod, PlainLoss
from classfair_registry.specs import MethodSpec


class Plain(PlainLoss):
    """Cross-entropy."""

    def loss(self, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(self.classifier(batch.images), batch.labels)


class TwoPhases(BaseMethod):
    """Two networks, a buffer filled in ``enter`` and ``each_pass``, an order with repeats."""

    def __init__(self, setup, settings):
        super().__init__()
        self.first, self.second = setup.classifier(0), setup.classifier(1)
        self.optimizers = [setup.optimizer(self.first), setup.optimizer(self.second)]
        self.register_buffer("seen", torch.zeros(setup.task.num_train))
        self.register_buffer("passes", torch.zeros(()))

    def _step(self, network, optimizer):
        def step(batch):
            self.seen.index_add_(0, batch.index, torch.rand(len(batch.index)))
            weight = 1 + self.seen[batch.index]

            def closure():
                logits = network(batch.views[-1])
                each = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
                return (weight * each).mean()

            return {"loss": optimizer.step(closure)}

        return step

    def _enter(self, data):
        for batch in data.batches():
            self.seen[batch.index] += self.first(batch.images).softmax(1).max(1).values.detach()

    def _each_pass(self, data, number, passes):
        self.passes += number + torch.rand(())

    def phases(self):
        one, two = self.optimizers
        order = torch.cat([torch.arange(25), torch.arange(5)])
        return [
            Phase("first", self._step(self.first, one), [one], 0.5, each_pass=self._each_pass),
            Phase(
                "second",
                self._step(self.second, two),
                [two],
                0.5,
                enter=self._enter,
                order=lambda generator: order[torch.randperm(30, generator=generator)],
                views=2,
            ),
        ]

    def evaluated(self):
        return self.second


def spec(method: type, **changes) -> MethodSpec:
    return MethodSpec("tried", "Tried", method, "for a test", "made here", 1.0, **changes)


METHODS = [spec(Plain), spec(TwoPhases)]


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.make.__name__)
def test_a_run_repeats_to_the_last_bit(method):
    one, two = made.trainer(method), made.trainer(method)
    one.run()
    torch.manual_seed(12345)
    two.run()
    assert made.differences(one.state(), two.state()) == []


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.make.__name__)
def test_a_run_goes_on_bit_for_bit_from_every_step(method):
    whole = made.trainer(method)
    whole.run()
    for stop in range(1, whole.at.step + 1):
        begun = made.trainer(method, on_step=made.stop_after(stop))
        with pytest.raises(Stopped):
            begun.run()
        fresh = made.trainer(method, seed=99)
        fresh.setup.seed = 0
        fresh.restore(made.saved_and_loaded(begun.state()))
        fresh.run()
        assert made.differences(whole.state(), fresh.state()) == [], f"stopped after {stop}"


def test_another_seed_gives_another_run():
    one, two = made.trainer(METHODS[0]), made.trainer(METHODS[0], seed=1)
    one.run()
    two.run()
    assert made.differences(one.state()["method"], two.state()["method"])


def test_initial_weights_depend_on_seed_and_number_alone():
    one = made.trainer(METHODS[0]).setup
    torch.rand(7)
    other = made.trainer(METHODS[1]).setup
    equal = made.differences(one.classifier(0).state_dict(), other.classifier(0).state_dict())
    different = made.differences(one.classifier(0).state_dict(), one.classifier(1).state_dict())
    assert equal == []
    assert different


def test_making_a_classifier_leaves_the_generator_alone():
    setup = made.trainer(METHODS[0]).setup
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    setup.classifier(4)
    assert torch.equal(torch.rand(2), expected)


def test_seeds_are_those_of_sha256():
    assert seed_of(0, "init", 1) == seed_of("0", "init", "1")
    assert seed_of(0, "a", "b") != seed_of(0, "ab")
    digest = hashlib.sha256(b"0\0order\x003").hexdigest()
    assert seed_of(0, "order", 3) == int(digest[:16], 16) // 2


def test_a_last_batch_of_one_is_merged_into_the_one_before():
    assert list(spans(0, 25, 8)) == [(0, 8), (8, 16), (16, 25)]
    assert list(spans(0, 24, 8)) == [(0, 8), (8, 16), (16, 24)]
    assert list(spans(16, 25, 8)) == [(16, 25)]
    assert list(spans(0, 1, 8)) == [(0, 1)]


@pytest.mark.parametrize(
    ("shares", "epochs", "expected"),
    [
        ([1.0], 10, [10]),
        ([0.5, 0.5], 5, [3, 2]),
        ([0.3, 0.3, 0.4], 10, [3, 3, 4]),
        ([0.01, 0.99], 10, [1, 9]),
        ([1.0, 0.2], 10, [10, 2]),
        ([1.0, 0.0], 10, [10, 0]),
    ],
)
def test_shares_become_whole_passes(shares, epochs, expected):
    phases = [Phase(str(i), lambda batch: {}, share=share) for i, share in enumerate(shares)]
    assert passes_of(phases, epochs) == expected


@pytest.mark.parametrize(
    ("schedule", "progress", "expected"),
    [
        (Schedule(), 0.0, 1.0),
        (Schedule(), 0.5, 0.5),
        (Schedule(warmup=0.2), 0.0, 0.05),
        (Schedule(warmup=0.2), 0.1, 0.55),
        (Schedule(warmup=0.2), 0.6, 0.5),
        (Schedule(name="constant", warmup=0.2), 0.6, 1.0),
        (Schedule(name="step", milestones=(0.6, 0.8)), 0.7, 0.1),
        (Schedule(floor=0.1), 0.5, 0.55),
    ],
)
def test_the_learning_rate_is_a_function_of_progress(schedule, progress, expected):
    assert factor(schedule, Clock(progress, 0.01)) == pytest.approx(expected)


def test_progress_of_a_phase_runs_from_zero_to_below_one():
    seen = []

    class Watching(Plain):
        def loss(self, batch):
            seen.append(float(batch.progress))
            return super().loss(batch)

    made.trainer(spec(Watching)).run()
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx((3 + 16 / 25) / 4)


def test_a_loss_that_is_not_finite_names_term_and_step():
    class Diverging(Plain):
        def loss(self, batch):
            loss = super().loss(batch)
            bad = torch.where(batch.progress >= 0.5, torch.inf, 0.0)
            return {"loss": loss, "extra": loss.detach() + bad}

    with pytest.raises(Diverged) as caught:
        made.trainer(spec(Diverging)).run()
    assert (caught.value.term, caught.value.step) == ("extra", 6)


def test_images_are_counted_forward_and_backward():
    done = made.trainer(METHODS[0])
    done.run()
    assert (done.setup.counter.forward, done.setup.counter.backward) == (100, 100)


def test_a_frozen_backbone_stays_in_eval_mode_and_without_gradient():
    body = Body(made.Net((1, 6, 6)), "fp32", Counter(), frozen=True).train()
    assert not any(module.training for module in body.network.modules())
    assert not any(parameter.requires_grad for parameter in body.parameters())


def test_the_backbone_runs_in_bf16_and_the_head_in_float32():
    setup = made.trainer(METHODS[0], made.recipe(precision="bf16")).setup
    classifier = setup.classifier()
    seen = []
    classifier.backbone.network.body[0].register_forward_hook(
        lambda module, inputs, output: seen.append(output.dtype)
    )
    logits = classifier(torch.randn(2, 1, 6, 6))
    assert seen == [torch.bfloat16]
    assert logits.dtype == torch.float32


def test_the_best_pass_on_validation_is_judged():
    chosen = made.recipe(
        data={"name": "made", "validation": 0.3}, selection="best:overall", epochs=6
    )
    done = made.trainer(METHODS[0], chosen)
    done.run()
    assert 0 < done.best.step <= done.at.step
    assert made.differences(dict(done.method.state_dict()), done.best.state) == []


def test_curves_are_taken_at_fixed_fractions():
    done = made.trainer(METHODS[0])
    done.run()
    arrays = done.trace.arrays()
    assert arrays["curve_accuracy"].shape == (4, 3)
    assert arrays["curve_done"].tolist() == pytest.approx([0.33, 0.5, 0.83, 1.0], abs=0.1)
    assert len(arrays["loss"]) == done.at.step // 2
