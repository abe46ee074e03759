"""Requests with deadlines and utilities that arrive at a changing rate, and what their answers earn.

OTAS, section V: each request has a task, a deadline and a utility, which it earns if its answer is right and
in time. Its rates, deadlines and utilities are kept in proportion to the capacity that is measured here.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bench.cases.stages.arrivals import Seconds, per_interval, piecewise
from bench.cases.stages.home import LARGE, Home
from hmi.engine import Engine, TextRequest, TextResult
from hmi.errors import HmiError

TRACES: Final = ("poisson", "bursty")
INTERVAL_TEXTS = 20
"""An interval of constant rate lasts as long as this many texts take at capacity, and at least
`Plan.interval_s`."""
LOW, HIGH = 200 / 580, 700 / 580
"""The rates between which the Poisson trace's are drawn, as fractions of the capacity at γ = 0."""
BURSTY_LOAD: Final = (LOW + HIGH) / 2
"""The mean rate of the bursty trace, as a fraction of that capacity: the Poisson trace's. OTAS's production
trace has about .5, at which nothing is dropped here."""


@dataclass(frozen=True)
class Kind:
    """One type of request, a row of OTAS's Table II."""

    task: int
    """The index of the task among the plan's, modulo their number."""
    deadline: float
    """The time until the deadline, in intervals. OTAS gives seconds; its trace's intervals are of one."""
    utility: float


KINDS: Final = (
    Kind(0, 0.6, 1.0),
    Kind(0, 1.0, 0.2),
    Kind(1, 0.6, 0.3),
    Kind(1, 1.0, 0.01),
    Kind(2, 0.6, 0.3),
    Kind(2, 1.0, 0.01),
    Kind(3, 0.6, 1.0),
    Kind(3, 1.0, 0.2),
)
"""Table II has three tasks. The fourth has the types of its hardest, as the first has."""


@dataclass(frozen=True)
class Ask:
    """One request that is to be asked."""

    request: TextRequest
    """Without its deadline, which depends on when it is asked."""
    gold: str
    deadline_s: float
    """From its arrival."""
    utility: float


@dataclass(frozen=True)
class Outcome:
    """The end of one request."""

    ask: Ask
    seconds: float
    """From its arrival to its answer or its error."""
    ended_s: float
    """From the begin of the run to the same."""
    result: TextResult | None
    """The answer; None if the request failed."""
    error: str = ""
    """The kind of the error."""

    @property
    def right(self) -> bool:
        return self.result is not None and self.result.label == self.ask.gold

    @property
    def earned(self) -> float:
        """The utility of a right answer in time, else 0."""
        return self.ask.utility if self.right and self.seconds <= self.ask.deadline_s else 0.0


@dataclass(frozen=True)
class Offered:
    """The outcomes of one run over a trace, in the order of arrival."""

    outcomes: list[Outcome]
    cpu_s: float
    """CPU seconds of this process."""

    @property
    def utility(self) -> float:
        return sum(outcome.earned for outcome in self.outcomes)


@dataclass(frozen=True)
class Traffic:
    """The requests of one run after another, at rates in proportion to a capacity."""

    home: Home
    capacity: float
    """Texts a second without stages, by closed callers."""
    stamps: Seconds | None
    """The times of a recorded trace; None: there is no bursty trace."""
    pressure: float
    """A factor of all rates."""
    least_s: float
    """The least seconds of an interval."""

    @property
    def interval_s(self) -> float:
        return max(self.least_s, INTERVAL_TEXTS / self.capacity)

    @property
    def traces(self) -> tuple[str, ...]:
        return TRACES if self.stamps is not None else TRACES[:1]

    def rates(self, trace: str, intervals: int, seed: int) -> Seconds:
        """[intervals]: texts a second. The bursty trace plays a second of the recorded one in an interval."""
        draw = np.random.default_rng(seed)
        if trace == "poisson" or self.stamps is None:
            rates: Seconds = self.pressure * self.capacity * draw.uniform(LOW, HIGH, intervals)
            return rates
        counts = per_interval(self.stamps, 1.0)
        at = (draw.integers(len(counts)) + np.arange(intervals)) % len(counts)
        played: Seconds = counts[at] * (self.pressure * self.capacity * BURSTY_LOAD / counts.mean())
        return played

    def arrivals(self, trace: str, intervals: int, seed: int) -> Seconds:
        """The ascending seconds of the arrivals, which are Poisson's within an interval."""
        return piecewise(self.rates(trace, intervals, seed), self.interval_s, seed)

    def asks(self, count: int, seed: int, name: str, model: str = LARGE) -> list[Ask]:
        """Draw [count] requests: each of a random type, with a random text of its task's stream.

        name: part of their ids, by which draws within stages are made. model: the name of the models.
        """
        draw, tasks = np.random.default_rng((seed, 1)), self.home.tasks
        found = []
        for i, kind in enumerate(draw.integers(len(KINDS), size=count)):
            one = KINDS[kind]
            task = tasks[one.task % len(tasks)]
            row = task.stream[int(draw.integers(len(task.stream)))]
            request = TextRequest(
                self.home.model(task, model),
                str(row.text),
                provenance=True,
                id=f"{name}-{seed}-{i}",
                utility=one.utility,
            )
            found.append(Ask(request, str(row.label), one.deadline * self.interval_s, one.utility))
        return found


async def offered(engine: Engine, asks: Sequence[Ask], arrivals: Seconds) -> Offered:
    """Ask each request at its time, whether others are answered or not. Returns after the last has ended."""
    loop, found = asyncio.get_running_loop(), dict[int, Outcome]()
    begun, cpu = loop.time(), time.process_time()

    async def one(i: int) -> None:
        due = begun + float(arrivals[i])
        await asyncio.sleep(due - loop.time())
        found[i] = await _ended(engine, asks[i], begun, due)

    async with asyncio.TaskGroup() as tasks:
        for i in range(len(asks)):
            tasks.create_task(one(i))
    return Offered([found[i] for i in range(len(asks))], time.process_time() - cpu)


async def _ended(engine: Engine, ask: Ask, begun: float, due: float) -> Outcome:
    request, result, error = replace(ask.request, deadline=due + ask.deadline_s), None, ""
    try:
        (result,) = await engine.infer([request])
    except HmiError as caught:
        error = type(caught).__name__
    now = asyncio.get_running_loop().time()
    return Outcome(ask, now - due, now - begun, result, error)
