"""The limits of a batch that is to be cut."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from hmi.engine.texts.item import Item
from hmi.execution.batch import BatchKey

STREAMED_TURNS = 8
"""The time of a batch on shards, in times of other batches."""


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a batch that is to be cut."""

    seconds: float
    tokens: int
    work_left: float = 1.0
    """The fraction of the layers' work that the plan's stages leave (`hmi.stages.planner.work_left`)."""
    express: bool = False
    """True if the batch is to run beside another, its host. It then admits only tenants that have received
    less than the host's tenant with it, texts that may run beside their own tenant's (`TextRequest.beside`),
    and no window that exceeds the limits."""
    at_hand: Callable[[Item], bool] = lambda item: True
    """Tells whether an item's module is in memory. An express batch leaves out the other texts."""
    several_s: float = math.inf
    """The most seconds of a batch of more than one window, if that is less than `seconds`."""

    def of(self, key: BatchKey, work_left: float) -> BatchLimits:
        """The limits for a batch of this key and this `work_left`. A batch on shards decodes all layers, so
        it may take longer: STREAMED_TURNS times, but not beside another."""
        turns = STREAMED_TURNS if key.bits and not self.express else 1
        return replace(self, work_left=work_left, seconds=turns * self.seconds)
