"""Which work goes first where texts of encoders and texts that are written share processors."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType

import numpy as np


class RightOfWay:
    """Lets the thread that writes wait while calls of encoders are in flight: they take milliseconds.

    It waits at most half of the time, so under any load a text is written at least half as fast. Calls enter
    and leave on the event loop: use `with way:` around one.
    """

    def __init__(self, *, needed: bool, clock: Callable[[], float] = time.perf_counter) -> None:
        """needed: False if there are processors enough for both. Nothing waits then."""
        self.flag = np.zeros(1, np.int64)
        """The number of calls in flight, 0 if none has to wait for them. Kernels read it while they run."""
        self._needed, self._clock = needed, clock
        self._free = threading.Event()
        self._free.set()
        self._began_s = self._waited_s = 0.0

    def __enter__(self) -> None:
        if self._needed:
            self.flag[0] += 1
            self._free.clear()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._needed:
            self.flag[0] -= 1
            if not self.flag[0]:
                self._free.set()

    def begin(self) -> None:
        """A step begins. Called on the thread that writes, as `give`."""
        self._began_s, self._waited_s = self._clock(), 0.0

    def give(self) -> None:
        """Wait until no call is in flight, or until the step has waited for as long as it has run."""
        if self.flag[0]:
            now = self._clock()
            ran = now - self._began_s - self._waited_s
            if ran > self._waited_s:
                self._free.wait(ran - self._waited_s)
                self._waited_s += self._clock() - now
