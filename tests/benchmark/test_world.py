"""Several processes do what one does with the whole batch, on gloo with 2 and 3 processes."""

from __future__ import annotations

import made
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from classfair.world import Alone, Group
from classfair_registry.plain import PlainLoss
from classfair_registry.specs import BackboneSpec, MethodSpec


class Pairs(PlainLoss):
    """A loss over all pairs of the batch with random weights: needs every collective."""

    def __init__(self, setup, settings):
        super().__init__(setup, settings)
        self.world = setup.world
        self.register_buffer("mean", torch.zeros(setup.task.num_classes))

    def loss(self, batch) -> Tensor:
        logits = self.classifier(batch.images)
        everyone = self.world.all_gather(logits)
        labels = self.world.all_gather(batch.labels)
        self.mean += self.world.all_reduce(logits.detach().sum(0))
        weight = self.world.rand(len(logits))
        distance = (logits[:, None] - everyone[None]).square().sum(2)
        same = batch.labels[:, None] == labels[None]
        pairs = torch.where(same, distance, -distance.sigmoid()).mean(1)
        each = nn.functional.cross_entropy(logits, batch.labels, reduction="none")
        return (weight * (pairs + each)).mean()


def network() -> BackboneSpec:
    class Flat(nn.Module):
        num_features = 4

        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Flatten(), nn.Linear(36, 4), nn.Tanh())

        def forward(self, images):
            return self.body(images)

    return BackboneSpec("flat", "Flat", lambda shape, settings: Flat(), "no batch statistics", "-")


def trained(world):
    spec = MethodSpec("pairs", "Pairs", Pairs, "pairs", "made here", 1.0)
    # 25 images in batches of 7: the last has 4, and none divides by 3.
    recipe = made.recipe(batch_size=7, epochs=2)
    trainer = made.trainer(spec, recipe, world=world, network=network())
    trainer.run()
    return {name: value.clone() for name, value in trainer.method.state_dict().items()}


def worker(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    try:
        torch.save(trained(Group(torch.device("cpu"))), f"{folder}/{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("size", [2, 3])
def test_processes_together_train_as_one(size, tmp_path):
    mp.start_processes(worker, (size, str(tmp_path)), nprocs=size, start_method="fork")
    alone = trained(Alone(torch.device("cpu")))
    for rank in range(size):
        state = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, value in alone.items():
            assert torch.allclose(state[name], value, rtol=1e-4, atol=1e-6), (rank, name)


def small(rank: int, size: int, folder: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=size)
    try:
        group = Group(torch.device("cpu"))
        assert group.part(2) == slice(0, 2)
        assert (group.share, group.weight) == (1.0, 1 / 3)
        values = torch.tensor([1.0, 2.0])
        assert group.all_reduce(values).tolist() == [1, 2]
        assert group.all_gather(values).tolist() == [1, 2]
        group.outside()
        assert group.all_reduce(values).tolist() == [3, 6]
        assert len(group.all_gather(values[: 1 + rank % 2])) == 4
    finally:
        dist.destroy_process_group()


def test_a_batch_with_fewer_samples_than_processes_is_replicated(tmp_path):
    mp.start_processes(small, (3, str(tmp_path)), nprocs=3, start_method="fork")
