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
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from itertools import chain

from hmi.api.views.single_flight import SingleFlight
from hmi.metrics.reading import FAILURES, REFUSALS, MetricsReading
from hmi.stores.failures import log_failure

Figures = tuple[float, ...]
"""The figures of a `MinuteStats`."""
log = logging.getLogger("hmi.api")
KEPT = 24 * 60
"""Minutes that are kept."""
BUSIEST = 100
"""Tenants whose figures a minute keeps: those with the most compute in it."""
FIELDS = ("requests", "inputs", "tokens", "compute_ms")
"""The fields of a `TenantUse` that are kept, in the order of those of a `MinuteStats`."""
COMPUTE = FIELDS.index("compute_ms")
MINUTE_S = 60
SHOWN_S = 1.0
"""Age up to which a reading is shown again: several pages may ask each few seconds."""


@dataclass(frozen=True)
class MinuteStats:
    """The use of a tenant, or of all together, in one minute."""

    requests: float = 0.0
    texts: float = 0.0
    tokens: float = 0.0
    compute_ms: float = 0.0


@dataclass(frozen=True)
class Minute:
    """The figures of one minute, or of the part of it that has passed."""

    at: float
    """The minute's beginning, in Unix time."""
    seconds: float
    """The length in seconds: 60, or less for the minute of the server's start and the
    present one.
    """
    all: MinuteStats
    refused: int
    failed: int
    buckets: tuple[int, ...]
    """Calls to infer by the time of their answer: see `MetricsReading.buckets`."""
    queue_texts: int
    """Texts that waited at the end of the minute."""
    whole: bool
    """True if the minute keeps every tenant that was active in it."""
    tenants: Mapping[str, int]
    """The busiest tenants, each with its place in `figures`."""
    figures: array[float]
    """The four figures of `MinuteStats`, tenant by tenant."""

    def of(self, tenant: str) -> MinuteStats | None:
        """A tenant's figures; None if they were not kept."""
        at = self.tenants.get(tenant)
        if at is None:
            return MinuteStats() if self.whole else None
        return MinuteStats(*self.figures[4 * at : 4 * at + 4])


class Minutes:
    """The ring of minutes. Thread-safe; `start`, `stop` and `last` are for the event loop."""

    def __init__(self, read: Callable[[], MetricsReading]) -> None:
        self._read, self._ring = read, deque[Minute](maxlen=KEPT)
        self._present: SingleFlight[tuple[Minute, MetricsReading]] = SingleFlight(self._look, SHOWN_S)
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
        """Drop a deleted tenant's figures."""
        with self._lock:
            self._gone.add(tenant)
            self._ring = deque((_minute_without(m, tenant) for m in self._ring), maxlen=KEPT)

    async def last(self, count: int) -> tuple[list[Minute], MetricsReading]:
        """The last `count` minutes, oldest first, and a reading up to SHOWN_S seconds old.

        The present minute, as far as it has passed, is the last of them.
        """
        now, reading = await self._present.get()
        with self._lock:
            ended = list(self._ring)[-(count - 1) :] if count > 1 else []
        # The present minute may have ended since it was looked at.
        return [*(minute for minute in ended if minute.at != now.at), now], reading

    def end(self, reading: MetricsReading, at: float) -> None:
        """End the present minute with this reading, taken at the Unix time `at`."""
        ended = self._between(reading, at)
        with self._lock:
            self._ring.append(ended)
            self._last, self._at, self._gone = reading, at, set()

    async def _run(self) -> None:
        """End a minute whenever the clock says so, forever."""
        while True:
            await asyncio.sleep(MINUTE_S - time.time() % MINUTE_S)
            try:
                await asyncio.to_thread(lambda: self.end(self._read(), time.time()))
            except Exception as error:  # a minute without figures is better than a server without minutes
                log_failure(log, "the figures of a minute could not be read", error)

    def _look(self) -> tuple[Minute, MetricsReading]:
        reading = self._read()
        return self._between(reading, time.time()), reading

    def _between(self, reading: MetricsReading, at: float) -> Minute:
        """The minute from the last reading to this one."""
        with self._lock:
            before, began, gone = self._last, self._at, frozenset(self._gone)
        used = dict(_differences(before.tenants, reading.tenants, gone))
        busiest = heapq.nlargest(BUSIEST, used, key=lambda name: (used[name][COMPUTE], name))
        return Minute(
            at=began,
            seconds=max(at - began, 1e-3),
            all=MinuteStats(*map(sum, zip(*used.values(), strict=True))) if used else MinuteStats(),
            refused=_grown(before.outcomes, reading.outcomes, REFUSALS),
            failed=_grown(before.outcomes, reading.outcomes, FAILURES),
            buckets=tuple(b - a for a, b in zip(before.buckets, reading.buckets, strict=True)),
            queue_texts=reading.queue_texts,
            whole=len(busiest) == len(used),
            tenants={name: i for i, name in enumerate(busiest)},
            figures=array("f", chain.from_iterable(used[name] for name in busiest)),
        )


def total(uses: Iterable[MinuteStats]) -> MinuteStats:
    """The sum of what several tenants, or several minutes, used."""
    rows = [astuple(use) for use in uses]
    return MinuteStats(*map(sum, zip(*rows, strict=True))) if rows else MinuteStats()


def figures_of(fields: Mapping[str, float]) -> Figures:
    """The figures of a `MinuteStats`, of the fields of a `TenantUse`."""
    return tuple(fields.get(name, 0.0) for name in FIELDS)


def _differences(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float]], gone: frozenset[str]
) -> Iterator[tuple[str, Figures]]:
    """Yield the tenants that used something between two readings, with what they used."""
    for name, now in after.items():
        then = {} if name in gone else before.get(name, {})
        if now != then:
            if now.get("requests", 0) < then.get("requests", 0):
                then = {}
            yield name, tuple(now.get(field, 0.0) - then.get(field, 0.0) for field in FIELDS)


def _grown(before: Mapping[str, int], after: Mapping[str, int], kinds: Iterable[str]) -> int:
    return sum(after.get(kind, 0) - before.get(kind, 0) for kind in kinds)


def _minute_without(minute: Minute, tenant: str) -> Minute:
    if tenant not in minute.tenants:
        return minute
    left = {name: at for name, at in minute.tenants.items() if name != tenant}
    return Minute(**{**vars(minute), "tenants": left})
