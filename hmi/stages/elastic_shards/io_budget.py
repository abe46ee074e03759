"""The budget of reads from the disk that shards and tenants' modules share, and the clock that it runs by."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final, Protocol


class Clock(Protocol):
    """Time and waiting, so that a test can run threads by a simulated clock."""

    def now(self) -> float:
        """Return seconds from a fixed moment."""
        ...

    def sleep_until(self, end: float) -> None:
        """Return when `now` is `end` or later."""
        ...

    def wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        """Wait until `ready` is true. The caller holds the condition, whose changes are notified to all."""
        ...


class RealClock:
    """The machine's monotonic clock."""

    def now(self) -> float:
        return time.monotonic()

    def sleep_until(self, end: float) -> None:
        time.sleep(max(0.0, end - time.monotonic()))

    def wait(self, condition: threading.Condition, ready: Callable[[], bool]) -> None:
        condition.wait_for(ready)


REAL: Final = RealClock()


class IoBudget:
    """A token bucket of bytes a second. Readers pay before they read, and are served in the order in which
    they pay. Thread-safe.

    With `burst_bytes` of 0 the bucket behaves like a disk of this speed: reads follow one another. A disk
    that was idle lets up to `burst_bytes` pass at once.
    """

    def __init__(self, bytes_per_s: float = 0.0, burst_bytes: int = 0, clock: Clock = REAL) -> None:
        """bytes_per_s: 0 sets no limit."""
        self.bytes_per_s, self._burst, self._clock = bytes_per_s, burst_bytes, clock
        self._free = clock.now()
        self._lock = threading.Lock()
        self.bytes = 0
        """The bytes that have been paid for."""

    def reserve(self, size: int) -> float:
        """Pay for `size` bytes, and return the time (of the clock) before which their read must not end."""
        with self._lock:
            self.bytes += size
            now = self._clock.now()
            if not self.bytes_per_s:
                return now
            self._free = max(self._free, now - self._burst / self.bytes_per_s) + size / self.bytes_per_s
            return self._free

    def spend(self, size: int) -> None:
        """Pay for `size` bytes, and wait until their read may end."""
        self._clock.sleep_until(self.reserve(size))
