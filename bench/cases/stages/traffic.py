"""Requests with deadlines and utilities that arrive at a changing rate, and what their answers earn.

OTAS, section V: each request has a task, a deadline and a utility, which it earns if its answer is right and
in time. Its rates, deadlines and utilities are kept in proportion to the capacity that is measured here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bench.cases.stages.arrivals import Seconds, per_second, piecewise
from bench.cases.stages.lab import EngineLab, at_times
from hmi.engine import Engine, TextRequest, TextResult
from hmi.errors import HmiError

INTERVAL_TEXTS: Final = 20
"""An interval of constant rate lasts as long as this many texts take at capacity, and at least
`Plan.interval_s`."""
LOW, HIGH = 200 / 580, 700 / 580
"""The rates between which the Poisson trace's are drawn, as fractions of the capacity at γ = 0. The bursty
trace has the same mean. OTAS's production trace has about .5, at which nothing is dropped here."""
PRESSURE: Final = 1.5
"""A factor of all rates. With 1, texts need no other setting than off: callers that wait measure less than
what a loaded engine answers."""
KINDS: Final = (
    (0, 0.6, 1.0),
    (0, 1.0, 0.2),
    (1, 0.6, 0.3),
    (1, 1.0, 0.01),
    (2, 0.6, 0.3),
    (2, 1.0, 0.01),
    (3, 0.6, 1.0),
    (3, 1.0, 0.2),
)
"""OTAS's Table II: the index of a task, modulo their number; the time until the deadline in intervals, which
are of one second there; the utility. The fourth task has the types of the hardest of OTAS's three."""


@dataclass(frozen=True)
class TimedAsk:
    """One request that is to be asked."""

    request: TextRequest
    """Without its deadline, which depends on when it is asked."""
    gold: str
    deadline_s: float
    """From its arrival."""


@dataclass(frozen=True)
class RequestEnd:
    """The end of one request."""

    ask: TimedAsk
    seconds: float
    """From its arrival to its answer or its error."""
    result: TextResult | None
    """The answer; None if the request failed."""

    @property
    def right(self) -> bool:
        return self.result is not None and self.result.label == self.ask.gold

    @property
    def earned(self) -> float:
        """The utility of a right answer in time, else 0."""
        return self.ask.request.utility if self.right and self.seconds <= self.ask.deadline_s else 0.0


@dataclass(frozen=True)
class RateTraffic:
    """The requests of one run after another, at rates in proportion to a capacity."""

    lab: EngineLab
    capacity: float
    """Texts a second without stages, by closed callers."""

    @property
    def interval_s(self) -> float:
        return max(self.lab.plan.interval_s, INTERVAL_TEXTS / self.capacity)

    def arrivals(self, stamps: Seconds | None, seed: int) -> Seconds:
        """The ascending seconds of the arrivals, which are Poisson's within an interval.

        stamps: of a recorded trace, of which each interval plays one second; None: the rates are drawn.
        """
        draw, intervals = np.random.default_rng(seed), self.lab.plan.intervals
        if stamps is None:
            rates = draw.uniform(LOW, HIGH, intervals)
        else:
            counts = per_second(stamps)
            at = (draw.integers(len(counts)) + np.arange(intervals)) % len(counts)
            rates = counts[at] * (LOW + HIGH) / 2 / counts.mean()
        return piecewise(PRESSURE * self.capacity * rates, self.interval_s, seed)

    def asks(self, count: int, seed: int, name: str, model: str) -> list[TimedAsk]:
        """Draw [count] requests: each of a random type, with a random text of its task's stream.

        name: part of their ids, by which draws within stages are made. model: the name of the models.
        """
        draw, home = np.random.default_rng((seed, 1)), self.lab.home
        found = []
        for i, kind in enumerate(draw.integers(len(KINDS), size=count)):
            index, deadline, utility = KINDS[kind]
            task = home.tasks[index % len(home.tasks)]
            row = task.stream[int(draw.integers(len(task.stream)))]
            to, id = home.model(task, model), f"{name}-{seed}-{i}"
            request = TextRequest(to, str(row.text), provenance=True, id=id, utility=utility)
            found.append(TimedAsk(request, str(row.label), deadline * self.interval_s))
        return found


async def offered(engine: Engine, asks: Sequence[TimedAsk], arrivals: Seconds) -> list[RequestEnd]:
    """Ask each request at its time, whether others are answered or not. Returns after the last has ended."""
    loop = asyncio.get_running_loop()

    async def one(i: int, due: float) -> RequestEnd:
        result = None
        with suppress(HmiError):  # it is dropped, or too late
            (result,) = await engine.infer([replace(asks[i].request, deadline=due + asks[i].deadline_s)])
        return RequestEnd(asks[i], loop.time() - due, result)

    return await at_times(arrivals, one)
