"""Accounting of the engine's work: usage by tenant, time by stage, look-ups by domain, each counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hmi.engine.item import Item
from hmi.engine.request import TextRequest, TextResult
from hmi.engine.running import Ran
from hmi.metrics import Metrics
from hmi.stages import Plan


class Accounts:
    """Writes what the engine has done to the metrics. Used on the event loop's thread only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, requests: Sequence[TextRequest]) -> None:
        """Count a call that was answered: one request for each ask of each tenant."""
        asks = {(request.ask, request.model.tenant) for request in requests}
        for tenant, count in Counter(tenant for _, tenant in asks).items():
            self._metrics.usage.add(tenant, requests=count)

    def ran(self, ran: Ran, plan: Plan) -> None:
        """Count a batch that ran, even if some of its texts failed."""
        pieces, tokens, times = ran.batch.pieces, ran.batch.offsets[-1], ran.times
        self._metrics.stage("retrieve", times.retrieve_s)
        self._metrics.stage("compute", times.compute_s)
        tenants = len({piece.item.tenant for piece in pieces})
        self._metrics.batch(len(pieces), tokens, tenants, times.retrieve_s + times.compute_s)
        for name, setting in plan.on.items():
            self._metrics.execution_stage(name, setting.name, len(pieces))
        for piece, hits in zip(pieces, ran.batch.hits, strict=True):
            self._metrics.plot_hits(piece.bundle.version.domain, hits)
            if piece.index == 0:
                self._metrics.stage("queue", times.begun - piece.item.queued)
            mine = len(piece.window)
            self._metrics.usage.add(
                piece.item.tenant, tokens=mine, compute_ms=mine * times.compute_s * 1e3 / tokens
            )

    def timed(self, item: Item, answer: TextResult) -> TextResult:
        """Count an answer, and return it with its timing."""
        self._metrics.usage.add(item.tenant, inputs=1)
        return replace(answer, timing=item.timing)
