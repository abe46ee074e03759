"""Time in a simulation: things that wait, and works that share processors."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

_Event = tuple[float, int, Callable[..., None], tuple[Any, ...]]


class Clock:
    """Runs what happens in order of time.

    Works share the cores, also with what other programs run all the time: while there is more of both than
    there are cores, all are slowed alike. A work of `seconds` ends when each work has received so much
    processor time since it began, so works are ordered by what every work has received, and nothing is
    computed anew when one comes or goes.
    """

    def __init__(self, cores: float = math.inf, others: float = 0.0) -> None:
        """others: threads of other programs that always want a core."""
        self.now = 0.0
        """Seconds since the beginning."""
        self._cores, self._others, self._given, self._number = cores, others, 0.0, 0
        self._waits: list[_Event] = []
        self._works: list[_Event] = []

    def wait(self, seconds: float, then: Callable[..., None], *what: Any) -> None:
        """Call `then` after some seconds."""
        self._number += 1
        heapq.heappush(self._waits, (self.now + seconds, self._number, then, what))

    def work(self, seconds: float, then: Callable[..., None], *what: Any) -> None:
        """Call `then` when a work that begins now has received so many seconds of a core."""
        self._number += 1
        heapq.heappush(self._works, (self._given + seconds, self._number, then, what))

    def run(self, until: float) -> None:
        """Let time go on until then."""
        waits, works = self._waits, self._works
        while True:
            speed = min(1.0, self._cores / (len(works) + self._others)) if works else 1.0
            work_at = self.now + (works[0][0] - self._given) / speed if works else math.inf
            wait_at = waits[0][0] if waits else math.inf
            at = min(work_at, wait_at)
            if at > until:
                self._given += (until - self.now) * speed
                self.now = until
                return
            if wait_at <= work_at:
                self._given += (at - self.now) * speed
                _, _, then, what = heapq.heappop(waits)
            else:
                self._given, _, then, what = heapq.heappop(works)
            self.now = at
            then(*what)
