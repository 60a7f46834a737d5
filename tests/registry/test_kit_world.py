"""The toy world itself: its data, its loop, and processes that take turns."""

from __future__ import annotations

import broken_methods
import pytest
import torch
import torch.nn.functional as F

from classfair_registry.contracts import Phase
from classfair_registry.errors import UsageError
from classfair_registry.testing import (
    Network,
    Position,
    Toy,
    UndeclaredSplit,
    in_lockstep,
    load,
    save,
    state,
    train,
)
from classfair_registry.testing.globals import isolated
from classfair_registry.testing.loop import cut, passes, spread
from classfair_registry.testing.subject import difference


@pytest.fixture(autouse=True)
def _one_thread():
    with isolated():
        yield


def trained(steps: int | None = None, **fields):
    toy, at = Toy(**fields), Position()
    method = broken_methods.Reference(toy, None)
    for number, _ in enumerate(train(method, toy, at), start=1):
        if number == steps:
            break
    return toy, method, at


# -- the loop ------------------------------------------------------------------------------------


def test_the_data_can_be_learnt():
    _, method, _ = trained()
    method.eval()
    held_out = Toy(splits=("train", "val")).split("val")
    accuracy = (method.predict(held_out.images).argmax(1) == held_out.labels).float().mean()
    assert accuracy > 0.9


def test_initial_weights_depend_on_seed_and_number_alone():
    first = Toy(seed=3).classifier(1).state_dict()
    torch.rand(5)
    toy = Toy(seed=3)
    toy.backbone()
    random = torch.get_rng_state()
    assert not difference(first, toy.classifier(1).state_dict())
    assert torch.equal(random, torch.get_rng_state())
    assert difference(first, toy.classifier(0).state_dict())
    assert difference(first, Toy(seed=4).classifier(1).state_dict())


def test_a_run_goes_on_from_a_checkpoint_to_the_same_bits():
    _, whole, _ = trained()
    _, method, at = trained(steps=7)
    checkpoint = save(method, at)
    toy = Toy(seed=8)
    resumed = broken_methods.Reference(toy, None)
    rest = list(train(resumed, toy, load(resumed, checkpoint)))
    assert len(rest) == 18 - 7
    assert not difference(state(whole), state(resumed))


def test_a_last_batch_of_one_joins_the_one_before():
    sizes = [len(batch) for batch in cut(torch.arange(40), 13)]
    assert sizes == [13, 13, 14]
    assert [len(batch) for batch in cut(torch.arange(5), 3)] == [3, 2]
    assert [len(batch) for batch in cut(torch.arange(1), 3)] == [1]


@pytest.mark.parametrize(
    ("shares", "wanted"),
    [((1.0,), [6]), ((0.5, 0.25, 0.25), [3, 1, 2]), ((0.0, 1.0), [0, 6]), ((1.0, 0.01), [6, 1])],
)
def test_phases_get_whole_passes_for_their_shares(shares, wanted):
    phases = [Phase(str(share), lambda batch: {}, share=share) for share in shares]
    assert passes(phases, 6) == wanted


def test_each_class_is_in_each_batch():
    toy, at = Toy(), Position()
    method = broken_methods.Reference(toy, None)
    orders = set()
    for _ in train(method, toy, at):
        orders.add(tuple(at.order.tolist()))
        assert sorted(at.order.tolist()) == list(range(40))
        batch = cut(at.order, toy.batch_size)[at.batch - 1]
        assert len(toy.train.labels[batch].unique()) == 3
    assert len(orders) == 6


def test_the_order_is_a_function_of_its_generator():
    labels = torch.tensor([0, 0, 1, 1, 1, 2])
    once, again = (spread(labels, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(once, again)


def test_only_declared_splits_are_given_and_all_questions_noted():
    toy = Toy(splits=("train", "val"))
    assert len(toy.data("val").labels) == 15
    for name in ("test", "other"):
        with pytest.raises(UndeclaredSplit, match=name):
            toy.data(name)
    assert toy.asked == ["val", "test", "other"]


def test_a_probe_has_a_frozen_backbone_in_eval_mode():
    classifier = Toy(regime="probe").classifier().train()
    assert not classifier.backbone.norm.training
    assert not any(parameter.requires_grad for parameter in classifier.backbone.parameters())
    assert classifier.head.weight.requires_grad


def test_an_unknown_rate_is_refused_with_near_names():
    toy = Toy()
    with pytest.raises(UsageError, match="did you mean momentum"):
        toy.optimizer(toy.classifier(), momentun=0.5)


# -- its optimiser against torch's ---------------------------------------------------------------


@pytest.mark.parametrize("schedule", [True, False])
def test_the_optimiser_does_what_torch_does(schedule):
    toy = Toy(network=Network(dropout=0.0))
    ours, theirs = toy.classifier(), toy.classifier()
    optimizer = toy.optimizer(ours, schedule=schedule, clip=0.5, lr=0.1)
    reference = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    batch = toy.batch()
    for number in range(4):
        toy.progress.fill_(number / 4)
        rate = 0.1 * (0.5 * (1 + torch.cos(torch.pi * toy.progress))) if schedule else 0.1
        reference.param_groups[0]["lr"] = float(rate)
        optimizer.step(lambda: F.cross_entropy(ours(batch.images), batch.labels))
        reference.zero_grad()
        F.cross_entropy(theirs(batch.images), batch.labels).backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        reference.step()
        assert optimizer.learning_rate == pytest.approx(float(rate))
    for name, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-4, atol=1e-5)


def test_the_optimiser_remembers_a_gradient_that_was_not_finite():
    toy = Toy()
    head = toy.classifier().head
    optimizer = toy.optimizer(head)
    optimizer.gradient(head.weight.sum)
    assert optimizer.finite
    optimizer.gradient(lambda: head.weight.sum() * float("nan"))
    optimizer.gradient(head.weight.sum)
    assert not optimizer.finite


# -- several processes ---------------------------------------------------------------------------


def test_ranks_take_the_rows_of_a_batch_and_its_shares():
    def job(world):
        with world.batch(8) as rows:
            return rows, world.share, world.all_reduce(torch.ones(rows.stop - rows.start)[:1])

    first, second, third = in_lockstep(3, job)
    assert [rank[0] for rank in (first, second, third)] == [slice(0, 2), slice(2, 5), slice(5, 8)]
    assert [rank[1] for rank in (first, second, third)] == [2 / 8, 3 / 8, 3 / 8]
    assert first[2].tolist() == [3.0]


def test_a_batch_too_small_to_divide_is_replicated():
    def job(world):
        with world.batch(2) as rows:
            values = torch.full((2,), float(world.rank))
            return rows, world.share, world.all_reduce(values).tolist()

    for rank, result in enumerate(in_lockstep(3, job)):
        assert result == (slice(0, 2), 1.0, [float(rank)] * 2)


def test_a_gather_passes_each_rank_the_gradient_of_all_losses():
    features = torch.arange(5.0).reshape(5, 1) + 1
    weight = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10000.0])

    def loss(mine, every, rows):
        return (weight[rows, None] * mine * every.sum()).sum()

    def job(world):
        with world.batch(5) as rows:
            mine = features[rows].clone().requires_grad_()
            loss(mine, world.all_gather(mine), rows).backward()
            return mine.grad

    whole = features.clone().requires_grad_()
    loss(whole, whole, slice(0, 5)).backward()
    torch.testing.assert_close(torch.cat(in_lockstep(2, job)), whole.grad)


def test_random_numbers_are_the_rows_of_those_of_one_process():
    torch.manual_seed(3)
    whole = torch.rand(7, 2)
    torch.manual_seed(3)

    def job(world):
        with world.batch(7) as rows:
            return world.rand(rows.stop - rows.start, 2)

    assert torch.equal(torch.cat(in_lockstep(3, job)), whole)


def test_random_numbers_for_another_batch_are_refused():
    def job(world):
        with world.batch(7):
            return world.rand(7, 2)

    with pytest.raises(ValueError, match="asked for 7 rows, but this process has a batch of 3"):
        in_lockstep(2, job)


def test_readers_give_each_rank_its_part_in_equally_many_batches():
    def job(world):
        batches = list(Toy(batch_size=9, world=world).data("train").batches())
        return [batch.index.tolist() for batch in batches]

    ranks = in_lockstep(3, job)
    assert {len(batches) for batches in ranks} == {2}
    assert [index for batches in ranks for batch in batches for index in batch] == list(range(40))


def test_the_first_error_of_a_rank_is_raised_and_nobody_waits():
    def job(world):
        if world.rank == 1:
            raise LookupError("of rank 1")
        return world.all_reduce(torch.ones(1))

    with pytest.raises(LookupError, match="of rank 1"):
        in_lockstep(3, job)


def test_ranks_that_part_are_told_so():
    with pytest.raises(RuntimeError, match="same sequence of collective calls"):
        in_lockstep(2, lambda world: world.rank or world.all_reduce(torch.ones(1)))


@pytest.mark.parametrize("size", [2, 3])
def test_synchronised_batchnorm_is_that_of_one_process(size):
    network = Network(norm="sync", dropout=0.0)
    images = Toy().train.images[:8]
    kept = torch.linspace(-1, 1, 8)

    def job(world):
        backbone = Toy(network=network, world=world).backbone()
        with world.batch(8) as rows:
            loss = (backbone(images[rows]).square().sum(1) * kept[rows]).sum()
            loss.backward()
            gradient = world.all_reduce(backbone.convolution.weight.grad)
            return gradient, backbone.norm.running_var

    alone = Toy(network=Network(norm="batch", dropout=0.0)).backbone()
    (alone(images).square().sum(1) * kept).sum().backward()
    for gradient, variance in in_lockstep(size, job):
        torch.testing.assert_close(gradient, alone.convolution.weight.grad, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(variance, alone.norm.running_var)
