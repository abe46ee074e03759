"""The last day by minutes, in memory: what the server answered, how fast, and for which tenants.

A minute costs one reading of the metrics. It keeps the figures of the server and of its BUSIEST tenants, so
that memory stays bounded whatever the number of tenants: about 4 MB for a day.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from hmi.api.shared import Shared
from hmi.metrics.reading import FAILURES, REFUSALS, Reading
from hmi.stores.failures import tell
from hmi.usage import TenantUse

log = logging.getLogger("hmi.api")
KEPT = 24 * 60
"""Minutes that are kept."""
BUSIEST = 100
"""Tenants whose figures a minute keeps: those with the most compute in it."""
MINUTE_S = 60
SHOWN_S = 1.0
"""Age up to which a reading is shown again: several pages may ask each few seconds."""


@dataclass(frozen=True)
class Use:
    """What a tenant, or all together, used in a minute."""

    requests: float = 0.0
    texts: float = 0.0
    tokens: float = 0.0
    compute_ms: float = 0.0


@dataclass(frozen=True)
class Minute:
    """The figures of one minute, or of the part of it that has passed."""

    at: float
    """Its beginning, in Unix time."""
    seconds: float
    """60, or less for the minute of the server's start and the present one."""
    all: Use
    refused: int
    failed: int
    buckets: tuple[int, ...]
    """Calls to infer by the time of their answer: see `Reading.buckets`."""
    queue_texts: int
    """Texts that waited at its end."""
    whole: bool
    """Whether it keeps every tenant that was active in it."""
    tenants: Mapping[str, int]
    """The busiest tenants, each with its place in `figures`."""
    figures: array[float]
    """The four figures of `Use`, tenant by tenant."""

    def of(self, tenant: str) -> Use | None:
        """A tenant's figures; None if they were not kept."""
        at = self.tenants.get(tenant)
        if at is None:
            return Use() if self.whole else None
        return Use(*self.figures[4 * at : 4 * at + 4])


class Minutes:
    """The ring of minutes. All methods but `forget` are for the event loop's thread."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read, self._ring = read, deque[Minute](maxlen=KEPT)
        self._shown: Shared[tuple[Reading, float]] = Shared(lambda: (read(), time.time()), SHOWN_S)
        self._lock = threading.Lock()
        self._last, self._at = read(), time.time()
        self._gone: set[str] = set()
        """Tenants deleted since the last minute began: a later tenant of the same name begins at zero."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def forget(self, tenant: str) -> None:
        """Drop a deleted tenant's figures. Thread-safe."""
        with self._lock:
            self._gone.add(tenant)
            self._ring = deque((_without(m, tenant) for m in self._ring), maxlen=KEPT)

    async def last(self, count: int) -> tuple[list[Minute], Reading]:
        """The last `count` minutes, oldest first, and a reading up to SHOWN_S seconds old.

        The present minute, as far as it has passed, is the last of them.
        """
        reading, at = await self._shown.get()
        with self._lock:
            if at < self._at:  # a minute has ended since it was read
                reading, at = self._last, self._at
            now = self._between(reading, at)
            ended = list(self._ring)[-(count - 1) :] if count > 1 else []
        return [*ended, now], reading

    async def _run(self) -> None:
        """End a minute whenever the clock says so, forever."""
        while True:
            await asyncio.sleep(MINUTE_S - time.time() % MINUTE_S)
            try:
                reading = await asyncio.to_thread(self._read)
            except Exception as error:  # a minute without figures is better than a server without minutes
                tell(log, "the figures of a minute could not be read", error)
                continue
            self.end(reading, time.time())

    def end(self, reading: Reading, at: float) -> None:
        """End the present minute with this reading, taken at the Unix time `at`."""
        with self._lock:
            self._ring.append(self._between(reading, at))
            self._last, self._at, self._gone = reading, at, set()

    def _between(self, reading: Reading, at: float) -> Minute:
        """The minute from the last reading to this one."""
        before = self._last
        used = dict(_differences(before.tenants, reading.tenants, self._gone))
        busiest = heapq.nlargest(BUSIEST, used, key=lambda name: (used[name].compute_ms, name))
        figures = array("f")
        for name in busiest:
            one = used[name]
            figures.extend((one.requests, one.texts, one.tokens, one.compute_ms))
        return Minute(
            at=self._at,
            seconds=max(at - self._at, 1e-3),
            all=total(used.values()),
            refused=_grown(before.outcomes, reading.outcomes, REFUSALS),
            failed=_grown(before.outcomes, reading.outcomes, FAILURES),
            buckets=tuple(b - a for a, b in zip(before.buckets, reading.buckets, strict=True)),
            queue_texts=reading.queue_texts,
            whole=len(busiest) == len(used),
            tenants={name: i for i, name in enumerate(busiest)},
            figures=figures,
        )


def total(uses: Iterable[Use]) -> Use:
    """The sum of what several tenants, or several minutes, used."""
    sums = [0.0, 0.0, 0.0, 0.0]
    for use in uses:
        for i, value in enumerate((use.requests, use.texts, use.tokens, use.compute_ms)):
            sums[i] += value
    return Use(*sums)


def _differences(
    before: Mapping[str, TenantUse], after: Mapping[str, TenantUse], gone: set[str]
) -> Iterable[tuple[str, Use]]:
    """What each tenant used between two readings, of those that used something."""
    for name, now in after.items():
        then = before.get(name)
        if then is None or name in gone or now.requests < then.requests:
            then = TenantUse()
        if now != then:
            yield (
                name,
                Use(
                    now.requests - then.requests,
                    now.inputs - then.inputs,
                    now.tokens - then.tokens,
                    max(0.0, now.compute_ms - then.compute_ms),
                ),
            )


def _grown(before: Mapping[str, int], after: Mapping[str, int], kinds: frozenset[str]) -> int:
    return sum(after.get(kind, 0) - before.get(kind, 0) for kind in kinds)


def _without(minute: Minute, tenant: str) -> Minute:
    if tenant not in minute.tenants:
        return minute
    left = {name: at for name, at in minute.tenants.items() if name != tenant}
    return Minute(**{**vars(minute), "tenants": left})
