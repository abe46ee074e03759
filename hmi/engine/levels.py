"""Cascades between two roots: a small model answers first, and a large one the texts that need it.

A call names the large model. The small level is asked for the texts that obey the cascade's dispatcher, then
the large level for those that go on; the call's other texts run beside the first phase. While the gate is
closed, the large level answers every text, and the small one runs for audits alone. Used on the event loop's
thread only, which owns all state. docs/design/0012-exits-and-cascades.md has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from hmi.core import ModelId, Offer
from hmi.engine.admission import Admission
from hmi.engine.bundles import Bundle
from hmi.engine.request import Level, TextRequest, TextResult
from hmi.errors import Damaged, NotFound, QuotaExceeded, Unavailable
from hmi.model.batching import Encoded
from hmi.model.calibration import Floats
from hmi.stages.cascade.dispatch import Dispatcher, goes_on, share_large
from hmi.stages.cascade.ensemble import calibrated, combined
from hmi.stages.cascade.gate import Ticket
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.watched import Watched
from hmi.stages.draw import draw

log = logging.getLogger("hmi.engine")
MAX_WATCHED = 1 << 14
"""Cascades whose evidence is kept, about 2 KB each. The one that was used longest ago begins anew."""
REST_S = 10.0
"""Seconds for which a small level that is stale or cannot be loaded is not asked again."""
Admitted = tuple[Bundle, list[Encoded]]
Ask = Callable[[Sequence[TextRequest], Sequence[Admitted]], Awaitable[list[TextResult]]]
"""Runs texts that were admitted, and returns their answers in their order."""
Key = tuple[ModelId, str, str]
"""The large model, and the artefacts of both levels. Two tenants may have equal artefacts."""


@dataclass
class WatchedLevels(Watched):
    """The evidence and the counts of one cascade between two roots."""

    rests_until: float = 0.0
    """The `time.monotonic()` until which the small level is not asked."""


@dataclass
class Passage:
    """One text on its way through a cascade."""

    index: int
    request: TextRequest
    """As the caller sent it, with an id."""
    bundle: Bundle
    """The large level's."""
    watched: WatchedLevels
    offer: Offer
    ticket: Ticket
    settled: bool = False
    first: TextResult | None = None
    """The small level's answer."""
    chances: Floats | None = None
    """The small level's calibrated probabilities, by the large level's labels."""
    on: bool = True
    """Whether the dispatcher sends it on."""

    @property
    def needs_small(self) -> bool:
        return self.ticket.in_force or self.ticket.audited

    @property
    def labels(self) -> tuple[str, ...]:
        return self.bundle.version.labels

    @property
    def small_request(self) -> TextRequest:
        """The request to the small level, which answers in full: as it was profiled."""
        assert self.watched.cascade.small is not None
        small = ModelId.parse(self.watched.cascade.small)
        return replace(self.request, model=small, scores=True, calibrated=False, early=False)

    @property
    def large_request(self) -> TextRequest:
        """The request to the large level, which answers in full: exits of its own would disagree further.

        Texts that go on would be pruned here, by `offer.pruning`.
        """
        scores = self.request.scores or self.needs_small
        return replace(self.request, scores=scores, calibrated=False, early=False)

    def take(self, first: TextResult) -> None:
        """Take the small level's answer, and draw whether the text goes on."""
        self.first = first
        self.chances = self._chances(first, self.watched.cascade.temperature)
        dispatcher = Dispatcher(self.offer.cut_off, self.offer.slope)
        self.on = goes_on(self.request.id, float(share_large(self.chances.max(), dispatcher)))

    def settle(self, disagrees: bool | None = None) -> None:
        """End the text's place in the evidence, once. disagrees: of an audit; None: it was not compared."""
        if self.settled:
            return
        self.settled = True
        if disagrees is None or not self.ticket.audited:
            self.watched.trial.abandon(self.ticket)
        elif self.watched.audit(self.ticket, disagrees):
            log.info("a cascade's audits rang the alarm: its evidence begins anew")

    def answer(self, last: TextResult | None) -> TextResult:
        """The text's answer, from the small level's and the large level's. None: it did not run."""
        if self.first is None or self.chances is None:
            assert last is not None
            self.settle()
            return self._given(last, None, "large")
        if last is None:
            self.settle()
            self.watched.returned += 1
            return self._given(self.first, self.chances, "small")
        chances = self._chances(last, self.watched.cascade.large_temperature)
        both = combined(self.chances, chances, self.offer.weight)
        mixed = self.on and self.offer.weight < 1.0
        said = self.labels[int(both.argmax())] if mixed else last.label if self.on else self.first.label
        self.settle(said != last.label)
        if not self.ticket.in_force:
            return self._given(last, chances, "large")
        self.watched.gone_on += self.on
        last = replace(last, timing=_sum(self.first.timing, last.timing))
        if not mixed:
            return self._given(last, chances, "large")
        one = replace(last, label=said, score=float(both.max()), scores=self._named(both))
        return self._given(one, None, "large")

    def _given(self, result: TextResult, chances: Floats | None, level: Level) -> TextResult:
        """A level's answer as the caller gets it: the large model's, in the form that was asked for."""
        if self.request.calibrated and chances is not None:
            result = replace(result, score=float(chances.max()), scores=self._named(chances))
        made_by = result.provenance
        if made_by is not None:
            known = self.chances if self.ticket.in_force else None
            sure = None if known is None else float(known.max())
            made_by = replace(made_by, level=level, confidence=sure)
        scores = None
        if self.request.scores and result.scores is not None:
            scores = {label: result.scores[label] for label in self.labels}
        return replace(
            result,
            scores=scores,
            model=self.request.model,
            version=self.bundle.version.version,
            provenance=made_by,
        )

    def _chances(self, result: TextResult, temperature: float) -> Floats:
        assert result.scores is not None, "scores were asked for"
        return calibrated([result.scores[label] for label in self.labels], temperature)

    def _named(self, chances: Floats) -> dict[str, float]:
        return dict(zip(self.labels, chances.tolist(), strict=True))


class Levels:
    """Answers the texts of models that have a cascade between two roots."""

    def __init__(
        self,
        admission: Admission,
        ask: Ask,
        counted: Callable[[str, bool], None] = lambda tenant, small: None,
    ) -> None:
        """counted: receives the tenant of each text that came to a cascade in use, and whether the small
        level answered it."""
        self._admission, self._ask, self._counted = admission, ask, counted
        self._watched: OrderedDict[Key, WatchedLevels] = OrderedDict()
        """The one used last is the last."""

    def report(self, model: ModelId, artefact: str, small_artefact: str) -> CascadeReport | None:
        """What a cascade did; None if none of its texts came since the server started."""
        found = self._watched.get((model, artefact, small_artefact))
        return None if found is None else found.report

    async def answer(self, requests: Sequence[TextRequest], admitted: Sequence[Admitted]) -> list[TextResult]:
        """Answer a call's texts, in their order. Raises as `Engine.infer`."""
        found = [self._passage(i, r, b) for i, (r, (b, _)) in enumerate(zip(requests, admitted, strict=True))]
        passages = {p.index: p for p in found if p is not None}
        sent = [p.large_request if (p := passages.get(i)) else r for i, r in enumerate(requests)]
        small = [p for p in passages.values() if p.needs_small]
        waiting = {p.index for p in small if p.ticket.in_force}

        async def large(indexes: Sequence[int]) -> dict[int, TextResult]:
            if not indexes:
                return {}
            results = await self._ask([sent[i] for i in indexes], [admitted[i] for i in indexes])
            return dict(zip(indexes, results, strict=True))

        async def in_turn() -> dict[int, TextResult]:
            await self._first(small)
            # Returned texts that are audited run on the large level, too.
            later = [p.index for p in small if p.ticket.in_force and (p.on or p.ticket.audited)]
            return await large(later)

        at_once = [i for i in range(len(requests)) if i not in waiting]
        try:
            results = await _both(large(at_once), in_turn()) if small else await large(at_once)
            for i in waiting:
                self._counted(requests[i].model.tenant, i not in results)
            return [
                passages[i].answer(results.get(i)) if i in passages else results[i]
                for i in range(len(requests))
            ]
        finally:
            for passage in passages.values():
                passage.settle()  # those that failed

    async def _first(self, passages: Sequence[Passage]) -> None:
        """Let the small level answer. Texts that it cannot answer are left to the large one."""
        requests = [p.small_request for p in passages]
        try:
            admitted = await self._admission.admit(requests)
            sound = [i for i, (p, (b, _)) in enumerate(zip(passages, admitted, strict=True)) if _holds(p, b)]
            results = await self._ask([requests[i] for i in sound], [admitted[i] for i in sound])
        except (NotFound, Damaged):
            sound, results = [], []
        except (QuotaExceeded, Unavailable):
            if any(p.ticket.in_force for p in passages):
                raise
            sound, results = [], []  # audits alone must not fail a call
        for i, result in zip(sound, results, strict=True):
            passages[i].take(result)
        for passage in passages:
            if passage.first is None:
                passage.watched.rests_until = time.monotonic() + REST_S
                passage.settle()

    def _passage(self, index: int, request: TextRequest, bundle: Bundle) -> Passage | None:
        """Begin a text's way through its model's cascade. None: the large level answers as if there were
        none."""
        cascade, version = bundle.cascade, bundle.version
        if cascade is None or cascade.small is None or bundle.objective.agreement is None:
            return None
        if request.exact or not request.early or cascade.version != version.version:
            return None
        watched = self._of((request.model, version.artefact, cascade.small_artefact or ""), bundle)
        if watched.offer is None or watched.rests_until > time.monotonic():
            return None
        request = request if request.id else replace(request, id=uuid.uuid4().hex)
        audited = draw("audit", request.id) < watched.trial.share
        return Passage(index, request, bundle, watched, watched.offer, watched.trial.begin(audited))

    def _of(self, key: Key, bundle: Bundle) -> WatchedLevels:
        """The cascade's evidence. It begins anew if the profile or the objective has changed."""
        found, cascade, objective = self._watched.get(key), bundle.cascade, bundle.objective
        assert cascade is not None
        same = found is not None and found.cascade == cascade and found.objective == objective
        if found is None or not same:
            found = self._watched[key] = WatchedLevels(cascade, objective)
            if len(self._watched) > MAX_WATCHED:
                self._watched.popitem(last=False)
        self._watched.move_to_end(key)
        return found


async def _both(
    one: Awaitable[dict[int, TextResult]], other: Awaitable[dict[int, TextResult]]
) -> dict[int, TextResult]:
    """Await both side by side. If one fails or the caller is cancelled, the other is cancelled."""
    tasks = [asyncio.ensure_future(one), asyncio.ensure_future(other)]
    try:
        first, second = await asyncio.gather(*tasks)
        return first | second
    finally:
        for task in tasks:
            task.cancel()
        del tasks  # see `threads.together`


def _holds(passage: Passage, small: Bundle) -> bool:
    """Whether the small level's version is the profiled one."""
    cascade, version = passage.watched.cascade, small.version
    return (version.version, version.artefact) == (cascade.small_version, cascade.small_artefact)


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The times of both phases, in ms."""
    return {name: round(one.get(name, 0.0) + other.get(name, 0.0), 3) for name in one | other}
