"""What the tests of MR2 share: features given by hand, and its formulas as slow loops."""

from __future__ import annotations

import torch
from torch import nn

from classfair_plugins.methods import mr2
from classfair_registry.contracts import Batch
from classfair_registry.testing import Toy

DOUBLE = torch.float64
PRESETS = ("paper", "official-2025-05", "official-head")


def random_batch(seed=0, size=12, width=5, num_classes=4):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(size, width, generator=generator, dtype=DOUBLE)
    labels = torch.randint(num_classes, (size,), generator=generator)
    return features, labels


class Given(nn.Module):
    """A classifier whose features are its parameter, so that a loss can be given any features."""

    def __init__(self, features, num_classes):
        super().__init__()
        self.values = nn.Parameter(features)
        weight = torch.linspace(-1, 1, num_classes * features.shape[1], dtype=features.dtype)
        self.register_buffer("weight", weight.view(num_classes, -1))

    def features(self, images):
        return self.values

    def head(self, features):
        return features @ self.weight.T


def method_on(features, num_classes, **given):
    method = mr2.MR2(Toy(counts=(1,) * num_classes), mr2.Settings(**given)).to(features.dtype)
    method.classifier = Given(features, num_classes)
    return method


def batch_of(labels):
    return Batch(torch.arange(len(labels)), [torch.zeros(len(labels))], labels, torch.zeros(()))


def slow_norm(values, p):
    if p >= mr2.INFINITE:
        return max(abs(float(v)) for v in values)
    return sum(abs(float(v)) ** p for v in values) ** (1 / p)


def slow_statistics(features, labels, k, p):
    """Return (||mu||_p^2, mean ||phi - mu||_p^2) of one class, by loops."""
    members = [features[i] for i in range(len(labels)) if labels[i] == k]
    if not members:
        return 0.0, 0.0
    mean = sum(members) / len(members)
    spread = sum(slow_norm(member - mean, p) ** 2 for member in members) / len(members)
    return slow_norm(mean, p) ** 2, spread


def slow_pair_loss(features, labels, i, s_bar, temperature):
    total = 1.0
    for j in range(len(labels)):
        if j != i and labels[j] == labels[i]:
            distance = ((features[i] - features[j]) ** 2).sum()
            total = total + torch.exp((distance - 2 * s_bar) / temperature)
    return torch.as_tensor(total, dtype=DOUBLE).log()


def slow_objective(batches, num_classes, weight, rules, decay=0.9):
    """Return the loss of the last of several batches, from the equations and tables, by loops."""
    known = {}
    for features, labels in batches:
        fixed = features.detach()
        for k in set(labels.tolist()):
            mean, spread = slow_statistics(fixed, labels, k, rules.p)
            new = [mean, spread, slow_statistics(fixed, labels, k, 2.0)[1]]
            old = known.get(k, new)
            known[k] = [decay * o + (1 - decay) * n for o, n in zip(old, new, strict=True)]
    among = len(known) if rules.unseen == "skip" else num_classes
    roots = {k: (values[0] + values[1]) ** (1 / 3) for k, values in known.items()}
    gamma = {k: rules.c_bar * root / (sum(roots.values()) / among) for k, root in roots.items()}
    s_bar = 0.0 if rules.s_bar == "zero" else sum(v[2] for v in known.values()) / among
    width = features.shape[1]
    temperature = {"one": 1, "10d": 10 * width}[rules.pair_temperature]
    scale = {"one": 1, "d": width, "d/10": width / 10}[rules.pair_scale]
    logit, pair = 0.0, 0.0
    for i, label in enumerate(labels.tolist()):
        scaled = (features[i] @ weight.T) / gamma[label]
        logit = logit - scaled.log_softmax(0)[label] / len(labels)
        alike = (labels == label).sum().item()
        if alike > 1:
            samples = rules.pair_average == "samples"
            count = len(labels) if samples else num_classes * alike
            pair = pair + slow_pair_loss(features, labels, i, s_bar, temperature) / count
    return logit + rules.lambda_ * scale * pair
