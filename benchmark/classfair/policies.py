"""RandAugment and AutoAugment as rows of a table: which operation, how strong, on which image.

Policies, magnitudes and probabilities are those of torchvision's classes of these names. What is
random comes from a table, one row a position in the pass, so it does not depend on batches,
workers, ranks or restarts.

- E. D. Cubuk, B. Zoph, J. Shlens and Q. V. Le. RandAugment. CVPRW 2020.
- E. D. Cubuk, B. Zoph, D. Mane, V. Vasudevan and Q. V. Le. AutoAugment. CVPR 2019.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from classfair import pixel_ops
from classfair.recipe import Augmentation

RAND_OPS = (
    *("Identity", "ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate", "Brightness"),
    *("Color", "Contrast", "Sharpness", "Posterize", "Solarize", "AutoContrast", "Equalize"),
)
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
_SIGNED = frozenset((*_MOVES, *_BLENDS))
_RAND_BINS, _AUTO_BINS = 31, 10
_AUTO_STEPS = 2

Step = tuple[str, float]
"""An operation and its magnitude."""


def columns(augmentation: Augmentation) -> int:
    """Return how many numbers an image's policy takes."""
    if augmentation.policy == "none":
        return 0
    if augmentation.policy == "randaugment":
        return 2 * augmentation.operations
    return 1 + 2 * _AUTO_STEPS


def table(augmentation: Augmentation, n: int, generator: torch.Generator) -> Tensor:
    """Draw one pass's random numbers, uniform in [0, 1).

    Returns:
        [n, P] float32 on the CPU. For RandAugment a column for the choice of each operation, then
        one for each sign; for AutoAugment one for the sub-policy, then whether each of its two
        operations happens, then their signs.
    """
    return torch.rand(n, columns(augmentation), generator=generator, device="cpu")


def apply(augmentation: Augmentation, images: Tensor, rows: Tensor) -> Tensor:
    """Return images under the policy.

    Args:
        augmentation: the policy.
        images: [B, H, W, C] uint8 on any device.
        rows: [B, P] of :func:`table`, on the CPU, where it is decided which images an operation
            is for, so that no device has to be waited for.
    """
    size = (images.shape[1], images.shape[2])
    chosen = [_steps(augmentation, row, size) for row in rows.tolist()]
    images = images.clone()
    for number in range(max(map(len, chosen), default=0)):
        groups: dict[str, list[int]] = {}
        for position, steps in enumerate(chosen):
            groups.setdefault(steps[number][0], []).append(position)
        for op, members in groups.items():
            if op == "Identity":
                continue
            index = torch.tensor(members).to(images.device, non_blocking=True)
            magnitudes = [chosen[position][number][1] for position in members]
            images[index] = pixel_ops.apply(op, images[index], magnitudes)
    return images


def _steps(augmentation: Augmentation, row: Sequence[float], size: tuple[int, int]) -> list[Step]:
    """Return the operations that an image's row stands for, in order."""
    if augmentation.policy == "randaugment":
        count = augmentation.operations
        ops = [RAND_OPS[int(u * len(RAND_OPS))] for u in row[:count]]
        return [
            (op, magnitude(op, augmentation.magnitude, _RAND_BINS, size, negative=sign < 0.5))
            for op, sign in zip(ops, row[count:], strict=True)
        ]
    policies = _auto_policies(augmentation.policy)
    chances, signs = row[1 : 1 + _AUTO_STEPS], row[1 + _AUTO_STEPS :]
    return [
        (op, magnitude(op, number or 0, _AUTO_BINS, size, negative=sign < 0.5))
        if chance <= probability
        else ("Identity", 0.0)
        for (op, probability, number), chance, sign in zip(
            policies[int(row[0] * len(policies))], chances, signs, strict=True
        )
    ]


@functools.lru_cache
def _auto_policies(name: str) -> Sequence[Sequence[tuple[str, float, int | None]]]:
    """Return the sub-policies, each of two (operation, probability, number of its magnitude)."""
    from torchvision.transforms import AutoAugment, AutoAugmentPolicy

    found: Sequence[Sequence[tuple[str, float, int | None]]]
    found = AutoAugment(AutoAugmentPolicy(name.removeprefix("autoaugment_"))).policies
    return found


@functools.lru_cache(maxsize=4096)
def magnitude(op: str, number: int, bins: int, size: tuple[int, int], *, negative: bool) -> float:
    """Return how strong an operation is.

    Args:
        op: the operation.
        number: of its magnitude, 0 .. bins - 1.
        bins: numbers of magnitudes.
        size: height and width of the image.
        negative: its sign, for an operation that has one.
    """
    height, width = size
    ends = {
        "ShearX": 0.3,
        "ShearY": 0.3,
        "TranslateX": 150.0 / 331.0 * width,
        "TranslateY": 150.0 / 331.0 * height,
        "Rotate": 30.0,
        "Solarize": 255.0,
        **dict.fromkeys(_BLENDS, 0.9),
    }
    if op == "Posterize":
        return float(8 - (torch.arange(bins) / ((bins - 1) / 4)).round()[number])
    if op not in ends:
        return 0.0
    start, end = (ends[op], 0.0) if op == "Solarize" else (0.0, ends[op])
    value = float(torch.linspace(start, end, bins)[number])
    return -value if negative and op in _SIGNED else value
