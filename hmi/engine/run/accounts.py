"""Accounting of the engine's work: usage by tenant, time by stage, look-ups by domain, each counted once."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence

from hmi.engine.run.running import Ran
from hmi.engine.texts.item import Item
from hmi.engine.texts.request import TextRequest
from hmi.engine.writing.request import WriteRequest
from hmi.metrics import Metrics


class Accounts:
    """Writes what the engine has done to the metrics. Used on the event loop's thread only."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def answered(self, requests: Sequence[TextRequest | WriteRequest]) -> None:
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
        """Count a batch that ran, even if some of its texts failed, before its answers are handed on.

        Tenants share the time of its layers by the work of the layers that ran for their texts; if none did,
        by tokens.
        """
        pieces, tokens, times = ran.batch.pieces, ran.batch.offsets[-1], ran.times
        self._metrics.stage("retrieve", times.retrieve_s)
        self._metrics.stage("compute", times.compute_s)
        tenants = len({piece.item.tenant for piece in pieces})
        self._metrics.batch(len(pieces), tokens, tenants, ran.wall_s)
        settings = Counter(on for concerned in ran.stages for on in concerned.items())
        for (name, setting), count in settings.items():
            self._metrics.execution_stage(name, setting, count)
        domains: defaultdict[str, Counter[str]] = defaultdict(Counter)
        tokens_of: Counter[str] = Counter()
        work_of: defaultdict[str, float] = defaultdict(float)
        works = [done for done, _ in ran.work]
        if not any(works):
            works = [whole for _, whole in ran.work]
        for piece, hits, work in zip(pieces, ran.batch.hits, works, strict=True):
            domains[piece.bundle.reader.version.ref].update(hits)
            # A text that was counted early runs again for an audit only.
            tokens_of[piece.item.tenant] += 0 if piece.item.counted else len(piece.window)
            work_of[piece.item.tenant] += work
            if piece.index == 0:
                self._metrics.stage("queue", times.begun - piece.item.queued)
        for domain, hits in domains.items():
            self._metrics.plot_hits(domain, hits)
        answered = _newly_answered(ran)
        inputs = Counter(item.tenant for item in answered)
        deep = Counter(item.tenant for item in answered if not item.bundle.root.info.split)
        each_ms = times.compute_s * 1e3 / sum(works)
        for tenant, mine in tokens_of.items():
            spent_ms = work_of[tenant] * each_ms
            counts = {"inputs": inputs[tenant], "deep": deep[tenant], "tokens": mine}
            self._metrics.usage.add(tenant, **counts, compute_ms=spent_ms)
        left = [item for item in answered if item.partial.confidence is not None]
        if left:
            self._left_early(left)
            pairs = zip(pieces, ran.work, strict=True)
            skipped = {id(piece.item): whole - done for piece, (done, whole) in pairs}
            for item in left:
                self._metrics.usage.add(item.tenant, saved_ms=skipped[id(item)] * each_ms)

    def answered_early(self, items: Sequence[Item]) -> None:
        """Count texts whose answers were handed on although their batch failed later."""
        for item in items:
            item.counted = True
            deep = int(not item.bundle.root.info.split)
            self._metrics.usage.add(item.tenant, inputs=1, deep=deep, tokens=item.tokens)
        self._left_early(items)

    def _left_early(self, items: Sequence[Item]) -> None:
        """Count texts that left early."""
        for site, count in Counter(item.partial.layers for item in items).items():
            self._metrics.exits(site, count)
        for tenant, count in Counter(item.tenant for item in items).items():
            self._metrics.usage.add(tenant, early=count)


def _newly_answered(ran: Ran) -> list[Item]:
    """The texts that this batch has answered. Windows that ran again may complete a text twice."""
    early, found = {id(item) for item in ran.early}, []
    for item, _ in ran.answers:
        if not item.counted and (id(item) in early or item.sink.wanted):
            item.counted = True
            found.append(item)
    return found
