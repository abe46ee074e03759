"""Turns between tenants while a planner chooses among groups, in simulated time."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hmi.engine.adaptive.planning import Planning
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Item, work_in
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import GroupLimits
from hmi.stages.planning.pareto import ParetoPlanner
from tests.hmi.engine.test_queue_model import item

BATCH_S, S_PER_WORK, TOKENS = 0.02, 27e-6, 56
COST = Cost(batch=38 * S_PER_WORK, text=3 * S_PER_WORK, row=S_PER_WORK / 3, square=0.0, module=4 * S_PER_WORK)
"""The cost that the pace comes to: a root of three layers."""


class Stream:
    """One compute thread, and texts that come at given times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in ("schedule.queue", "texts.item", "adaptive.planning"):
            monkeypatch.setattr(f"hmi.engine.{module}.time", clock)
        self.pace, self.coming, self.sent = Pace(), list[tuple[float, int, Item]](), 0
        self.planning = Planning(ParetoPlanner(cost_of=lambda key: COST, clock=lambda: self.now))
        limits = GroupLimits(seconds=BATCH_S)
        self.queue = BatchQueue(1 << 40, self.pace, price=self.planning.price, limits=limits)
        self.answered: Counter[str] = Counter()
        self.missed: Counter[str] = Counter()
        self.waited: dict[str, list[float]] = {}

    def send(self, tenant: str, at: float, within: float | None = None, utility: float = 1.0) -> None:
        one = item(tenant, "cls", [TOKENS], None if within is None else at + within)
        one.queued, one.request = at, replace(one.request, utility=utility)
        self.sent += 1
        heapq.heappush(self.coming, (at, self.sent, one))

    def run(self, until: float) -> None:
        while self.now < until:
            while self.coming and self.coming[0][0] <= self.now:
                one = heapq.heappop(self.coming)[2]
                self.queue.put([one])
            self._leave()
            candidates = self.queue.candidates()
            if not candidates:
                self.now = self.coming[0][0] if self.coming else until
                continue
            plan, left = self.planning.plan(self.queue, candidates)
            pieces = self.queue.cut(plan.candidate, BatchLimits(BATCH_S, 1 << 40, left), plan.group)
            seconds = (work_in(pieces) + BATCH_WORK) * S_PER_WORK
            if pieces:
                self.pace.ran(plan.candidate.key, work_in(pieces), seconds)
                self.now += seconds
            for piece in pieces:
                late = piece.item.request.deadline is not None and self.now > piece.item.request.deadline
                (self.missed if late else self.answered)[piece.item.tenant] += 1
                self.waited.setdefault(piece.item.tenant, []).append(self.now - piece.item.queued)

    def _leave(self) -> None:
        """Drop the texts whose deadline has passed, as the engine does."""
        late = [
            o for o in self.queue._waiting if o.request.deadline is not None and o.request.deadline < self.now
        ]
        self.queue.drop(late)
        self.missed.update(o.tenant for o in late)


def test_ordinary_texts_have_their_turns_beside_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant with a far deadline waits, one floods with near ones, and one sends ordinary texts."""
    stream = Stream(monkeypatch)
    stream.send("patient", 0.0, within=1.0)
    for i in range(1500):
        stream.send("near", i * 1e-3, within=0.3)
        stream.send("plain", i * 1e-3)
    stream.run(1.5)
    assert stream.answered["patient"] == 1
    share = stream.answered["plain"] / (stream.answered["plain"] + stream.answered["near"])
    assert 0.4 < share < 0.6


@pytest.mark.parametrize("within", [0.08, 1.0])
def test_a_flood_with_deadlines_displaces_no_quiet_tenant(
    within: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, rng = Stream(monkeypatch), random.Random(0)
    for i in range(2000):  # more than twice what can be computed
        stream.send("loud", i * 1e-3, within=1.0)
    quiet = [i * 0.05 + rng.uniform(0, 0.02) for i in range(40)]
    for at in quiet:
        stream.send("quiet", at, within=within)
    stream.run(3.0)
    assert stream.answered["loud"] > 1000, "of 2000"
    assert stream.answered["quiet"] >= 0.97 * len(quiet)
