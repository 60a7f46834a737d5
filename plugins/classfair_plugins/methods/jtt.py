"""JTT: just train twice (Liu et al., ICML 2021).

Idea. Train once and note which training samples come out wrong; then train a new network from the
same initial weights on the training set with more copies of those.

Equations. E = {i : argmax f(x_i) != y_i} after the first stage, the first of tied classes being the
answer. The second stage minimises, over its enlarged and shuffled set,

    (sum_i CE_i + up sum_{i in E} CE_i) / (N + up |E|)                      multiplicity up + 1
    (sum_{i not in E} CE_i + up sum_{i in E} CE_i) / (N + (up - 1) |E|)     multiplicity up

Nothing of the first stage's weights is kept, both networks start from the run's first
initialisation, and samples that came out right occur exactly once.

From the official code (the default): multiplicity up + 1, as copies are added to the whole set; up
-1 chooses by its rule trunc((N - |E|) / |E|) - 1 copies. From the paper: multiplicity up. From us:
E is found by one pass in evaluation mode after the first stage (``errors: frozen``), as
reimplementations do; the official code takes the answers of the stage's last training pass, with
its augmentation, batch statistics and dropout, while the weights still move (``on_the_fly``).
``share`` is the first stage's part of the recipe's passes, the second has the rest, and each stage
has the whole learning-rate schedule.

Cost. A step is ERM's. A pass of the second stage is 1 + up |E| / N passes, which the recipe's
budget does not count: the images of the record do.

Traps. up between 20 and 100 was meant for few errors; where E is a large part of the training set
the second stage trains on little else. An empty E gives plain ERM. Hard classes gain weight: class
k's share is proportional to N_k (1 + up err_k). Up-weighting what came out *right*, as a published
reimplementation once did, is the easiest mistake to make here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch, Phase, Reader, Setup
from classfair_registry.plain import BaseMethod
from classfair_registry.settings import setting
from classfair_registry.specs import Capabilities, MethodSpec


@dataclasses.dataclass(frozen=True)
class Settings:
    """See the equations."""

    share: float = setting(
        0.2,
        "the first stage's part of the recipe's passes",
        source="official code, Waterbirds: 61 of 300 epochs",
        minimum=0.01,
        maximum=0.9,
        search=(0.05, 0.5),
    )
    up: int = setting(
        4,
        "weight of the samples that came out wrong; -1 for the official code's automatic choice",
        source="official code, MultiNLI: 4 (Waterbirds: 100, CelebA: 50, CivilComments: 6)",
        minimum=-1,
        search=(2, 4, 6, 20, 50),
    )
    multiplicity: Literal["up+1", "up"] = setting(
        "up+1", "how often such a sample occurs in a pass", source="official code; paper: up"
    )
    errors: Literal["frozen", "on_the_fly"] = setting(
        "frozen",
        "how they are found: a pass in evaluation mode after the first stage, or the answers of "
        "its last training pass",
        source="our choice; official code: on_the_fly",
    )


def errors_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Return [B] bool: whether the first of the largest of logits [B, K] is not the label's."""
    return logits.argmax(1) != labels


def extra_copies(settings: Settings, num_train: int, num_errors: int) -> int:
    """Return how often an error sample occurs beyond the once of every sample."""
    if num_errors == 0:
        return 0
    if settings.up == -1:
        return max(0, (num_train - num_errors) // num_errors - 1)
    return settings.up if settings.multiplicity == "up+1" else max(0, settings.up - 1)


def enlarged(errors: Tensor, copies: int) -> Tensor:
    """Return the indices of one pass, unshuffled: all of [N] ``errors`` and the true ones again."""
    wrong = errors.nonzero()[:, 0]
    return torch.cat([torch.arange(len(errors), device=wrong.device), wrong.repeat(copies)])


class JTT(BaseMethod):
    """Train, find the training samples that come out wrong, and train anew with more of those.

    The second network starts from the same initial weights and sees each error ``up`` times more
    (``multiplicity: up`` makes it ``up`` times in all) in a pass.
    """

    errors: Tensor

    def __init__(self, setup: Setup, settings: Settings) -> None:
        super().__init__()
        self.settings, self.world = settings, setup.world
        self.identifier, self.classifier = setup.classifier(init=0), setup.classifier(init=0)
        self.identifier_optimizer = setup.optimizer(self.identifier)
        self.optimizer = setup.optimizer(self.classifier)
        like = next(self.classifier.parameters())
        self.register_buffer("errors", like.new_zeros(setup.task.num_train, dtype=torch.bool))

    def phases(self) -> Sequence[Phase]:
        """Return the identification and the final training."""
        share, frozen = self.settings.share, self.settings.errors == "frozen"
        identify, train = [self.identifier_optimizer], [self.optimizer]
        find = self._find_errors if frozen else None
        return [
            Phase("identify", self._identify, identify, share, selectable=False),
            Phase("train", self._train, train, 1 - share, enter=find, order=self._order),
        ]

    def _identify(self, batch: Batch) -> Mapping[str, Tensor]:
        def closure() -> Tensor:
            logits = self.identifier(batch.images)
            if self.settings.errors == "on_the_fly":
                self._note(batch.index, errors_of(logits.detach(), batch.labels))
            return F.cross_entropy(logits, batch.labels)

        return {"loss": self.identifier_optimizer.step(closure)}

    def _note(self, index: Tensor, wrong: Tensor) -> None:
        """Enter the answers to this process's samples and all others'."""
        gather = self.world.all_gather
        self.errors[gather(index)] = gather(wrong.to(torch.int64)).bool()

    @torch.no_grad()
    def _find_errors(self, data: Reader) -> None:
        self.identifier.eval()
        wrong = torch.zeros_like(self.errors, dtype=torch.int64)
        for batch in data.batches():
            wrong[batch.index] = errors_of(self.identifier(batch.images), batch.labels).long()
        self.errors.copy_(self.world.all_reduce(wrong) > 0)

    def _order(self, generator: torch.Generator) -> Tensor:
        errors = self.errors.cpu()
        copies = extra_copies(self.settings, len(errors), int(errors.sum()))
        indices = enlarged(errors, copies)
        return indices[torch.randperm(len(indices), generator=generator)]

    def _train(self, batch: Batch) -> Mapping[str, Tensor]:
        def closure() -> Tensor:
            return F.cross_entropy(self.classifier(batch.images), batch.labels)

        return {"loss": self.optimizer.step(closure)}

    def evaluated(self) -> Any:
        """Return the second network."""
        return self.classifier


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return JTT."""
    return [
        MethodSpec(
            name="jtt",
            title="JTT",
            make=JTT,
            summary="Train twice: the second time with more of what came out wrong the first time.",
            reference="Liu et al.: Just Train Twice: Improving Group Robustness without Training "
            "Group Information. ICML 2021",
            cost=1.0,
            settings=Settings,
            budget="a pass of the second stage is longer by the added copies of the errors",
            capabilities=Capabilities(distributed=True),
            example={"share": 0.5},
        )
    ]
