"""The learning rate as a function of progress, so that resuming needs no scheduler state."""

from __future__ import annotations

import dataclasses
import math

from classfair.recipe import Schedule


@dataclasses.dataclass
class Clock:
    """How far the current phase is; the trainer sets it before each step.

    Attributes:
        progress: share of the phase done before this step, 0 to below 1.
        stride: share of the phase that this step is.
    """

    progress: float = 0.0
    stride: float = 0.0


def factor(schedule: Schedule, clock: Clock) -> float:
    """Return the learning rate of this step as a share of the recipe's.

    The warm-up is linear and counts this step, so that the first one does not idle at zero.
    """
    progress, warmup = clock.progress, schedule.warmup
    if progress < warmup:
        return min(1.0, (progress + clock.stride) / warmup)
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "step":
        return float(schedule.gamma ** sum(progress >= m for m in schedule.milestones))
    done = (progress - warmup) / max(1.0 - warmup, clock.stride)
    return schedule.floor + (1 - schedule.floor) * 0.5 * (1 + math.cos(math.pi * done))
