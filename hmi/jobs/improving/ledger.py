"""The file in which a job `improve` notes what it spent and tried. A resumed attempt goes on from it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import ValidationError

from hmi.core import Record, Tried
from hmi.jobs.runtime.context import JobContext
from hmi.model.files import write_json
from hmi.stores.layout import read_json
from hmi.training.fit.early_stopping import StopTraining

SAVE_EVERY_S = 10.0
"""A killed process loses at most about this much of what it spent, besides the CPU seconds of its start."""
TEACHERS_SHARE = 0.6
"""The part of a training's share of the budget that teachers may take. The rest is for the model."""


class _LedgerContent(Record):
    """The content of the file."""

    cpu_s: float = 0.0
    tried: tuple[Tried, ...] = ()
    left_out: tuple[str, ...] = ()
    share_ends: float | None = None


class Ledger:
    """The budget of one job, and the list of what it tried. It ends a training when the budget is spent."""

    def __init__(self, ctx: JobContext, budget_s: float) -> None:
        """budget_s: the most CPU seconds of all attempts together."""
        self._path, self.budget_s = ctx.folder / "improve.json", budget_s
        kept = _parse_ledger(read_json(self._path))
        self._before, self.tried = kept.cpu_s, kept.tried
        self.left_out = kept.left_out
        """The larger teachers that the budget does not allow."""
        self._share_ends = kept.share_ends
        self.cut = False
        """True after the budget has ended a training early."""
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

    def enough(self) -> bool:
        """Return whether a training must end at this step. If so, it was cut short."""
        self.cut = self.cut or self.over
        return self.cut

    def conclude(self) -> None:
        """Let everything that follows end, whatever it costs: what was trained is to be judged."""
        self._bounded = False

    @contextmanager
    def share(self, parts: int) -> Iterator[None]:
        """Within the block, larger teachers may take TEACHERS_SHARE of a part of what is left.

        parts: the number of trainings that are left, this one included. What a killed attempt spent of the
        share is not given again.
        """
        if self._share_ends is None:
            self._share_ends = self.spent_s + TEACHERS_SHARE * (self.budget_s - self.spent_s) / parts
            self.save()
        yield
        self._share_ends = None
        self.save()

    @property
    def share_left_s(self) -> float:
        """The CPU seconds that larger teachers may still take. Outside of `share` there is no limit."""
        return math.inf if self._share_ends is None else self._share_ends - self.spent_s

    def leave_out(self, teacher: str) -> None:
        """Let later trainings do without this teacher, durably."""
        self.left_out = (*self.left_out, teacher)
        self.save()

    def note(self, tried: Tried) -> None:
        """Add to the list, durably."""
        self.tried = (*self.tried, tried)
        self.save()

    def save(self) -> None:
        """Write the file. Raises StorageFull."""
        self._saved = time.monotonic()
        kept = _LedgerContent(
            cpu_s=round(self.spent_s, 3),
            tried=self.tried,
            left_out=self.left_out,
            share_ends=self._share_ends,
        )
        write_json(self._path, kept.model_dump(mode="json"))

    def _watch(self) -> None:
        if time.monotonic() - self._saved > SAVE_EVERY_S:
            self.save()
        if self._bounded and self.enough():
            raise StopTraining


def _parse_ledger(stored: Any) -> _LedgerContent:
    try:
        return _LedgerContent.model_validate(stored or {})
    except ValidationError:  # another release wrote it
        return _LedgerContent()
