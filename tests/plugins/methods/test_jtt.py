from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classfair_plugins.methods import erm, jtt
from classfair_registry.settings import NoSettings
from classfair_registry.testing import Network, Toy, in_lockstep


def test_error_set_and_multiplicities_are_those_of_the_worked_example(worked_example):
    example = worked_example("jtt_error_set_1")
    inputs, expected = example["inputs"], example["expected"]
    errors = jtt.errors_of(torch.tensor(inputs["logits_stage1"]), torch.tensor(inputs["labels"]))
    assert errors.nonzero()[:, 0].tolist() == expected["error_set"]
    for name, multiplicity in (("official", "up+1"), ("paper", "up")):
        chosen = jtt.Settings(up=inputs["up_weight"], multiplicity=multiplicity)
        order = jtt.enlarged(errors, jtt.extra_copies(chosen, 5, 2))
        assert torch.bincount(order).tolist() == expected[f"{name}_multiplicity"]
        assert len(order) == expected[f"{name}_epoch_len"]


def test_objectives_are_those_of_the_worked_example(worked_example):
    example = worked_example("jtt_loss_1")
    inputs, expected = example["inputs"], example["expected"]
    losses = torch.tensor(inputs["stage2_per_sample_loss"], dtype=torch.float64)
    errors = torch.zeros(inputs["num_train"], dtype=torch.bool)
    errors[inputs["error_set"]] = True
    for key, multiplicity in (("official_epoch_mean", "up+1"), ("paper_normalised", "up")):
        chosen = jtt.Settings(up=inputs["up_weight"], multiplicity=multiplicity)
        order = jtt.enlarged(errors, jtt.extra_copies(chosen, 5, 2))
        assert losses[order].mean().item() == pytest.approx(expected[key], abs=1e-6)
        if multiplicity == "up":
            assert losses[order].sum().item() == pytest.approx(expected["paper_sum"], abs=1e-6)
    assert losses[jtt.enlarged(errors, 0)].mean().item() == pytest.approx(expected["erm_mean"])


def test_automatic_copies_are_those_of_the_worked_example(worked_example):
    example = worked_example("jtt_auto_upweight_1")
    expected = example["expected"]["official_extra_copies_for_minus_one"]
    for case, copies in zip(example["inputs"]["cases"], expected, strict=True):
        # A list times -1 is empty in the official code: no copies.
        assert jtt.extra_copies(jtt.Settings(up=-1), case["N"], case["E"]) == max(0, copies)


def test_length_of_a_pass_is_that_of_the_worked_example(worked_example):
    example = worked_example("jtt_cost_1")
    inputs, expected = example["inputs"], example["expected"]
    count = int(inputs["N"] * inputs["error_fraction"])
    errors = torch.arange(inputs["N"]) < count
    copies = jtt.extra_copies(jtt.Settings(up=inputs["up_weight"]), inputs["N"], count)
    length = len(jtt.enlarged(errors, copies))
    assert length == expected["stage2_epoch_len"]
    assert length / inputs["N"] == expected["stage2_epoch_cost_vs_erm"]


def test_the_first_of_tied_classes_is_the_answer():
    logits = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 1.0], [1.0, 1.0, 1.0]])
    assert jtt.errors_of(logits, torch.tensor([1, 1, 0])).tolist() == [True, False, False]


@settings(max_examples=25, derandomize=True, deadline=None)
@given(
    st.lists(st.booleans(), min_size=1, max_size=30),
    st.integers(-1, 5),
    st.sampled_from(["up+1", "up"]),
)
def test_what_came_out_right_occurs_once_and_nothing_is_lost(errors, up, multiplicity):
    errors = torch.tensor(errors)
    chosen = jtt.Settings(up=up, multiplicity=multiplicity)
    copies = jtt.extra_copies(chosen, len(errors), int(errors.sum()))
    times = torch.bincount(jtt.enlarged(errors, copies), minlength=len(errors))
    assert (times[~errors] == 1).all()
    assert (times[errors] == 1 + copies).all()


def test_no_errors_give_the_order_and_the_network_of_erm():
    toy = Toy()
    method, plain = jtt.JTT(toy, jtt.Settings()), erm.ERM(toy, NoSettings())
    order = method.phases()[1].order(torch.Generator().manual_seed(5))
    shuffle = torch.randperm(toy.task.num_train, generator=torch.Generator().manual_seed(5))
    assert torch.equal(order, shuffle)
    for step in (method.phases()[1].step, plain.phases()[0].step):
        torch.manual_seed(0)
        step(toy.batch())
    for one, other in zip(method.classifier.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_the_second_network_starts_from_the_same_weights_whatever_the_first_learnt():
    toy = Toy()
    method = jtt.JTT(toy, jtt.Settings())
    method.phases()[0].step(toy.batch())
    for one, other in zip(
        method.classifier.parameters(), toy.classifier(0).parameters(), strict=True
    ):
        assert torch.equal(one, other)
    assert not torch.equal(method.identifier.head.weight, method.classifier.head.weight)
    assert method.evaluated() is method.classifier


def test_frozen_errors_are_those_of_the_first_network_in_evaluation_mode():
    toy = Toy(network=Network(dropout=0.5))
    method = jtt.JTT(toy, jtt.Settings(share=0.25))
    identify, train = method.phases()
    assert (identify.share, train.share, identify.selectable) == (0.25, 0.75, False)
    identify.step(toy.batch())
    train.enter(toy.data("train"))
    method.identifier.eval()
    right = method.identifier(toy.train.images).argmax(1) == toy.train.labels
    assert torch.equal(method.errors, ~right)
    assert method.errors.any()
    times = torch.bincount(train.order(torch.Generator()))
    assert torch.equal(times, 1 + 4 * method.errors)


def test_errors_on_the_fly_are_the_answers_of_the_training_steps():
    toy = Toy(network=Network(dropout=0.0))
    method = jtt.JTT(toy, jtt.Settings(errors="on_the_fly"))
    identify, train = method.phases()
    assert train.enter is None
    batch = toy.batch([4, 9, 2, 30])
    expected = toy.classifier(0)(batch.images).argmax(1) != batch.labels
    identify.step(batch)
    assert torch.equal(method.errors[batch.index], expected)
    assert method.errors.sum() == expected.sum()


@pytest.mark.parametrize("index", [[0], [0, 1, 2], list(range(13))])
def test_losses_and_weights_stay_finite(index):
    toy = Toy(network=Network(norm="none", feature_scale=1e4))
    method = jtt.JTT(toy, jtt.Settings(errors="on_the_fly"))
    for phase in method.phases():
        assert phase.step(toy.batch(index))["loss"].isfinite()
    assert all(value.isfinite().all() for value in method.parameters())


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("errors", ["frozen", "on_the_fly"])
def test_several_processes_find_the_errors_and_take_the_steps_of_one(size, errors):
    def state_after_steps(world):
        toy = Toy(network=Network(norm="none", dropout=0), world=world)
        method = jtt.JTT(toy, jtt.Settings(errors=errors))
        identify, train = method.phases()
        for first, total in ((0, 13), (15, 2)):
            with world.batch(total) as rows:
                batch = toy.batch(range(first + rows.start, first + rows.stop))
                identify.step(batch)
                train.step(batch)
        if train.enter is not None:
            train.enter(toy.data("train"))
        order = train.order(torch.Generator().manual_seed(0))
        values = [value.detach().flatten() for value in method.parameters()]
        return torch.cat(values), method.errors, order

    ((weights, found, order),) = in_lockstep(1, state_after_steps)
    assert found.any()
    for each in in_lockstep(size, state_after_steps):
        torch.testing.assert_close(each[0], weights, rtol=1e-4, atol=1e-6)
        assert torch.equal(each[1], found)
        assert torch.equal(each[2], order)
