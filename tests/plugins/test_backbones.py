"""The CIFAR family of residual networks."""

import math

import pytest
import torch
from torch import nn

from classfair_plugins.backbones.cifar_resnet import Settings, classfair_backbones

SPECS = {spec.name: spec for spec in classfair_backbones()}


def made(name="resnet8", shape=(3, 32, 32), shortcut="B"):
    torch.manual_seed(0)
    return SPECS[name].make(shape, Settings(shortcut))


@pytest.mark.parametrize(
    ("name", "shortcut", "parameters"),
    [
        ("resnet20", "B", 278_324),
        ("resnet32", "B", 472_756),
        ("resnet20", "A", 275_572),
        ("resnet32", "A", 470_004),
    ],
)
def test_parameters_with_a_head_for_100_classes_are_those_published(name, shortcut, parameters):
    network = made(name, shortcut=shortcut)
    head = nn.Linear(network.num_features, 100)
    assert sum(p.numel() for part in (network, head) for p in part.parameters()) == parameters


@pytest.mark.parametrize("name", ["resnet8", "resnet20", "resnet32", "resnet44", "resnet56"])
def test_the_depth_is_that_of_the_name(name):
    network = made(name)
    layers = [m for m in network.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(layers) + 1 == int(name.removeprefix("resnet"))  # and the head
    assert SPECS[name].title == f"ResNet-{len(layers) + 1}"


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (1, 8, 8), (5, 7, 13), (1, 1, 1)])
@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_images_of_any_size_and_number_of_channels_give_64_features(shape, shortcut):
    network = made(shape=shape, shortcut=shortcut).eval()
    features = network(torch.rand(2, *shape))
    assert features.shape == (2, network.num_features) == (2, 64)
    assert features.isfinite().all()
    assert (features >= 0).all()


def test_stages_halve_the_resolution_and_widen():
    sizes = []
    network = made(shape=(1, 28, 28))
    for stage in network.stages:
        stage.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    network(torch.rand(2, 1, 28, 28))
    assert sizes == [(16, 28, 28), (32, 14, 14), (64, 7, 7)]


def test_shortcut_a_has_no_parameters_and_keeps_every_second_pixel():
    shortcut = made(shortcut="A").stages[1][0].shortcut
    assert not list(shortcut.parameters())
    x = torch.arange(1.0, 16 * 9 + 1).view(1, 16, 3, 3)
    out = shortcut(x)
    assert out.shape == (1, 32, 2, 2)
    assert torch.equal(out[:, 8:24], x[:, :, [0, 2]][..., [0, 2]])
    assert not out[:, :8].any()
    assert not out[:, 24:].any()


def test_convolutions_start_from_he_s_normal_initialisation():
    weight = made("resnet20").stages[2][1].conv1.weight
    assert weight.mean().abs() < 1e-3
    assert weight.std().item() == pytest.approx(math.sqrt(2 / (64 * 9)), rel=0.02)


def test_a_seed_fixes_the_initial_weights():
    one, two = made().state_dict(), made().state_dict()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_channels_last_changes_no_more_than_rounding():
    images, network = torch.rand(4, 3, 16, 16), made().eval()
    plain = network(images)
    last = network.to(memory_format=torch.channels_last)(
        images.to(memory_format=torch.channels_last)
    )
    torch.testing.assert_close(last, plain, rtol=1e-4, atol=1e-5)


def test_every_parameter_gets_a_gradient():
    network = made()
    network(torch.rand(4, 3, 16, 16)).square().sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())
    assert all(p.grad.any() for p in network.parameters() if p.grad is not None)
