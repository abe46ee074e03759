"""Random instances of the label program, and every choice for them; a stage whose effects are a table's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hypothesis import strategies as st

from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.planner import SettingEffect, Waiting
from hmi.stages.planning.labels import Option, SchedulingJob, allowed

KEY = BatchKey(("table", "1"), "cls", False)

WHOLE = st.integers(1, 8).map(float)
OPTIONS = st.builds(Option, WHOLE, st.sampled_from([-float("inf"), 0.5, 1.0, 2.0, 3.5, 7.0, 50.0]))


def jobs(most: int, settings: int = 4) -> st.SearchStrategy[list[SchedulingJob]]:
    """Up to `most` jobs with up to `settings` settings each, in no order."""
    options = st.lists(OPTIONS, min_size=1, max_size=settings)
    return st.lists(st.builds(SchedulingJob, st.integers(1, 25).map(float), options), max_size=most)


def value_of(start: Sequence[float], jobs: Sequence[SchedulingJob], settings: Sequence[int | None]) -> float:
    """The value of a choice on one stream or, at best, on several; -inf if it misses a deadline."""
    runs = sorted((i for i, s in enumerate(settings) if s is not None), key=lambda i: jobs[i].deadline)
    best = -float("inf")
    for lanes in product(range(len(start)), repeat=len(runs)):
        clocks, value = list(start), 0.0
        for lane, i in zip(lanes, runs, strict=True):
            option = jobs[i].options[settings[i] or 0]
            clocks[lane] += option.seconds
            value += option.value if clocks[lane] + option.margin < jobs[i].deadline else -float("inf")
        best = max(best, value)
    return best


def brute_force(start: Sequence[float], jobs: Sequence[SchedulingJob], memory: float = float("inf")) -> float:
    """The value of the best of all choices."""
    each = [[None, *(s for s, option in enumerate(job.options) if allowed(option, memory))] for job in jobs]
    return max(value_of(start, jobs, settings) for settings in product(*each))


@dataclass(frozen=True)
class Table:
    """The part of the time that settings save, and the accuracy of their answers. The first is off."""

    saved: tuple[float, ...] = (0.0, 0.2, 0.5)
    accuracy: tuple[float, ...] = (1.0, 0.9, 0.7)

    @property
    def names(self) -> tuple[str, ...]:
        return ("off", *(f"setting {s}" for s in range(1, len(self.saved))))


class TableStage:
    """A stage with the settings of a table. Every text of one token may use them all."""

    name = "tokens"

    def __init__(self, table: Table) -> None:
        self._table = table

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, *map(Setting, self._table.names[1:]))

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect((1 - self._table.saved[self._table.names.index(setting.name)],))

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        return ()

    def terms(self, text: Waiting) -> Sequence[SettingEffect]:
        each = zip(self._table.saved, self._table.accuracy, self._table.names, strict=True)
        return [SettingEffect((1 - saved,), accuracy, name) for saved, accuracy, name in each]
