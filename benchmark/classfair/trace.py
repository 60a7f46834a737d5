"""What is written down while a cell trains: losses, and curves at fixed fractions of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from classfair.data import Images
from classfair.evaluate import Sums, answering, batches
from classfair.recipe import Trace as Settings
from classfair_registry.errors import Diverged


class Trace:
    """Losses at log steps, checked for NaN and infinity at every step, and curves per class.

    Losses stay on the device between log steps, so that no step waits for it; the step and the
    term that went wrong are found all the same.

    Args:
        settings: of the recipe.
        images: what the curves are measured on.
        index: which of them, spread over the classes.
        num_classes: K.
    """

    def __init__(self, settings: Settings, images: Images, index: Tensor, num_classes: int) -> None:
        self._settings, self._images, self._index = settings, images, index
        self._classes = num_classes
        self._pending: list[tuple[int, dict[str, Tensor]]] = []
        self.rows: dict[str, list[Any]] = {"loss_step": [], "loss_rate": [], "curve_done": []}
        self.last_loss: float | None = None

    def losses(self, step: int, terms: Mapping[str, Tensor], rate: float) -> None:
        """Note the losses of one step; at log steps check and keep them.

        Raises:
            Diverged: naming the first step and term that was not finite.
        """
        self._pending.append((step, dict(terms)))
        if (step + 1) % self._settings.losses == 0:
            self.check()
            self.rows["loss_step"].append(step)
            self.rows["loss_rate"].append(rate)
            self.rows.setdefault("loss", []).append(self.last_loss)

    def check(self) -> None:
        """Fetch the losses since the last check and raise Diverged for the first bad one."""
        if not self._pending:
            return
        names = [(step, name) for step, terms in self._pending for name in terms]
        values = torch.stack([v.float() for _, terms in self._pending for v in terms.values()])
        fetched = values.cpu().tolist()
        for (step, name), value in zip(names, fetched, strict=True):
            if not np.isfinite(value):
                raise Diverged(name, step, value)
        self.last_loss = next(
            value
            for (_, name), value in zip(reversed(names), reversed(fetched), strict=True)
            if name == "loss"
        )
        self._pending.clear()

    def due(self, done: float) -> bool:
        """Whether a curve point is due when this share of the run is done."""
        taken, points = len(self.rows["curve_done"]), self._settings.points
        return taken < points and done * points >= taken + 1 - 1e-9

    @torch.no_grad()
    def curves(self, done: float, method: nn.Module) -> None:
        """Measure accuracy, margin and spread of each class, and the method's diagnostics."""
        answer = answering(method.eval())
        sums, right, margins = Sums(self._classes), [], []
        for images, labels in batches(self._images, self._index):
            features, logits = answer(images)
            sums.add(features, logits, labels)
            probability = logits.double().softmax(1)
            true = probability.gather(1, labels[:, None])[:, 0]
            other = probability.scatter(1, labels[:, None], -1).max(1).values
            right.append(logits.argmax(1) == labels)
            margins.append(true - other)
        moments = sums.moments()
        labels = self._images.labels[self._index.to(self._images.labels.device)]
        for name, values in (("accuracy", torch.cat(right)), ("margin", torch.cat(margins))):
            total = torch.zeros_like(moments.count).index_add(0, labels, values.double())
            self._keep(name, total / moments.count)
        self._keep("spread", moments.spread)
        self._keep("mean_square", moments.mean_square)
        for name, values in method.diagnostics().items():
            self._keep(f"diagnostic_{name}", values)
        while self.due(done):
            self.rows["curve_done"].append(done)

    def _keep(self, name: str, values: Tensor) -> None:
        self.rows.setdefault(f"curve_{name}", []).append(values.detach().double().cpu().tolist())

    def arrays(self) -> dict[str, npt.NDArray[np.float64]]:
        """Return what is stored in ``trace.npz``: [rows] or [rows, K] arrays by name."""
        return {name: np.array(rows, float) for name, rows in sorted(self.rows.items())}

    def state(self) -> dict[str, Any]:
        """Return plain values for a checkpoint; losses must have been checked before."""
        return {"rows": self.rows, "last_loss": self.last_loss}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what :meth:`state` returned."""
        self.rows, self.last_loss = dict(state["rows"]), state["last_loss"]


def spread_over_classes(labels: Tensor, limit: int) -> Tensor:
    """Return at most ``limit`` ascending positions with nearly equal numbers of each class."""
    order = torch.argsort(labels, stable=True)
    count = torch.bincount(labels)
    rank = (
        torch.arange(len(labels), device=labels.device) - (count.cumsum(0) - count)[labels[order]]
    )
    chosen = order[torch.argsort(rank, stable=True)][:limit]
    return chosen.sort().values
