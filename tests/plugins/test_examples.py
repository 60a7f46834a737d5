"""The example packages: they load by file, keep what they claim, and are what their papers say."""

from __future__ import annotations

import math
import sys
import tomllib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry.contracts import Task
from classfair_registry.manager import Plugins
from classfair_registry.settings import build, describe, resolve
from classfair_registry.testing import Network, Position, Toy, check_method, train

EXAMPLES = Path(__file__).parents[2] / "plugins" / "examples"
NAMES = ("cdb", "focal", "logit_adjust")
EVEN = Task(("a", "b"), (4, 4), (3, 8, 8), "scratch")
UNEVEN = Task(("a", "b"), (3, 4), (3, 8, 8), "scratch")


def module_file(name: str) -> Path:
    return EXAMPLES / name / f"classfair_{name}.py"


@pytest.fixture(scope="module")
def plugins(tmp_path_factory) -> Plugins:
    found = Plugins(strict=True, cache=tmp_path_factory.mktemp("cards"))
    for name in NAMES:
        found.add_file(module_file(name))
    return found


def make(plugins: Plugins, name: str, toy: Toy, **chosen):
    spec = plugins.get("methods", name)
    return spec.make(toy, build(spec.settings, resolve(describe(spec.settings), chosen, "test")))


def module(plugins: Plugins, name: str):
    return sys.modules[plugins.get("methods", name).make.__module__]


def f64(values) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def logits_and_labels() -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(6, 3, generator=drawn, dtype=torch.float64)
    return logits, torch.tensor([0, 1, 1, 2, 0, 0])


def test_every_example_is_a_package_whose_entry_point_is_its_module():
    assert {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")} == set(NAMES)
    for name in NAMES:
        project = tomllib.loads((EXAMPLES / name / "pyproject.toml").read_text())
        assert project["project"]["entry-points"]["classfair"] == {name: f"classfair_{name}"}
        wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
        assert wheel["only-include"] == [module_file(name).name]
        assert (EXAMPLES / name / project["project"]["readme"]).is_file()
        test = (EXAMPLES / name / f"test_classfair_{name}.py").read_text()
        assert f'conformance_cases("{name}")' in test


@pytest.mark.parametrize("name", NAMES)
def test_a_step_from_the_loaded_file_trains(plugins, name):
    toy = Toy(network=Network(norm="none", dropout=0))
    method = make(plugins, name, toy)
    first, *_ = terms = list(train(method, toy, Position()))
    assert terms[-1]["loss"] < first["loss"]
    method.eval()
    accuracy = (method.predict(toy.train.images).argmax(1) == toy.train.labels).float().mean()
    assert accuracy > 0.8


@pytest.mark.parametrize("name", NAMES)
def test_the_kit_finds_nothing_to_mend(plugins, name):
    results = check_method(plugins.get("methods", name))
    assert [f"{one.name}: {one.sentence}" for one in results if not one.passed] == []


@pytest.mark.parametrize("gamma", [0.0, 0.5, 2.0])
def test_the_focal_loss_equals_its_formula(plugins, gamma):
    logits, labels = logits_and_labels()
    found = module(plugins, "focal").focal_loss(logits, labels, gamma)
    p = [row.softmax(0)[label].item() for row, label in zip(logits, labels, strict=True)]
    expected = sum((1 - each) ** gamma * -math.log(each) for each in p) / len(p)
    assert found.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gamma", [0.0, 0.3, 1.0, 2.0])
def test_the_focal_loss_has_finite_slopes_where_a_label_is_certain(plugins, gamma):
    focal_loss = module(plugins, "focal").focal_loss
    logits = torch.tensor([[1e4, 0.0], [-1e4, 0.0], [0.0, 0.0]], requires_grad=True)
    loss = focal_loss(logits, torch.tensor([0, 0, 1]), gamma)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad.isfinite().all()
    smooth = logits_and_labels()[0].requires_grad_()
    labels = logits_and_labels()[1]
    assert torch.autograd.gradcheck(lambda z: focal_loss(z, labels, gamma), smooth)


def test_focal_is_erm_for_gamma_zero_only(plugins):
    reduces_to = plugins.get("methods", "focal").reduces_to
    assert reduces_to(EVEN, {"gamma": 0.0}) == "erm"
    assert reduces_to(EVEN, {"gamma": 2.0}) is None
    logits, labels = logits_and_labels()
    found = module(plugins, "focal").focal_loss(logits, labels, 0.0)
    torch.testing.assert_close(found, F.cross_entropy(logits, labels), rtol=1e-12, atol=0)


def test_logit_adjustment_trains_with_the_class_shares_and_predicts_without(plugins):
    toy = Toy(counts=(20, 15, 5), network=Network(norm="none", dropout=0))
    method = make(plugins, "logit_adjust", toy, tau=2.0)
    shares = torch.tensor([0.5, 0.375, 0.125])
    torch.testing.assert_close(method.diagnostics()["adjustment"], 2 * shares.log())
    batch = toy.batch()
    plain = method.classifier(batch.images)
    # CE of adjusted logits: each exponential is weighed by its class's share, to the power tau.
    weighed = plain.exp() * shares.square()
    expected = -(weighed.gather(1, batch.labels[:, None])[:, 0] / weighed.sum(1)).log().mean()
    torch.testing.assert_close(method.loss(batch), expected)
    torch.testing.assert_close(method.predict(batch.images), plain)


def test_logit_adjustment_is_erm_on_equal_shares(plugins):
    reduces_to = plugins.get("methods", "logit_adjust").reduces_to
    assert reduces_to(EVEN, {"tau": 1.0}) == "erm"
    assert reduces_to(UNEVEN, {"tau": 1.0}) is None
    assert reduces_to(UNEVEN, {"tau": 0.0}) == "erm"
    toy = Toy(counts=(5, 5, 5))
    method = make(plugins, "logit_adjust", toy)
    logits, labels = logits_and_labels()
    found = F.cross_entropy(logits + method.adjustment.double(), labels)
    torch.testing.assert_close(found, F.cross_entropy(logits, labels), rtol=1e-12, atol=0)


def test_difficulty_weights_equal_their_formula_fixed_and_dynamic(plugins):
    class_weights = module(plugins, "cdb").class_weights
    accuracy = f64([0.9, 0.6, 0.3])
    torch.testing.assert_close(class_weights(accuracy, 1.0), f64([0.1, 0.4, 0.7]) * 3 / 1.2)
    tau = 2 / (1 + math.exp(-(0.9 / 0.31 - 1)))
    expected = f64([(1 - each) ** tau for each in (0.9, 0.6, 0.3)])
    torch.testing.assert_close(class_weights(accuracy), 3 * expected / expected.sum())


def test_difficulty_weights_sum_to_the_number_of_classes_and_are_even_for_even_classes(plugins):
    class_weights = module(plugins, "cdb").class_weights
    for accuracy in ([0.0, 1.0, 0.5, 0.5], [0.0] * 4, [1.0] * 4, [0.3] * 4):
        for tau in (None, 0.0, 1.5):
            found = class_weights(f64(accuracy), tau)
            assert found.sum().item() == pytest.approx(4)
            if len(set(accuracy)) == 1:
                torch.testing.assert_close(found, torch.ones_like(found))


def test_cdb_measures_accuracy_before_each_pass_but_the_first(plugins):
    toy = Toy(counts=(15, 14, 11), network=Network(norm="none", dropout=0))
    method = make(plugins, "cdb", toy, tau=1.0)
    (phase,) = method.phases()
    method.eval()
    with torch.no_grad():
        phase.each_pass(toy.data("train"), 0, 3)
        assert torch.equal(method.weights, torch.ones(3))
        phase.each_pass(toy.data("train"), 1, 3)
        right = (method.classifier(toy.train.images).argmax(1) == toy.train.labels).double()
    wrong = f64([1 - right[toy.train.labels == k].mean() for k in range(3)])
    assert wrong.std() > 0
    torch.testing.assert_close(method.weights, (3 * wrong / wrong.sum()).float())
    batch = toy.batch()
    each = F.cross_entropy(method.classifier(batch.images), batch.labels, reduction="none")
    torch.testing.assert_close(method.loss(batch), (method.weights[batch.labels] * each).mean())


def test_cdb_is_erm_for_tau_zero_only(plugins):
    reduces_to = plugins.get("methods", "cdb").reduces_to
    assert reduces_to(UNEVEN, {"tau": 0.0}) == "erm"
    assert reduces_to(EVEN, {"tau": None}) is None
    assert reduces_to(EVEN, {"tau": 1.0}) is None
