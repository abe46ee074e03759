"""Asks the engine in this process: as fast as it answers, or at given times; and what came back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from bench.cases.stages.arrivals import Seconds
from hmi.engine import Engine, TextRequest, TextResult


@dataclass(frozen=True)
class Answered:
    """One text's answer."""

    label: str
    seconds: float
    """From its arrival to its answer."""
    layers: int
    """The upper layers that ran."""
    result: TextResult


@dataclass(frozen=True)
class Asked:
    """The answers of one run, in the requests' order."""

    answers: list[Answered]
    seconds: float
    cpu_s: float
    """CPU seconds of this process."""

    @property
    def labels(self) -> list[str]:
        return [answer.label for answer in self.answers]


async def closed(engine: Engine, requests: Sequence[TextRequest], callers: int) -> Asked:
    """Let `callers` ask the requests in their order; each waits for its answer before it asks the next."""
    waiting, found = iter(enumerate(requests)), dict[int, Answered]()

    async def caller() -> None:
        for i, request in waiting:
            found[i] = await _asked(engine, request, asyncio.get_running_loop().time())

    return await _timed(found, [caller() for _ in range(callers)])


async def paced(engine: Engine, requests: Sequence[TextRequest], arrivals: Seconds) -> Asked:
    """Ask each request at its time, whether others are answered or not. Returns after the last answer."""
    loop, found = asyncio.get_running_loop(), dict[int, Answered]()
    begun = loop.time()

    async def one(i: int) -> None:
        due = begun + float(arrivals[i])
        await asyncio.sleep(due - loop.time())
        found[i] = await _asked(engine, requests[i], due)

    return await _timed(found, [one(i) for i in range(len(requests))])


async def _asked(engine: Engine, request: TextRequest, since: float) -> Answered:
    (result,) = await engine.infer([request])
    assert result.label is not None, "all tasks are classifications"
    assert result.provenance is not None, "it was asked for"
    seconds = asyncio.get_running_loop().time() - since
    return Answered(result.label, seconds, result.provenance.layers, result)


async def _timed(found: dict[int, Answered], work: Sequence[Coroutine[Any, Any, None]]) -> Asked:
    begun, cpu = time.monotonic(), time.process_time()
    async with asyncio.TaskGroup() as tasks:
        for one in work:
            tasks.create_task(one)
    seconds, cpu = time.monotonic() - begun, time.process_time() - cpu
    return Asked([found[i] for i in sorted(found)], seconds, cpu)
