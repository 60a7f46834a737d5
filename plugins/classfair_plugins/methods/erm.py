"""ERM: empirical risk minimisation with the cross-entropy (Vapnik, NeurIPS 1991).

Idea. The baseline that every other method is compared with, and the unit of cost: one network, one
forward and one backward pass a step, every sample counts alike.

Equation. For logits z [B, K] and labels y [B]

    L = (1/B) sum_i -log softmax(z_i)[y_i],        dL/dz = (softmax(z) - onehot(y)) / B.

No label smoothing, no class weights; the head is the recipe's.

Traps. Published trainers of this field report the best epoch on the test set, which flatters the
hard classes most; here the last step is judged unless a recipe declares a rule on validation data.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from classfair_registry import hookimpl
from classfair_registry.contracts import Batch
from classfair_registry.plain import PlainLoss
from classfair_registry.specs import Capabilities, MethodSpec


class ERM(PlainLoss):
    """Minimise the mean cross-entropy over the training samples.

    L = (1/B) sum_i -log softmax(z_i)[y_i], without label smoothing or class weights.
    """

    def loss(self, batch: Batch) -> Tensor:
        """Return the mean cross-entropy of the batch, []."""
        return F.cross_entropy(self.classifier(batch.images), batch.labels)


@hookimpl
def classfair_methods() -> list[MethodSpec]:
    """Return ERM."""
    return [
        MethodSpec(
            name="erm",
            title="ERM",
            make=ERM,
            summary="Cross-entropy, every sample counts alike: the baseline.",
            reference="Vapnik: Principles of Risk Minimization for Learning Theory. NeurIPS 1991",
            cost=1.0,
            capabilities=Capabilities(distributed=True, decomposable=True),
        )
    ]
