"""Writes the server's audit log from the event loop: changes durably, other lines soon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from hmi.api.access.buckets import Buckets, Rate
from hmi.api.access.limited_log import LimitedLog
from hmi.errors import HmiError, copy_of
from hmi.stores.audit.log import AuditLog

log = logging.getLogger("hmi.api")
REPEATED_S = 60.0
"""An administrator's further calls of one kind within this time are summed up in one line."""
MOST_REPEATED = 1024
"""The most kinds of calls that are being summed up."""
REFUSALS = Rate(0.2, 10.0)
"""The rate at which refusals of one address are written. Further ones are counted."""
ALL_REFUSALS = Rate(20.0, 200.0)
"""The rate at which refusals of all addresses together are written."""
Fields = dict[str, Any]


class _Waiting(NamedTuple):
    """A line that is not written yet."""

    fields: Fields
    durable: bool
    """True for the outcome of a change that has been made. Such a line is written durably, and may use the
    reserve.
    """
    done: asyncio.Future[int] | None
    """The future that gets the line's number, or None if nobody waits for it."""


class Audit:
    """The audit log of a server. Used on the event loop's thread only.

    Lines that come while others are being written are written together, with one wait for the disk.
    """

    def __init__(self, written: AuditLog) -> None:
        self.log = written
        self._waiting: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._limited = LimitedLog(log)
        self._refusals, self._all_refusals, self._left_out = Buckets(), Buckets(), 0
        self._accesses: OrderedDict[tuple[object, ...], tuple[float, int, Fields]] = OrderedDict()

    async def begin(self, fields: Fields) -> int:
        """Write that a change begins. Returns the line's number. Raises StorageFull, Unavailable: then the
        change must not be made."""
        await asyncio.to_thread(self.log.keep_reserve)
        return await self._written(fields, durable=False)

    async def end(self, fields: Fields) -> None:
        """Write the outcome of a change, and return when it is durable."""
        await self._written(fields, durable=True)

    def refused(self, fields: Fields, address: str) -> None:
        """Write that a caller was refused, unless there are too many such lines: then count it."""
        own, everybody = self._refusals, self._all_refusals
        if own.wait_s(address, REFUSALS, 1) or everybody.wait_s("", ALL_REFUSALS, 1):
            self._left_out += 1
            return
        own.take(address, REFUSALS, 1)
        everybody.take("", ALL_REFUSALS, 1)
        self.later({**fields, "left_out": self._left_out or None})
        self._left_out = 0

    def later(self, fields: Fields) -> None:
        """Write a line soon, without waiting for it."""
        self._put(_Waiting(fields, False, None))

    def access(self, fields: Fields) -> None:
        """Write that an administrator made a call that changes nothing. The first of a kind is written, the
        next ones are counted for a minute."""
        kind = tuple(fields.get(name) for name in ("key", "address", "call", "tenant"))
        found = self._accesses.get(kind)
        if found is not None:
            begun, count, first = found
            self._accesses[kind] = begun, count + 1, first
            return
        self.later(fields)
        self._accesses[kind] = time.monotonic(), 0, fields
        if len(self._accesses) > MOST_REPEATED:
            self._sum_up(self._accesses.popitem(last=False)[1])

    def sum_up(self, *, all_of_them: bool = False) -> None:
        """Write a line for each kind of call that was counted for a minute."""
        until = time.monotonic() - REPEATED_S
        while self._accesses:
            oldest = next(iter(self._accesses.values()))
            if oldest[0] > until and not all_of_them:
                return
            self._accesses.popitem(last=False)
            self._sum_up(oldest)

    async def close(self) -> None:
        """Write what waits, and close the log."""
        self.sum_up(all_of_them=True)
        if self._left_out:
            self.later({"event": "refused", "who": "nobody", "left_out": self._left_out})
        await self.settled()
        await asyncio.to_thread(self.log.close)

    async def settled(self) -> None:
        """Wait until no line waits to be written."""
        while self._writer is not None and not self._writer.done():
            await asyncio.gather(self._writer, return_exceptions=True)

    def _sum_up(self, counted: tuple[float, int, Fields]) -> None:
        _, count, first = counted
        if count:
            self.later({**first, "request": None, "repeated": count})

    async def _written(self, fields: Fields, *, durable: bool) -> int:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._put(_Waiting(fields, durable, done))
        return await done

    def _put(self, line: _Waiting) -> None:
        self._waiting.append(line)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            durable = any(line.durable for line in batch)
            try:
                last = await asyncio.to_thread(
                    self.log.append, [line.fields for line in batch], sync=durable, must=durable
                )
            except Exception as error:
                self._failed(batch, error)
                continue
            for number, line in enumerate(batch, last - len(batch) + 1):
                if line.done is not None and not line.done.done():
                    line.done.set_result(number)

    def _failed(self, batch: list[_Waiting], error: Exception) -> None:
        text = error.message if isinstance(error, HmiError) else str(error)
        self._limited.warning("audit", "%d lines of the audit log could not be written: %s", len(batch), text)
        for line in batch:
            if line.done is not None and not line.done.done():
                line.done.set_exception(copy_of(error))
