"""The sizes of the queue's batches in simulated time, for callers that each wait for one text at a time."""

from __future__ import annotations

import heapq
import statistics
from types import SimpleNamespace

import numpy as np
import pytest

from bench.cases.serve.traffic import Shape, tenants_in_turn
from hmi.engine.schedule.limits import BatchLimits
from hmi.engine.schedule.pace import BATCH_WORK, Pace
from hmi.engine.schedule.queue import FEW_TENANTS, BatchQueue
from hmi.engine.texts.item import Item, Piece, work_in
from hmi.stages.planner import Candidate
from tests.hmi.engine.test_queue_model import item

A_BATCH_S = 0.02
S_PER_WORK = 27e-6
"""Seconds per unit of work, as in bf16 on a core with AVX-512."""
TOKENS = 56
CALLERS = 64
SECONDS = 4.0
"""Simulated seconds."""


class Simulation:
    """One compute thread, callers without pauses, and a quiet tenant with texts of its own now and then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in ("schedule.queue", "texts.item"):
            monkeypatch.setattr(f"hmi.engine.{module}.time", clock)
        self.pace = Pace()
        self.queue = BatchQueue(1 << 40, self.pace)
        self.sizes: list[int] = []
        self.quiet_s: list[float] = []

    def run(self, tenants: list[str], quiet_a_second: float = 0.0) -> None:
        """Send a text of the next of `tenants` whenever a caller has its answer."""
        turn, draw, ends = iter(tenants), np.random.default_rng(0), SECONDS
        arrivals = [0.0] * (CALLERS if tenants else 0)
        at = draw.uniform(0.0, ends, int(quiet_a_second * ends))
        quiet = sorted(at.tolist())
        heapq.heapify(arrivals)
        while self.now < ends:
            while arrivals and arrivals[0] <= self.now:
                heapq.heappop(arrivals)
                self._send(next(turn))
            while quiet and quiet[0] <= self.now:
                quiet.pop(0)
                self._send("quiet")
            if not self.queue.tenants:
                self.now = quiet[0] if quiet else ends
                continue
            for done in self._batch(quiet):
                if done.tenant != "quiet":
                    heapq.heappush(arrivals, self.now)

    def _send(self, tenant: str) -> None:
        sent = item(tenant, "cls", [TOKENS])
        sent.queued = self.now
        self.queue.put([sent])

    def _batch(self, quiet: list[float]) -> list[Item]:
        """Run a batch. Quiet texts that come meanwhile have express batches, if it has few tenants."""
        pieces, seconds = self._cut(min(self.queue.candidates()), express=False)
        self.sizes.append(len(pieces))
        end = free = self.now + seconds
        if len({piece.item.tenant for piece in pieces}) <= FEW_TENANTS:
            free = self.now
        while quiet and quiet[0] < end:
            self.now = quiet.pop(0)
            self._send("quiet")
            candidates = self.queue.express_candidates()
            if candidates and max(self.now, free) < end:
                self.now = max(self.now, free)
                beside, seconds = self._cut(min(candidates), express=True)
                free = self.now + seconds
                self._answered(beside, free)
        self.now = end
        self._answered(pieces, end)
        return [piece.item for piece in pieces]

    def _cut(self, first: Candidate, *, express: bool) -> tuple[list[Piece], float]:
        pieces = self.queue.cut(first, BatchLimits(A_BATCH_S, 1 << 40, express=express))
        work = work_in(pieces)
        seconds = (work + BATCH_WORK) * S_PER_WORK
        self.pace.ran(first.key, work, seconds)
        return pieces, seconds

    def _answered(self, pieces: list[Piece], at: float) -> None:
        self.quiet_s += [at - p.item.queued for p in pieces if p.item.tenant == "quiet"]


@pytest.mark.parametrize("shape", ["uniform", "zipf"])
@pytest.mark.parametrize("tenants", [16, 1000])
def test_batches_of_many_tenants_are_not_much_smaller_than_those_of_one(
    shape: Shape, tenants: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {}
    for count in (1, tenants):
        simulation = Simulation(monkeypatch)
        simulation.run([f"t{i}" for i in tenants_in_turn(shape, count, 10_000, seed=0)])
        sizes[count] = statistics.mean(simulation.sizes)
    assert sizes[tenants] > 0.5 * sizes[1]


def test_a_quiet_tenant_waits_for_no_batch_of_one_loud_tenant(monkeypatch: pytest.MonkeyPatch) -> None:
    waits = {}
    for loud in ("loud", "quiet"):
        simulation = Simulation(monkeypatch)
        simulation.run([loud] * 10_000 if loud == "loud" else [], quiet_a_second=40)
        assert len(simulation.quiet_s) > 100
        waits[loud] = float(np.quantile(simulation.quiet_s, 0.95))
    assert waits["loud"] < 1.1 * waits["quiet"]
