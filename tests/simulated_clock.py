"""A clock for threads that only moves when all of them sleep or wait."""

from __future__ import annotations

import threading
from collections.abc import Callable


class SimulatedClock:
    """See `hmi.stages.elastic_shards.io_budget.Clock`. The thread that makes it counts as one of its threads;
    others are started by `spawn`."""

    def __init__(self) -> None:
        self._moved = threading.Condition()
        self._now, self._active = 0.0, 1
        self._ends: list[float] = []
        self._ready: list[Callable[[], bool]] = []

    def now(self) -> float:
        return self._now

    def sleep_until(self, end: float) -> None:
        with self._moved:
            if end <= self._now:
                return
            self._ends.append(end)
            self._rest()
            self._moved.wait_for(lambda: self._now >= end)

    def wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        while not ready():
            with self._moved:
                self._ready.append(ready)
                self._rest()
            condition.wait_for(ready)
            with self._moved:
                self._ready.remove(ready)
                self._active += 1

    def spawn(self, work: Callable[[], None]) -> None:
        """Run `work` on a new thread of this clock."""
        with self._moved:
            self._active += 1

        def run() -> None:
            work()
            with self._moved:
                self._rest()

        threading.Thread(target=run, daemon=True).start()

    def _rest(self) -> None:
        """Note that the calling thread does nothing from now on, and move the time if none does anything."""
        self._active -= 1
        if self._active or not self._ends or any(ready() for ready in self._ready):
            return  # a thread whose wait is over counts again when it wakes
        self._now = min(self._ends)
        self._active += sum(end <= self._now for end in self._ends)
        self._ends = [end for end in self._ends if end > self._now]
        self._moved.notify_all()
