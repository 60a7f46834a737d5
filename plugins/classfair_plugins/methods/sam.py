"""SAM: sharpness-aware minimisation (Foret et al., ICLR 2021), and ASAM (Kwon et al., ICML 2021).

Idea. Look for weights whose whole neighbourhood has a low loss: take the gradient not at the
weights but at the worst point nearby, found by one step uphill.

Equations. With g the gradient of the mean cross-entropy at the weights w, over all parameters
jointly (biases and normalisation included),

    e = rho g / (||g||_2 + 1e-12),          SAM
    e = rho w^2 g / (|| |w| g ||_2 + 1e-12), ASAM (``adaptive``)

and the optimiser updates w, not w + e, with the gradient at w + e on the same batch. There is no
second-order term.

From the reference (JAX) code: both passes use the same dropout mask (``dropout: new`` draws
another); running statistics of BatchNorm are those of the first pass; only the second gradient is
clipped, as the direction of the first is all that counts; and with ``inner_decay`` weight decay is
part of the loss in both passes. From the common PyTorch port: by default decay is only in the base
step, at w and as the recipe says; the 1e-12, without which a zero gradient would give 0 / 0; ASAM.
The reference perturbs each device by its own gradient unless told otherwise; here the perturbation
comes from the gradient of the global batch, so it does not depend on the number of processes.

Cost. Two forward and two backward passes: 2, and one more copy of the weights during a step.

Traps. Running statistics must move once a step and both passes must still normalise with batch
statistics; switching BatchNorm's momentum off and on is easily done twice, which freezes it for
good, so all buffers are copied before the second pass and put back after it. With rho 0 a step is
then ERM's, bit for bit. For AdamW fine-tuning no default of rho is published: search it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Setup, Task
from classfair_registry.plain import BaseMethod
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec

EPSILON = 1e-12


@dataclasses.dataclass(frozen=True)
class Settings:
    """See the equations."""

    rho: float = setting(
        0.05,
        "length of the step uphill; ASAM wants about ten times as much",
        source="paper: 0.05 for CIFAR-10 and ImageNet, from 0.01 to 0.5",
        minimum=0.0,
        search=(0.01, 0.5),
        log=True,
    )
    adaptive: bool = setting(
        False, "ASAM: scale the step by the size of each weight", source="SAM paper: not"
    )
    inner_decay: float | None = setting(
        None,
        "factor of half the squared weights in the loss of both passes, instead of the recipe's "
        "weight decay in the base step, which null leaves as it is",
        source="PyTorch port: null; reference code: 1e-3",
        minimum=0.0,
    )
    dropout: Literal["same", "new"] = setting(
        "same",
        "random numbers of the second pass",
        source="reference code: same; PyTorch port: new",
    )


def ascent(
    weights: Sequence[Tensor], gradients: Sequence[Tensor], rho: float, *, adaptive: bool = False
) -> list[Tensor]:
    """Return the perturbation e of each weight; zero where all gradients are.

    Args:
        weights: parameters.
        gradients: of the same shapes.
        rho: its length (its length relative to the weights for ``adaptive``).
        adaptive: ASAM's rule.
    """
    directions = list(gradients)
    if adaptive:
        sizes = [weight.abs() for weight in weights]
        gradients = [size * slope for size, slope in zip(sizes, directions, strict=True)]
        directions = [size * slope for size, slope in zip(sizes, gradients, strict=True)]
    factor = rho / (nn.utils.get_total_norm(gradients) + EPSILON)
    return [direction * factor for direction in directions]


@contextlib.contextmanager
def unchanged(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Put the tensors' values back at the end, in place."""
    kept = [(tensor, tensor.detach().clone()) for tensor in tensors]
    yield
    with torch.no_grad():
        for tensor, before in kept:
            tensor.copy_(before)


class SAM(BaseMethod):
    """Minimise the loss at the worst point within rho of the weights.

    The gradient is taken at w + rho g / ||g||, g the gradient at w on the same batch, and applied
    to w. ``adaptive`` is ASAM.
    """

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.classifier = setup.classifier()
        overrides: dict[str, Any] = {} if settings.inner_decay is None else {"weight_decay": 0.0}
        self.optimizer = setup.optimizer(self.classifier, **overrides)

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropy, [], with the decay that both passes see."""
        loss = F.cross_entropy(self.classifier(batch.images), batch.labels)
        if not self.settings.inner_decay:
            return loss
        squares = sum(weight.square().sum() for weight in self.optimizer.parameters)
        return loss + 0.5 * self.settings.inner_decay * squares

    def step(self, batch: Batch) -> Mapping[str, Tensor]:
        """Update with the gradient at the perturbed weights; return the losses of both passes."""
        clean = self._clean_gradient(batch)
        reached = [weight for weight in self.optimizer.parameters if weight.grad is not None]
        with unchanged(reached), unchanged(self.classifier.buffers()):
            self._perturb(reached)
            perturbed = self.optimizer.gradient(lambda: self.loss(batch))
        self.optimizer.apply()
        return {"loss": clean, "perturbed": perturbed}

    def _clean_gradient(self, batch: Batch) -> Tensor:
        """Fill the gradients at w; then the random state is as before, for the second pass."""
        device = batch.images.device
        with torch.random.fork_rng(
            devices=[device] if device.type == "cuda" else [],
            enabled=self.settings.dropout == "same",
        ):
            return self.optimizer.gradient(lambda: self.loss(batch))

    @torch.no_grad()
    def _perturb(self, weights: Sequence[Tensor]) -> None:
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        rho, adaptive = self.settings.rho, self.settings.adaptive
        for weight, uphill in zip(
            weights, ascent(weights, gradients, rho, adaptive=adaptive), strict=True
        ):
            weight.add_(uphill)

    def phases(self) -> Sequence[Phase]:
        """Return the one phase."""
        return [Phase("train", self.step, [self.optimizer])]

    def evaluated(self) -> Any:
        """Return the classifier, at the unperturbed weights."""
        return self.classifier


def reduces_to(_task: Task, given: Mapping[str, Any]) -> str | None:
    """Return ``erm`` for a perturbation of length zero with decay where ERM has it."""
    same = given.get("inner_decay") is None and given.get("dropout", "same") == "same"
    return "erm" if given.get("rho") == 0 and same else None


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return SAM."""
    return [
        MethodSpec(
            name="sam",
            title="SAM",
            make=SAM,
            summary="Sharpness-aware minimisation: the gradient at the worst point nearby.",
            reference="Foret et al.: Sharpness-Aware Minimization for Efficiently Improving "
            "Generalization. ICLR 2021",
            cost=2.0,
            settings=Settings,
            capabilities=Capabilities(distributed=True),
            reduces_to=reduces_to,
        )
    ]
