from __future__ import annotations

import pytest
import torch
from torch import nn

from classfair_plugins.methods import erm
from classfair_registry.settings import NoSettings
from classfair_registry.testing import Network, Toy, in_lockstep


class Answers(nn.Module):
    """A classifier whose logits are its parameter, so that a loss can be given any logits."""

    def __init__(self, logits):
        super().__init__()
        self.logits = nn.Parameter(logits)

    def forward(self, images):
        return self.logits


def loss_and_gradient(logits, labels):
    toy = Toy(counts=(2,) * logits.shape[1])
    method = erm.ERM(toy, NoSettings())
    method.classifier = Answers(logits)
    batch = toy.batch(range(len(labels)))
    batch = type(batch)(batch.index, batch.views, labels, batch.progress)
    loss = method.loss(batch)
    loss.backward()
    return loss.item(), method.classifier.logits.grad


def test_loss_and_gradient_are_those_of_the_worked_example(worked_example):
    example = worked_example("erm_1")
    logits = torch.tensor(example["inputs"]["logits"], dtype=torch.float64)
    loss, gradient = loss_and_gradient(logits, torch.tensor(example["inputs"]["labels"]))
    assert loss == pytest.approx(example["expected"]["loss"], abs=example["tolerance"])
    expected = torch.tensor(example["expected"]["grad_logits"], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=0, atol=example["tolerance"])


def test_uniform_logits_cost_the_logarithm_of_the_number_of_classes(worked_example):
    example = worked_example("erm_2")
    loss, _ = loss_and_gradient(torch.zeros(1, 100, dtype=torch.float64), torch.tensor([7]))
    assert loss == pytest.approx(example["expected"]["loss"], abs=example["tolerance"])


def test_large_logits_stay_exact(worked_example):
    example = worked_example("erm_3")
    logits = torch.tensor(example["inputs"]["logits"])
    loss, gradient = loss_and_gradient(logits, torch.tensor(example["inputs"]["labels"]))
    assert loss == example["expected"]["loss"]
    assert gradient.isfinite().all()


def test_a_step_trains_backbone_and_head_and_returns_its_loss():
    method = erm.ERM(Toy(), NoSettings())
    before = {name: value.clone() for name, value in method.named_parameters()}
    terms = method.phases()[0].step(Toy().batch())
    assert set(terms) == {"loss"}
    assert not terms["loss"].requires_grad
    assert all(not torch.equal(before[name], value) for name, value in method.named_parameters())


@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_take_the_step_of_one(size):
    def weights_after_a_step(world):
        toy = Toy(network=Network(norm="none", dropout=0), world=world)
        method = erm.ERM(toy, NoSettings())
        with world.batch(13) as rows:
            method.phases()[0].step(toy.batch(range(rows.start, rows.stop)))
        return torch.cat([value.detach().flatten() for value in method.parameters()])

    (alone,) = in_lockstep(1, weights_after_a_step)
    for each in in_lockstep(size, weights_after_a_step):
        torch.testing.assert_close(each, alone, rtol=1e-5, atol=1e-7)


def test_spec_claims_what_the_method_is():
    (spec,) = erm.classfair_methods()
    assert (spec.name, spec.title, spec.make) == ("erm", "ERM", erm.ERM)
    assert spec.capabilities.distributed
    assert spec.capabilities.decomposable
