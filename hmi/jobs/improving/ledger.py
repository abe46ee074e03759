"""The file in which a job `improve` notes what it spent and tried. A resumed attempt goes on from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from hmi.core import Record, Tried
from hmi.jobs.runtime.context import JobContext
from hmi.model.files import write_json
from hmi.stores.layout import read_json
from hmi.training.early_stopping import EnoughError

SAVE_EVERY_S = 10.0
"""A killed process loses at most about this much of what it spent, besides the CPU seconds of its start."""
TEACHERS_SHARE = 0.6
"""The part of a training's share of the budget that teachers may take. The rest is for the model."""


class _Kept(Record):
    """The content of the file."""

    cpu_s: float = 0.0
    tried: tuple[Tried, ...] = ()
    teachers: int | None = None


class Ledger:
    """The budget of one job, and the list of what it tried. It ends a training when the budget is spent."""

    def __init__(self, ctx: JobContext, budget_s: float) -> None:
        """budget_s: the most CPU seconds of all attempts together."""
        self._path, self.budget_s = ctx.folder / "improve.json", budget_s
        kept = _read(read_json(self._path))
        self._before, self.tried = kept.cpu_s, kept.tried
        self.teachers = kept.teachers
        """The most teachers of a training. None: there is no limit."""
        self._share_ends: float | None = None
        self._begun, self._saved = time.process_time(), time.monotonic()
        self._bounded = True
        ctx.watch = self._watch

    @property
    def spent_s(self) -> float:
        """The CPU seconds of all attempts so far."""
        return self._before + time.process_time() - self._begun

    @property
    def over(self) -> bool:
        return self.spent_s >= self.budget_s

    def conclude(self) -> None:
        """Let everything that follows end, whatever it costs: what was trained is to be judged."""
        self._bounded = False

    @contextmanager
    def share(self, parts: int) -> Iterator[None]:
        """Within the block, larger teachers may take TEACHERS_SHARE of a part of what is left (`share_over`).

        parts: the number of trainings that are left, this one included.
        """
        self._share_ends = self.spent_s + TEACHERS_SHARE * (self.budget_s - self.spent_s) / parts
        try:
            yield
        finally:
            self._share_ends = None

    @property
    def share_over(self) -> bool:
        return self._share_ends is not None and self.spent_s >= self._share_ends

    def limit_teachers(self, most: int) -> None:
        """Let later trainings do with the first `most` teachers, durably."""
        self.teachers = most
        self.save()

    def note(self, tried: Tried) -> None:
        """Add to the list, durably."""
        self.tried = (*self.tried, tried)
        self.save()

    def save(self) -> None:
        """Write the file. Raises StorageFull."""
        self._saved = time.monotonic()
        kept = _Kept(cpu_s=round(self.spent_s, 3), tried=self.tried, teachers=self.teachers)
        write_json(self._path, kept.model_dump(mode="json"))

    def _watch(self) -> None:
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save()
        if self._bounded and self.over:
            raise EnoughError


def _read(stored: Any) -> _Kept:
    try:
        return _Kept.model_validate(stored or {})
    except ValidationError:  # another release wrote it
        return _Kept()
