"""Accounting of the engine's work: usage by tenant, time by stage, look-ups by domain, each counted once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hmi.engine.item import Item
from hmi.engine.request import InferRequest, InferResult
from hmi.engine.running import Ran
from hmi.metrics import Metrics
from hmi.stages import Plan


class Accounts:
    """Writes what the engine has done to the metrics. Used on the event loop's thread only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, requests: Sequence[InferRequest]) -> None:
        """Count a call that was answered: one request for each ask of each tenant."""
        asks = {(request.ask, request.model.tenant) for request in requests}
        for tenant, count in Counter(tenant for _, tenant in asks).items():
            self._metrics.usage.add(tenant, requests=count)

    def waiting(self, tokens: int) -> None:
        """Set the gauge of tokens that wait in the queue."""
        self._metrics.queue_tokens(tokens)

    def ran(self, ran: Ran, plan: Plan) -> None:
        """Count a batch that ran, even if some of its texts failed, and add its times to its items."""
        pieces, tokens = ran.batch.pieces, ran.batch.offsets[-1]
        self._metrics.stage("retrieve", ran.retrieve_s)
        self._metrics.stage("compute", ran.compute_s)
        self._metrics.batch(len(pieces), tokens)
        for name, setting in plan.on.items():
            self._metrics.execution_stage(name, setting.name, len(pieces))
        for piece, hits in zip(pieces, ran.batch.hits, strict=True):
            self._metrics.plot_hits(piece.bundle.version.domain, hits)
            mine = len(piece.window)
            self._metrics.usage.add(
                piece.item.tenant, tokens=mine, compute_ms=mine * ran.compute_s * 1e3 / tokens
            )
        for item in {id(piece.item): piece.item for piece in pieces}.values():
            if "queue_ms" not in item.timing:
                item.timing["queue_ms"] = ran.begun - item.queued
                self._metrics.stage("queue", ran.begun - item.queued)
            item.timing["retrieve_ms"] += ran.retrieve_s
            item.timing["compute_ms"] += ran.compute_s

    def timed(self, item: Item, answer: InferResult) -> InferResult:
        """Count an answer, and return it with its timing in milliseconds."""
        self._metrics.usage.add(item.tenant, inputs=1)
        return replace(
            answer, timing={name: round(seconds * 1e3, 3) for name, seconds in item.timing.items()}
        )
