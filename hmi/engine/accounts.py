"""Accounting of the engine's work: usage by tenant, time by stage, look-ups by domain, each counted once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from hmi.engine.item import Item
from hmi.engine.request import TextRequest
from hmi.engine.running import Ran
from hmi.metrics import Metrics


class Accounts:
    """Writes what the engine has done to the metrics. Used on the event loop's thread only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, requests: Sequence[TextRequest]) -> None:
        """Count a call that was answered: one request for each ask of each tenant."""
        asks = {(request.ask, request.model.tenant) for request in requests}
        for tenant, count in Counter(tenant for _, tenant in asks).items():
            self._metrics.usage.add(tenant, requests=count)

    def missed(self) -> None:
        """Count a call that was not answered before its deadline."""
        self._metrics.deadline_missed()

    def cascaded(self, tenant: str, small: bool) -> None:
        """Count a text that came to a cascade in use. small: whether the small level answered it."""
        self._metrics.usage.add(tenant, cascaded=1, small=int(small))

    def ran(self, ran: Ran) -> None:
        """Count a batch that ran, even if some of its texts failed, before its answers are handed on."""
        pieces, tokens, times = ran.batch.pieces, ran.batch.offsets[-1], ran.times
        self._metrics.stage("retrieve", times.retrieve_s)
        self._metrics.stage("compute", times.compute_s)
        tenants = len({piece.item.tenant for piece in pieces})
        self._metrics.batch(len(pieces), tokens, tenants, times.retrieve_s + times.compute_s)
        for name, setting in ran.stages.items():
            self._metrics.execution_stage(name, setting, len(pieces))
        domains: defaultdict[str, Counter[str]] = defaultdict(Counter)
        tokens_of: Counter[str] = Counter()
        for piece, hits in zip(pieces, ran.batch.hits, strict=True):
            domains[piece.bundle.version.domain].update(hits)
            tokens_of[piece.item.tenant] += len(piece.window)
            if piece.index == 0:
                self._metrics.stage("queue", times.begun - piece.item.queued)
        for domain, hits in domains.items():
            self._metrics.plot_hits(domain, hits)
        answered = _newly_answered(ran)
        inputs = Counter(item.tenant for item in answered)
        for tenant, mine in tokens_of.items():
            spent_ms = mine * times.compute_s * 1e3 / tokens
            self._metrics.usage.add(tenant, inputs=inputs[tenant], tokens=mine, compute_ms=spent_ms)
        left = [item for item in answered if item.partial.confidence is not None]
        if left:
            self._left_early(left, ran)

    def _left_early(self, items: Sequence[Item], ran: Ran) -> None:
        """Count texts that left early, and the time of the layers that they did not run.

        That time is estimated by the time that the batch took for each token and layer.
        """
        for site, count in Counter(item.partial.layers for item in items).items():
            self._metrics.exits(site, count)
        layers, skipped = len(items[0].bundle.root.upper), Counter[str]()
        for item in items:
            skipped[item.tenant] += item.tokens * (layers - item.partial.layers)
        run = layers * ran.batch.offsets[-1] - skipped.total()
        each_ms = ran.times.compute_s * 1e3 / max(run, 1)
        early = Counter(item.tenant for item in items)
        for tenant, count in early.items():
            self._metrics.usage.add(tenant, early=count, saved_ms=skipped[tenant] * each_ms)


def _newly_answered(ran: Ran) -> list[Item]:
    """The texts that this batch has answered. Windows that ran again may complete a text twice."""
    early, found = {id(item) for item in ran.early}, []
    for item, _ in ran.answers:
        if not item.counted and (id(item) in early or item.sink.wanted):
            item.counted = True
            found.append(item)
    return found
