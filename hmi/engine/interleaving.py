"""Interleaving: a small batch runs between two layers of a long one, its host.

A long window cannot be divided. Without interleaving, other tenants' texts would wait for all of it.
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


class Host:
    """A running batch that lets others run between its layers.

    The batches that run between its layers take at most `room_s` predicted seconds together.

    Used on the event loop's thread, except `begin`, `pause`, `away_s` and `away_cpu_s`: those belong to the
    compute thread.
    """

    def __init__(self, room_s: float) -> None:
        self._left_s = room_s
        self._waiting: deque[Callable[[], None]] = deque()
        self.occupied = False
        """Whether an interleaved batch has the host's only slot."""
        self.away_s = 0.0
        """Seconds that the host's thread gave to interleaved batches during the present part
        (`Engine._run`)."""
        self.away_cpu_s = 0.0
        """CPU seconds that the host's thread gave to them."""

    @property
    def room_s(self) -> float:
        """The most seconds that an interleaved batch may take now."""
        return 0.0 if self.occupied else self._left_s

    def reserve(self, expected_s: float, at_hand: bool) -> None:
        """Reserve time for a batch, and the slot if its modules are at hand.

        A batch that must load modules first takes no slot, since the load may outlast the host. The caller
        resets `occupied` when the batch ends.
        """
        self.occupied, self._left_s = at_hand, self._left_s - expected_s

    def run_between(self, work: Callable[[], T], threads: ThreadPoolExecutor) -> asyncio.Future[T]:
        """Run `work` between two layers of this batch, or on one of `threads` if one is free before.

        Returns a future of its result. Raises RuntimeError if the threads have ended.
        """
        done: Future[T] = Future()

        def run() -> None:
            if not done.set_running_or_notify_cancel():
                return
            try:
                result = work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(result)

        self._waiting.append(run)
        try:
            threads.submit(self._run_next)
        except RuntimeError:  # the threads have ended; the host may have begun the work nevertheless
            if done.cancel():
                raise
        return asyncio.wrap_future(done)

    def begin(self) -> None:
        """Note that a part of the batch begins, on this thread."""
        self.away_s = self.away_cpu_s = 0.0

    def pause(self) -> None:
        """Run the next waiting batch, if any, on the host's thread. Called between two layers."""
        if not self._waiting:
            return
        begun, cpu = time.monotonic(), time.thread_time()
        if self._run_next():
            self.away_s += time.monotonic() - begun
            self.away_cpu_s += time.thread_time() - cpu

    def _run_next(self) -> bool:
        try:
            run = self._waiting.popleft()
        except IndexError:
            return False
        run()
        return True


class Hosts:
    """The batches that run now, at most one in each stream. Used on the event loop's thread only."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._running: list[Host] = []

    @contextmanager
    def running(self, room_s: float) -> Iterator[Host]:
        """Register a batch while it runs. With `room_s` 0 no other batch runs between its layers."""
        host = Host(room_s)
        self._running.append(host)
        try:
            yield host
        finally:
            self._running.remove(host)

    def roomiest(self) -> Host | None:
        """Return the host with the most room; None if a stream is free or no host has room."""
        if len(self._running) < self._streams:
            return None
        host = max(self._running, key=lambda host: host.room_s)
        return host if host.room_s > 0 else None
