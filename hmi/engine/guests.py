"""Guests: small batches that run between two layers of a long one. A long window cannot be divided, and
without guests other tenants' texts would wait for all of it.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
SHORTER = 2
"""A guest takes its host's time divided by this at most: whoever is not shorter waits."""


class Host:
    """A running batch. All its guests together take at most as long as the batch itself, so its time at most
    doubles.

    Owned by the event loop's thread; `pause` and the times that it counts belong to the compute thread.
    """

    def __init__(self, expected_s: float) -> None:
        self._most_s, self._left_s = expected_s / SHORTER, expected_s
        self._waiting: deque[Callable[[], None]] = deque()
        self.guest = False
        """Whether it has one: no more than one at a time."""
        self.away_s = self.away_cpu_s = 0.0
        """What its thread gave to guests."""

    @property
    def room_s(self) -> float:
        """What a guest that comes now may take."""
        return 0.0 if self.guest else min(self._most_s, self._left_s)

    def expect(self, expected_s: float, at_hand: bool) -> None:
        """A guest comes that is expected to take so long. One whose modules are not at hand takes no place,
        since the wait for them may outlast the host. `guest` is its caller's to reset."""
        self.guest, self._left_s = at_hand, self._left_s - expected_s

    def receive(self, work: Callable[[], T], threads: ThreadPoolExecutor) -> asyncio.Future[T]:
        """The result of `work`, which runs between two layers of this batch, or in a thread that is free
        before."""
        done: Future[T] = Future()

        def visit() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._waiting.append(visit)
        try:
            threads.submit(self._let_in)
        except RuntimeError:  # the threads have ended: it runs in this batch already, or not at all
            if done.cancel():
                raise
        return asyncio.wrap_future(done)

    def pause(self) -> None:
        """Between two layers: run the guest that waits, if any, on the host's own thread."""
        begun, cpu = time.monotonic(), time.thread_time()
        if self._let_in():
            self.away_s += time.monotonic() - begun
            self.away_cpu_s += time.thread_time() - cpu

    def _let_in(self) -> bool:
        try:
            visit = self._waiting.popleft()
        except IndexError:
            return False
        visit()
        return True


class Hosts:
    """The batches that run now, one in each stream at most. Owned by the event loop's thread."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._running: list[Host] = []

    @contextmanager
    def running(self, expected_s: float) -> Iterator[Host]:
        """While a batch runs that is expected to take so long, 0 = it takes no guests."""
        host = Host(expected_s)
        self._running.append(host)
        try:
            yield host
        finally:
            self._running.remove(host)

    def roomiest(self) -> Host | None:
        """Where a guest may go; None while a stream is free, or nobody has room."""
        if len(self._running) < self._streams:
            return None
        host = max(self._running, key=lambda host: host.room_s)
        return host if host.room_s > 0 else None
