"""The decision whether and when a call is sent again. It reads the clock and sleeps nowhere."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hmi.client.errors import ApiError, QuotaExceeded, Unavailable, Unreachable

FIRST_S = 0.1
"""The mean wait before the first repetition. It doubles with each further one."""
LONGEST_S = 10.0
"""The longest wait, unless the server names a longer one."""


@dataclass
class Attempts:
    """The attempts of one call."""

    most: int
    budget_s: float
    repeatable: bool
    clock: Callable[[], float] = time.monotonic
    draw: Callable[[], float] = random.random
    made: int = 0
    began: float = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the call began; 0 for the first attempt, so that its body is sent as it is."""
        return self.clock() - self.began if self.made else 0.0

    @property
    def over(self) -> bool:
        """True once the time is up."""
        return self.clock() - self.began > self.budget_s

    @property
    def left_s(self) -> float:
        """Seconds left of the whole call, at least a moment."""
        return max(0.001, self.budget_s - (self.clock() - self.began))

    def wait_after(self, error: ApiError, *, fresh: bool = True) -> float:
        """Return how many seconds to wait before the next attempt. Raises `error` if there is none.

        fresh: whether the call can be sent again at all.
        """
        self.made += 1
        if self.made >= self.most or not fresh or not self._may_repeat(error):
            raise error
        wait = self.pause(error.retry_after or 0.0)
        if wait >= self.left_s:
            raise error
        return wait

    def pause(self, at_least: float = 0.0) -> float:
        """Return the next wait: `at_least` and up to a quarter more, and no less than the back-off."""
        backoff = min(FIRST_S * 2.0 ** max(0, min(self.made, 20) - 1), LONGEST_S) * (0.5 + self.draw())
        return max(at_least * (1 + 0.25 * self.draw()), backoff)

    def reset(self) -> None:
        """Begin anew, after a sign of life."""
        self.made, self.began = 0, self.clock()

    def _may_repeat(self, error: ApiError) -> bool:
        if isinstance(error, Unreachable):
            return self.repeatable or not error.sent
        if isinstance(error, QuotaExceeded):
            return True  # refused before anything was done
        return isinstance(error, Unavailable) and (self.repeatable or error.status == 503)
