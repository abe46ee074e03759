"""Measured against predicted seconds, by batch key and step. A step that loses is rested."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from hmi.stages.planner import BatchCost
from hmi.stages.planning.cost import Correction

TRIALS, ENOUGH = 12, 64
"""The batches after which a step may be rested because it saves less than LEAST for sure; and those after
which it is rested unless it saves something for sure."""
LEAST = 0.01
"""The least saving, a fraction of a batch's seconds, for which a step is kept."""
TOLD = 0.05
"""The least saving that has to be predicted for a batch if it is to tell whether the step saves time. Others
are mostly of texts that the step does not concern, since all tenants' texts share groups."""
SURE = 2.0
"""The number of standard errors that count as sure."""
RETRY_S = 300.0
"""Seconds for which a step that loses is not used."""


class OfKey:
    """The corrections of one batch key's steps."""

    def __init__(self) -> None:
        self._steps: dict[int, tuple[Correction, Correction]] = {}
        """Two corrections of each step: measured by predicted seconds of the clock, and CPU seconds by those
        predicted with all stages off."""
        self._rests: dict[int, float] = {}
        """The time at which a step that is not used is tried again, by step."""

    def now(self, now: float, steps: int) -> list[float]:
        """[steps]: the factor of the predicted seconds; inf: the step is not used at present."""
        ratios = [1.0] * steps
        off = self._steps.get(0)
        if off is not None:
            ratios = [off[0].ratio] * steps  # until a step has run, the factor of off is the best guess
        for step, (correction, _) in self._steps.items():
            ratios[step] = correction.ratio
        for step, until in list(self._rests.items()):
            if now < until:
                ratios[step] = math.inf
            else:
                del self._rests[step]
        return ratios

    def learn(
        self, step: int, priced: Sequence[float], measured: BatchCost, faster: bool, now: float
    ) -> None:
        wall, cpu = self._steps.setdefault(step, (Correction(), Correction()))
        wall.ran(priced[step], measured.wall_s or measured.cpu_s)
        if not faster or priced[step] <= (1 - TOLD) * priced[0]:
            cpu.ran(priced[0], measured.cpu_s)
        if faster and self._loses(step):
            del self._steps[step]
            self._rests[step] = now + RETRY_S

    def resting(self, now: float) -> list[int]:
        return sorted(step for step, until in self._rests.items() if now < until)

    def _loses(self, step: int) -> bool:
        off, mine = self._steps.get(0), self._steps[step][1]
        if off is None or min(off[1].batches, mine.batches) < TRIALS:
            return False
        saving = off[1].logarithm - mine.logarithm
        error = SURE * math.hypot(off[1].error, mine.error)
        return saving + error < LEAST or (mine.batches >= ENOUGH and saving - error <= 0.0)


class Ratios:
    """The corrections of all batch keys."""

    def __init__(self) -> None:
        self._keys: dict[Hashable, OfKey] = {}

    def of(self, key: Hashable) -> OfKey | None:
        """Return a key's corrections; None if no batch of the key was measured."""
        return self._keys.get(key)

    def forget(self, key: Hashable) -> None:
        """Drop a key's corrections: its predictions are made otherwise from now on."""
        self._keys.pop(key, None)

    def learn(
        self,
        key: Hashable,
        step: int,
        priced: Sequence[float],
        measured: BatchCost,
        *,
        faster: bool,
        now: float,
    ) -> None:
        """Learn from a batch.

        priced: [steps] its predicted seconds under each step, fixed costs included. faster: whether the step
        is meant to save time, and to be rested if it does not.
        """
        self._keys.setdefault(key, OfKey()).learn(step, priced, measured, faster, now)
