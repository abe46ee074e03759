"""The planners that the sections `utility` and `planner` compare with the server's own."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace

from bench.cases.stages.otas import INITIAL_S, otas, profiled
from hmi.execution.batch import BatchKey
from hmi.stages import Candidate, Measured, Plan, Planner, Stage
from hmi.stages.planner import Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import Price
from hmi.stages.planning.labels import Job, Option
from hmi.stages.planning.pareto import ParetoPlanner, _Ready

CostOf = Callable[[BatchKey], Cost | None]
RATE_S = 1.0
"""The time over which the arriving rate is counted."""


class Fixed(ParetoPlanner):
    """Gives every group one setting. Its groups, its queue and what it drops are the server's."""

    def __init__(self, name: str, stages: Sequence[Stage], cost_of: CostOf) -> None:
        """name: of the setting, "off" for none."""
        super().__init__(stages, cost_of)
        self._name = name

    def price(self, text: Waiting) -> Price:
        price = super().price(text)
        steps = self.ladder(text.key, text.layers).steps
        values = (v if s.name == self._name else -math.inf for v, s in zip(price.values, steps, strict=True))
        return replace(price, values=tuple(values))


class Otas(ParetoPlanner):
    """OTAS's Algorithms 3 and 2, with the corrected backtracking, on the server's groups and costs."""

    def __init__(self, stages: Sequence[Stage], cost_of: CostOf) -> None:
        super().__init__(stages, cost_of)
        self._arrived: deque[float] = deque()
        self._begun: float | None = None

    def price(self, text: Waiting) -> Price:
        self._arrived.append(self._clock())
        return super().price(text)

    def _fitting(self, ready: Sequence[_Ready], starts: Sequence[float]) -> Plan | None:
        """Return None: the paper has no other plan for queues that fit."""
        return None

    def _loaded(
        self, ready: Sequence[_Ready], coming: Sequence[_Ready], starts: Sequence[float]
    ) -> Plan | None:
        now = starts[0]
        _, _, first, key = ready[0]
        steps = sorted(range(len(key.factors)), key=lambda step: -first.seconds[step])  # the fastest last
        jobs, utilities = [], []
        for _, _, group, of in ready:
            takes = of.all_seconds(group)
            options = [Option(takes[step], group.values[step], of.margin * takes[step]) for step in steps]
            jobs.append(Job(group.deadline, options))
            utilities.append(sum(member.utility for member in group) / len(group))
        chosen = otas(
            now, jobs, utilities, self._by_rate(ready, steps, now), initial=self._initial(now), corrected=True
        )
        for place, setting in enumerate(chosen):
            if setting is not None:
                _, _, group, of = ready[place]
                return self._run(group, of, steps[setting], "loaded", "OTAS")
        return None

    def _initial(self, now: float) -> bool:
        self._begun = now if self._begun is None else self._begun
        return now - self._begun < INITIAL_S

    def _by_rate(self, ready: Sequence[_Ready], steps: Sequence[int], now: float) -> int:
        """Algorithm 3's f(q), by the throughput that the groups at hand would have under each setting."""
        while self._arrived and self._arrived[0] < now - RATE_S:
            self._arrived.popleft()
        texts = sum(len(group) for _, _, group, _ in ready)
        seconds = [sum(of.seconds(group, step) for _, _, group, of in ready) for step in steps]
        return profiled([texts / each for each in seconds])(len(self._arrived) / RATE_S)


class Timed:
    """A planner whose own processor time is counted."""

    def __init__(self, planner: Planner) -> None:
        self.stages, self._planner = planner.stages, planner
        self.spent_s = 0.0
        """CPU seconds of prices, plans and lessons."""
        self.batches_s = 0.0
        """CPU seconds of the batches that it planned."""
        self.plans = 0

    def begin(self) -> None:
        """Count from now on."""
        self.spent_s, self.batches_s, self.plans = 0.0, 0.0, 0

    def price(self, text: Waiting) -> Price | None:
        begun = time.thread_time()
        try:
            return self._planner.price(text)
        finally:
            self.spent_s += time.thread_time() - begun

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        begun, self.plans = time.thread_time(), self.plans + 1
        try:
            return self._planner.plan(candidates, now)
        finally:
            self.spent_s += time.thread_time() - begun

    def learn(self, plan: Plan, measured: Measured) -> None:
        begun = time.thread_time()
        self._planner.learn(plan, measured)
        self.spent_s += time.thread_time() - begun
        self.batches_s += measured.cpu_s
