"""The planner as the engine uses it: its errors lose no text, and what it decides is counted.

Used on the event loop's thread, except `PlanTotals`, which any thread may read.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hmi.engine.adaptive.stage_costs import StageCosts
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Item, Piece, artefacts_of
from hmi.stages.base import OFF
from hmi.stages.planner import Adaptive, BatchCost, Candidate, Plan, Planner, RoundRobin, Waiting, work_left
from hmi.stages.planning.group import Price
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.engine")
FAILED = "the planner failed"
"""The reason of a plan that was made in turn, since the planner raised."""


@dataclass
class PlanTotals:
    """Counts of the planner's decisions since the engine was made."""

    seconds: float = 0.0
    """The time that all plans took."""
    decisions: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Batches by the kind of their plan ("": in turn), and by the settings of adaptive stages ("": off)."""
    dropped: int = 0
    """Groups that plans have left out, at each plan anew."""
    failures: int = 0
    """Errors of the planner."""


class Planning:
    """Plans batches and prices texts with a planner. If it raises, turns decide, and no stage adapts."""

    def __init__(self, planner: Planner, costs: StageCosts | None = None) -> None:
        """costs: those that the planner plans by; None: it needs none."""
        self._planner, self.stages, self._costs = planner, planner.stages, costs
        self._adaptive = [each.name for each in planner.stages if isinstance(each, Adaptive)]
        self._fixed = [each for each in planner.stages if each.name not in self._adaptive]
        self._spare = RoundRobin(self._fixed)
        self.totals = PlanTotals()

    def look_at(self, items: Sequence[Item]) -> None:
        """Find the costs of the roots of texts that are priced, or may be adapted. Does not wait."""
        if self._costs is not None:
            for item in items:
                if item.request.has_aim or item.bundle.version.tokens:
                    self._costs.want(item.bundle)

    def close(self) -> None:
        """End what is measured. Waits for the batch that runs. Called on a thread."""
        if self._costs is not None:
            self._costs.close()

    def price(self, item: Item) -> Price | None:
        """The price of the item's windows that wait. None: it is an ordinary text."""
        try:
            bundle, windows = item.bundle, [len(window) for window in item.windows[item.cut :]]
            about = bundle.key, bundle.executor.layers, windows, bundle.model, bundle.version
            whole = len(item.windows) == 1
            waiting = Waiting(*about, item.objective, item.request.utility, bundle.cascade, whole)
            return self._planner.price(waiting)
        except Exception as error:
            self._failed("the planner could not price a text", error)
            return None

    def plan(self, queue: BatchQueue, candidates: Sequence[Candidate]) -> tuple[Plan, float]:
        """Plan a batch of one of the candidates. Returns the plan, and the fraction of the layers' work that
        its stages are expected to leave.

        A group runs only if one of its tenants has received no more than those of all ordinary candidates.
        """
        now = time.monotonic()
        try:
            plan = self._planner.plan(candidates, now)
            if plan.group is not None:
                given = queue.turn_of(plan.candidate.key, plan.group)
                sooner = [each for each in candidates if not each.grouped and each.given_s < given]
                plan = self._planner.plan(sooner, now) if sooner else plan
            left = self._left(plan)
        except Exception as error:
            self._failed("the planner failed, so turns decide about a batch", error)
            plan = self._in_turn(candidates, now)
            left = 1.0
        self.totals.seconds += time.monotonic() - now
        return plan, left

    def without_adaptation(self, plan: Plan, error: Exception) -> Plan:
        """The plan of a batch that failed, with adaptive stages off; the same one if they were."""
        if not any(name in self._adaptive for name in plan.on):
            return plan
        log_failure(log, "a batch failed under adaptive stages and runs again without them", error)
        settings = {name: setting for name, setting in plan.settings.items() if name not in self._adaptive}
        return replace(plan, settings=settings, index=0)

    def decided(self, plan: Plan, pieces: Sequence[Piece]) -> None:
        """Count a plan by which a batch was cut, and note its reason for answers with provenance."""
        if not pieces:
            return
        self.totals.dropped += plan.dropped
        names = [s.name for name, s in plan.settings.items() if name in self._adaptive and s != OFF]
        self.totals.decisions[plan.kind, ", ".join(names)] += 1
        if plan.why:
            for piece in pieces:
                piece.item.partial.planner = plan.why

    def learn(self, plan: Plan, pieces: Sequence[Piece], tokens: int, cpu_s: float, wall_s: float) -> None:
        """Let the planner take note of a batch that has run."""
        try:
            modules = len(set(artefacts_of(pieces)))
            measured = BatchCost(len(pieces), tokens, cpu_s, modules, _priced(pieces), wall_s)
            self._planner.learn(plan, measured)
        except Exception as error:  # the batch has run and must not run again for this
            self._failed("the planner failed to learn from a batch", error)

    def _left(self, plan: Plan) -> float:
        if plan.group is not None:
            group = next((each for each in plan.candidate.groups if each.id == plan.group), None)
            if group is not None and plan.index < len(group.seconds) and group.seconds[0] > 0:
                return group.seconds[plan.index] / group.seconds[0]
        # Ordinary texts have no price: which of them a stage adapts depends on their models. So their batches
        # are cut as without adaptive stages.
        return work_left(plan, self._fixed)

    def _in_turn(self, candidates: Sequence[Candidate], now: float) -> Plan:
        try:
            plan = self._spare.plan(candidates, now)
        except Exception as error:
            log_failure(log, "a stage has no settings for a batch, which runs without any", error)
            plan = Plan(min(candidates))
        return Plan(plan.candidate, plan.settings, why=FAILED, kind="failed")

    def _failed(self, what: str, error: Exception) -> None:
        self.totals.failures += 1
        log_failure(log, what, error)


def _priced(pieces: Sequence[Piece]) -> Sequence[float]:
    """[settings]: the sums of the texts' seconds; () if one has no price, or not all of its windows here."""
    prices = [piece.item.price for piece in pieces if len(piece.item.windows) == 1]
    found = [price.seconds for price in prices if price is not None]
    if len(found) < len(pieces) or len(set(map(len, found))) != 1:
        return ()
    return [sum(each) for each in zip(*found, strict=True)]
