"""Judging a classifier on a split, by sample index: independent of batches and processes.

Everything that is added up over images is added up in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair.data import Images, Part
from classfair_registry.contracts import Method
from classfair_registry.errors import Diverged
from classfair_registry.plain import BaseMethod
from classfair_registry.predictions import Predictions

BATCH = 512
"""Images in an evaluation batch. A constant of the protocol, since bf16 sums may depend on it."""


@dataclasses.dataclass(frozen=True)
class Moments:
    """Per-class sums over features and probabilities, in float64.

    Attributes:
        count: [K] images.
        feature_sum: [K, D].
        square_sum: [K] sums of ||f||^2.
        probability_sum: [K, K].
    """

    count: Tensor
    feature_sum: Tensor
    square_sum: Tensor
    probability_sum: Tensor

    @property
    def mean_square(self) -> Tensor:
        """[K] ||mu_k||^2."""
        return self._mean().square().sum(1)

    @property
    def spread(self) -> Tensor:
        """[K] ||s_k||^2, the mean squared distance to the class mean."""
        return (self.square_sum / self.count - self.mean_square).clamp_min(0)

    @property
    def collapse(self) -> Tensor:
        """[K] spread over the squared distance of the class mean to the mean of class means."""
        means = self._mean()
        return self.spread / (means - means.nanmean(0)).square().sum(1)

    def _mean(self) -> Tensor:
        return self.feature_sum / self.count[:, None]


Answer = Callable[[Tensor], tuple[Tensor, Tensor]]


def answering(method: Method) -> Answer:
    """Return a function from images to (features [B, D], logits [B, K]) of the judged classifier.

    The backbone runs once unless the method has its own ``predict``.
    """
    classifier = method.evaluated()
    own = type(method).predict is not BaseMethod.predict

    def answer(images: Tensor) -> tuple[Tensor, Tensor]:
        features = classifier.features(images)
        return features, method.predict(images) if own else classifier.head(features)

    return answer


def batches(images: Images, index: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
    """Iterate over (images [B, C, H, W], labels [B]) of a split, or of some of it, in order."""
    wanted = torch.arange(len(images), device="cpu") if index is None else index.cpu()
    parts = wanted.split(BATCH)
    requests = ((part, torch.empty((len(part), 0), device="cpu")) for part in parts)
    for part, pixels in zip(parts, images.read(requests), strict=True):
        yield pixels, images.labels[part.to(images.labels.device)]


class Sums:
    """Adds up :class:`Moments` batch by batch."""

    def __init__(self, num_classes: int) -> None:
        self._classes = num_classes
        self._total: list[Tensor] = []

    def add(self, features: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add a batch. A product with one-hot labels, as scattered sums have no fixed order."""
        onehot = F.one_hot(labels, self._classes).double().T
        features = features.double()
        new = [
            onehot.sum(1),
            onehot @ features,
            onehot @ features.square().sum(1),
            onehot @ logits.double().softmax(1),
        ]
        before = self._total or [torch.zeros_like(part) for part in new]
        self._total = [a + b for a, b in zip(before, new, strict=True)]

    def moments(self) -> Moments:
        """Return the sums so far."""
        return Moments(*self._total)


@torch.no_grad()
def predictions(
    method: nn.Module,
    test: Part,
    num_classes: int,
    validation: Part | None,
    step: int,
) -> Predictions:
    """Judge a method on the test images.

    Args:
        method: the trained method.
        test: what to judge it on.
        num_classes: K.
        validation: for the temperature, or None.
        step: of the run, to report if a logit is not finite.

    Raises:
        Diverged: if a logit is NaN or infinite.
    """
    answer = answering(method.eval())
    temperature = (
        fit_temperature(answer, validation.images) if validation is not None else float("nan")
    )
    sums, columns = Sums(num_classes), []
    for images, labels in batches(test.images):
        features, logits = answer(images)
        sums.add(features, logits, labels)
        columns.append(_columns(logits, labels, temperature))
    arrays = {
        name: torch.cat([part[name] for part in columns]).cpu().numpy() for name in columns[0]
    }
    if not np.isfinite(arrays["z_label"]).all():
        raise Diverged("a test logit", step, float("nan"))
    moments, count = sums.moments(), len(test)
    norm, angle = _vectors(method.evaluated().class_vectors(), num_classes)
    found = Predictions(
        index=np.arange(count),
        label=test.images.labels.cpu().numpy(),
        **arrays,
        mean_probability=_numpy(moments.probability_sum / moments.count[:, None]),
        vector_norm=norm,
        vector_angle=angle,
        feature_mean_square=_numpy(moments.mean_square),
        feature_spread=_numpy(moments.spread),
        feature_collapse=_numpy(moments.collapse),
        temperature=np.array([temperature]),
        names=np.array(test.names if test.names is not None else [""] * count),
    )
    return found.rounded()


def fit_temperature(answer: Answer, validation: Images) -> float:
    """Return the temperature that maximises the likelihood of the validation labels.

    The likelihood is concave in the inverse temperature, so a bounded search over its logarithm
    finds the one maximum.
    """
    from scipy.optimize import minimize_scalar

    pairs = [(answer(images)[1].double(), labels) for images, labels in batches(validation)]
    logits, labels = (torch.cat(parts) for parts in zip(*pairs, strict=True))

    def loss(log_temperature: float) -> float:
        return float(F.cross_entropy(logits / np.exp(log_temperature), labels))

    return float(np.exp(minimize_scalar(loss, bounds=(-5.0, 5.0), method="bounded").x))


def _columns(logits: Tensor, labels: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return the per-image arrays of :class:`Predictions` for a batch."""
    logits = logits.double()
    columns = {"top5": logits.topk(min(5, logits.shape[1]), dim=1).indices}
    others = logits.scatter(1, labels[:, None], -torch.inf)
    columns["z_label"] = logits.gather(1, labels[:, None])[:, 0]
    columns["z_other"] = others.max(1).values
    for suffix, scaled in (("", 1.0), ("_scaled", temperature)):
        total = torch.logsumexp(logits / scaled, 1)
        for name, values in (("label", columns["z_label"]), ("other", columns["z_other"])):
            columns[f"p_{name}{suffix}"] = (values / scaled - total).exp()
        columns[f"p_max{suffix}"] = torch.maximum(
            columns[f"p_label{suffix}"], columns[f"p_other{suffix}"]
        )
    return columns


def _vectors(
    vectors: Tensor | None, num_classes: int
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the norm of each class vector and its smallest angle to another, in degrees."""
    if vectors is None:
        return np.full(num_classes, np.nan), np.full(num_classes, np.nan)
    unit = F.normalize(vectors.detach().double())
    cosine = (unit @ unit.T).fill_diagonal_(-1).max(1).values.clamp(-1, 1)
    return _numpy(vectors.double().norm(dim=1)), _numpy(torch.rad2deg(torch.arccos(cosine)))


def _numpy(values: Tensor) -> npt.NDArray[np.float64]:
    array: npt.NDArray[np.float64] = values.detach().double().cpu().numpy()
    return array
