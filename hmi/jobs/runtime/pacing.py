"""Pauses the processes of background jobs while the server answers texts.

A low priority alone keeps a job off the processor cores that the server wants. The job still takes caches,
memory bandwidth and clock frequency from them. So the server stops the job's process (SIGSTOP) when a call
arrives, and lets it go on (SIGCONT) when no call has been under way for `HOLD_S`. A server that
is never idle would stop the job for ever. So the job runs in slices for a small share of the time. The server
does not stop a process that holds a lock which others may wait for (`Board.holding`).

Everything but `add`, `remove` and `close` happens on the server's event loop, so no call waits for a lock.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from hmi.config import Settings
from hmi.core import BACKGROUND, JobKind
from hmi.jobs.runtime.board import Board

log = logging.getLogger("hmi.jobs")
HOLD_S = 0.003
"""No call must have been under way for this time before a job goes on."""
SLICE_S = 0.05
"""The seconds for which a job runs at a time while calls are under way."""
BEAT_S = 0.25
"""A job is looked at at least this often."""
RETRY_S = 0.002
"""A process that holds a lock is asked again after this time."""
WINDOW_S = 3600.0
CLOSE_S = 5.0
"""The longest wait for the event loop when the server stops."""
STARVED = 0.05
"""A job is starved if it was free to run for less than this part of the last WINDOW_S."""


def in_background(kind: JobKind, settings: Settings) -> bool:
    """Return whether jobs of this kind give way to requests."""
    return settings.background_jobs == "all" or kind in BACKGROUND


class Pausable(Protocol):
    """A process that can be stopped and continued. Neither does anything after its end."""

    def pause(self) -> None: ...

    def go_on(self) -> None: ...

    def known_to_have_ended(self) -> bool: ...


@dataclass(frozen=True)
class PacingTotals:
    """Seconds of all background jobs since the server started, and how many jobs there are now."""

    running_s: float = 0.0
    paused_s: float = 0.0
    jobs: int = 0
    starved: int = 0

    def plus(self, other: PacingTotals) -> PacingTotals:
        return PacingTotals(
            self.running_s + other.running_s,
            self.paused_s + other.paused_s,
            self.jobs + other.jobs,
            self.starved + other.starved,
        )


class Paced:
    """One job's process, and how long it ran and was paused."""

    def __init__(self, job: str, process: Pausable, board: Board, share: float, at: float) -> None:
        self._job, self._process, self._board, self._share = job, process, board, share
        self.paused = False
        self._since, self._running_s, self._paused_s = at, 0.0, 0.0
        self._credit_s, self._slice_end = 0.0, at
        self._window, self._starved = (at, 0.0), False

    def look(self, at: float, quiet_at: float) -> float:
        """Let the process run, or pause it. Returns when to look again.

        quiet_at: when no call will have been under way for HOLD_S; infinite while one is under way.
        """
        self._account(at)
        if at >= quiet_at:
            self._go_on()
            return at + BEAT_S
        if self._credit_s >= SLICE_S and at >= self._slice_end:
            self._slice_end = at + SLICE_S
        if at < self._slice_end:
            self._go_on()
            return min(self._slice_end, at + BEAT_S)
        return min(quiet_at, at + (BEAT_S if self._pause() else RETRY_S))

    @property
    def ended(self) -> bool:
        return self._process.known_to_have_ended()

    def free(self) -> PacingTotals:
        """Let the process run from now on. Returns its totals, as of a job that is gone."""
        self._account(time.monotonic())
        self._go_on()
        return PacingTotals(self._running_s, self._paused_s)

    @property
    def totals(self) -> PacingTotals:
        return PacingTotals(self._running_s, self._paused_s, 1, int(self._starved))

    def _pause(self) -> bool:
        """Stop the process. Returns False if it holds a lock, so that it must run on."""
        if not self.paused and not self._board.holding:
            self._process.pause()
            self.paused = True
        # The process may have taken a lock just before the signal came: then it must release it first. Once
        # it has stopped, what the board says does not change any more.
        if self._board.holding:
            self._go_on()
        return self.paused

    def _go_on(self) -> None:
        if self.paused:
            self.paused = False
            self._process.go_on()

    def _account(self, at: float) -> None:
        """Count the time since the last look."""
        passed, self._since = at - self._since, at
        ran = 0.0 if self.paused else passed
        self._running_s += ran
        self._paused_s += passed - ran
        self._credit_s = min(SLICE_S, max(0.0, self._credit_s + self._share * passed - ran))
        began, before = self._window
        if at - began >= WINDOW_S:
            starved = self._running_s - before < STARVED * (at - began)
            if starved and not self._starved:
                log.info("job %s hardly ran in the last hour, since the server was never idle", self._job)
            self._window, self._starved = (at, self._running_s), starved
        self._board.set_times(self._running_s, self._paused_s, self._starved)


class Pacer:
    """Paces the background jobs of one server. `with pacer:` around each call that is to be answered fast.

    Without `watch` no job is ever paused, as for a command on a data folder.
    """

    def __init__(self, percent: int) -> None:
        """percent: the share of the time in which a job runs although calls are under way; 100: always."""
        self._share = percent / 100
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._paced: dict[str, Paced] = {}
        self._calls, self._quiet_at = 0, 0.0
        self._gone = PacingTotals()

    def watch(self) -> None:
        """Begin to pace, on the event loop that runs."""
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> None:
        self._calls += 1
        if self._calls == 1 and self._paced:
            self._look()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._calls -= 1
        if not self._calls:
            self._quiet_at = time.monotonic() + HOLD_S
            if self._paced:
                self._look()

    @property
    def answering(self) -> bool:
        """True while calls are under way, and for `HOLD_S` after the last one."""
        return self._calls > 0 or time.monotonic() < self._quiet_at

    def add(self, job: str, process: Pausable, board: Board) -> None:
        """Pace a job's process. May be called on any thread."""
        if self._share < 1:
            paced = Paced(job, process, board, self._share, time.monotonic())
            self._soon(lambda: self._add(job, paced))

    def remove(self, job: str) -> None:
        """Pace a job no more: it runs on. Does nothing for other jobs. May be called on any thread."""
        self._soon(lambda: self._remove(job))

    def close(self) -> None:
        """Let all jobs run on, and pace none any more. Waits until they do. Called on any thread."""
        self._share = 1.0
        if self._loop is None or not self._loop.is_running() or _on_a_loop():
            self._end()
            return
        ended = threading.Event()
        self._soon(self._end)
        self._soon(ended.set)
        ended.wait(CLOSE_S)

    def totals(self) -> PacingTotals:
        """The totals up to the last look at each job. May be called on any thread."""
        found = self._gone
        for paced in list(self._paced.values()):
            found = found.plus(paced.totals)
        return found

    def _soon(self, work: Callable[[], None]) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and with it the server
                self._loop.call_soon_threadsafe(work)

    def _end(self) -> None:
        for job in list(self._paced):
            self._remove(job)

    def _add(self, job: str, paced: Paced) -> None:
        if self._share < 1:  # else it has been closed meanwhile
            self._paced[job] = paced
            self._look()

    def _remove(self, job: str) -> None:
        paced = self._paced.pop(job, None)
        if paced is not None:
            self._gone = self._gone.plus(paced.free())

    def _look(self) -> None:
        """Look at every job now, and again when the first of them is due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for job in [job for job, paced in self._paced.items() if paced.ended]:
            self._remove(job)
        at = time.monotonic()
        quiet_at = float("inf") if self._calls else self._quiet_at
        due = [paced.look(at, quiet_at) for paced in self._paced.values()]
        if due and self._loop is not None:
            self._timer = self._loop.call_at(min(due), self._look)


def _on_a_loop() -> bool:
    """Return whether this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
