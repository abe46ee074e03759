"""Cascades between two roots: a small model answers first, and a large one the texts that need it.

A call names the large model. While a cascade is in use, its texts run on the small level first, and the
dispatcher then decides which of them go on to the large level. The call's other texts run at the same time as
the first phase. Until enough audits have shown that the cascade's answers agree with the large level's (its
gate is closed), the large level answers every text, and the small one runs for audits alone. All state
belongs to the event loop's thread: call nothing here from another one, unless its docstring says so.
docs/design/0012-exits-and-cascades.md has the reasons.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hmi.core import Cascade, ModelId, ModelRecord, ModelVersion, Offer
from hmi.engine.admit.admission import Admission
from hmi.engine.admit.admission import Admitted as Admitted
from hmi.engine.admit.bundles import Bundle
from hmi.engine.texts.request import Level, TextRequest, TextResult
from hmi.errors import DeadlineExceeded, HmiError
from hmi.model.tenant.calibration import Floats
from hmi.stages.cascade.dispatch import Dispatcher, goes_on, share_large
from hmi.stages.cascade.ensemble import calibrated, combined
from hmi.stages.cascade.gate import Ticket
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.watched import CascadeEvidence, Evidence
from hmi.stages.draw import draw
from hmi.stores.failures import log_failure

T = TypeVar("T")
log = logging.getLogger("hmi.engine")
MAX_WATCHED = 1 << 14
"""The most cascades whose evidence is kept, about 2 KB each."""
PAUSE_S = 10.0
"""Seconds for which a small level that could not answer is not asked again."""
Ask = Callable[[Sequence[TextRequest], Sequence[Admitted]], Awaitable[list[TextResult]]]
"""Runs texts that were admitted, and returns their answers in their order."""


@dataclass
class CascadedText:
    """One text on its way through a cascade."""

    index: int
    request: TextRequest
    """As the caller sent it, with an id."""
    bundle: Bundle
    """The versions of root, PLOT and module of the large level."""
    watched: CascadeEvidence
    offers: tuple[Offer, ...]
    """The cascade's offers that are under test or in use, the most careful one first."""
    ticket: Ticket
    settled: bool = False
    """True once the text has left its place in the evidence (`settle`)."""
    checked: bool = False
    """True if the small level has answered the text, and the large level is asked afterwards for an audit."""
    first: TextResult | None = None
    """The small level's answer."""
    chances: Floats | None = None
    """float64 [labels]: the small level's calibrated probabilities, in the large level's order of labels."""
    on: bool = True
    """True if the dispatcher sends it on to the large level."""

    @property
    def offer(self) -> Offer:
        """The offer that is in force; while none is, the most careful one."""
        return self.offers[self.ticket.version or 0]

    @property
    def needs_small(self) -> bool:
        return self.ticket.in_force or self.ticket.audited

    @property
    def labels(self) -> tuple[str, ...]:
        return self.bundle.version.labels

    @property
    def small_request(self) -> TextRequest:
        """The request to the small level: for all scores, and without early exits, as it was profiled."""
        assert self.watched.cascade.small is not None
        small = ModelId.parse(self.watched.cascade.small)
        return replace(self.request, model=small, scores=True, calibrated=False, early=False, beside=True)

    @property
    def large_request(self) -> TextRequest:
        """The request to the large level. It allows no early exits, since these would add disagreements of
        their own. The level reads the whole text, since cascades between two models prune no words. Scores
        are asked for as they are, and calibrated here."""
        scores = self.request.scores or self.request.calibrated or self.needs_small
        return replace(self.request, scores=scores, calibrated=False, early=False, adapt=True)

    def take(self, first: TextResult) -> None:
        """Keep the small level's answer, and decide by a draw whether the text goes on to the large level."""
        self.first = first
        self.chances = self._chances(first, self.watched.cascade.temperature)
        self.on = self._sent_on_by(self.offer)

    def settle(self, disagrees: Sequence[bool] | None = None) -> None:
        """End the text's part in the evidence. Further calls do nothing.

        disagrees: of an audit, for each offer, whether its answer differs from the large level's. None: the
        text was not compared; if it is `checked`, its audit is still under way, and the call does nothing.
        """
        if self.settled or (disagrees is None and self.checked):
            return
        self.settled = True
        if disagrees is None or not self.ticket.audited:
            self.watched.trial.abandon(self.ticket)
        elif self.watched.audit(self.ticket, disagrees):
            log.info("a cascade's audits rang the alarm: its evidence begins anew")

    def compare(self, last: TextResult | None) -> None:
        """End an audit: compare what each offer would have answered with the large level's answer, `last`.

        last: None if the large level gave no answer, which counts as a disagreement of each offer.
        """
        if last is None:
            self.settle([True] * len(self.offers))
            return
        large = self._large(last)
        self.settle([self._says(offer, last, large) != last.label for offer in self.offers])

    def answer(self, last: TextResult | None) -> TextResult:
        """Return the text's answer to the caller, made of both levels' answers.

        last: the large level's answer; None if the text did not go on to it.

        | policy in force | audited | the levels that run | answer |
        |---|---|---|---|
        | no | no | large | large |
        | no | yes | both at once | large; compared with what the policies would say |
        | yes | no | small; large if the text goes on | small; the ensemble's if it goes on |
        | yes | yes | small, then large | as without the audit; compared with large when that has answered |

        If the small level cannot answer, the large one does, and nothing is compared.
        """
        if last is None:
            assert self.first is not None
            assert self.chances is not None
            self.settle()
            self.watched.returned += 1
            return self._given(self.first, self._shown(self.chances), "small")
        if self.first is not None and self.chances is not None:
            if self.ticket.audited:
                self.compare(last)
            if self.ticket.in_force:
                self.watched.gone_on += 1
                large, mixed = self._large(last), self.offer.weight < 1.0
                said = self._says(self.offer, last, large)
                last = replace(last, label=said, timing=_sum(self.first.timing, last.timing))
                if mixed:
                    both = combined(self.chances, large, self.offer.weight)
                    return self._given(last, self._shown(both), "large")
        self.settle()
        return self._given(last, self._large(last) if self.request.calibrated else None, "large")

    def _sent_on_by(self, offer: Offer) -> bool:
        assert self.chances is not None
        dispatcher = Dispatcher(offer.cut_off, offer.slope)
        return goes_on(self.request.id, float(share_large(self.chances.max(), dispatcher)))

    def _says(self, offer: Offer, last: TextResult, large: Floats) -> str | None:
        """Return the label that `offer` would give. large: the probabilities of `last`, [labels]."""
        assert self.first is not None
        assert self.chances is not None
        if not self._sent_on_by(offer):
            return self.first.label
        if offer.weight == 1.0:
            return last.label
        return self.labels[int(combined(self.chances, large, offer.weight).argmax())]

    def _given(self, result: TextResult, chances: Floats | None, level: Level) -> TextResult:
        """Return a level's answer under the large model's name and version, with the scores that the caller
        asked for.

        chances: the probabilities to answer with, [labels]; None: those of `result`.
        """
        if chances is not None:
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

    def _shown(self, chances: Floats) -> Floats:
        """Return probabilities on the scale that the caller asked for.

        A request for calibrated scores gets `chances` as they are. For any other request the calibration of
        the large level is undone, so that both levels' answers are on the scale of its own scores.
        """
        taken_back = 1.0 / self.watched.cascade.large_temperature
        return chances if self.request.calibrated else calibrated(chances, taken_back)

    def _large(self, result: TextResult) -> Floats:
        return self._chances(result, self.watched.cascade.large_temperature)

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
        record: Callable[[ModelId], ModelRecord],
        counted: Callable[[str, bool], None] = lambda tenant, small: None,
        path: Path | None = None,
    ) -> None:
        """admission: admits texts of the small level. ask: runs admitted texts. record: returns a model's
        record, or raises NotFound or Damaged. counted: is called for each text that came to a cascade in use,
        with its tenant and whether the small level answered it. path: the file that keeps the evidence
        (`Evidence`); None: the evidence ends with the process."""
        self._admission, self._ask, self._record, self._counted = admission, ask, record, counted
        self._evidence = Evidence(MAX_WATCHED, path)
        self._checks = set[asyncio.Task[None]]()
        """Running audits of texts whose callers have their answers already."""
        self._paused: dict[ModelId, float] = {}
        """The `time.monotonic()` until which a large model's small level is not asked, by large model."""

    def report(
        self, model: ModelId, artefact: str, small_artefact: str, agreement: float | None
    ) -> CascadeReport | None:
        """Return what a cascade has done for requests that want this agreement; None if there were none since
        the server started."""
        return self._evidence.report(model, artefact, small_artefact, agreement)

    def forget(self, artefacts: Collection[str]) -> None:
        """Drop the evidence of deleted artefacts. May be called on any thread."""
        self._evidence.forget(artefacts)

    async def close(self) -> None:
        """End the audits under way, and write the evidence to its file."""
        checks = list(self._checks)
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
        await asyncio.to_thread(self._evidence.close)

    async def answer(self, requests: Sequence[TextRequest], admitted: Sequence[Admitted]) -> list[TextResult]:
        """Return the answers to a call's texts, in their order. Raises the errors of `Engine.infer`."""
        pairs = zip(requests, admitted, strict=True)
        begun = [self._passage(i, r, a.bundle) for i, (r, a) in enumerate(pairs)]
        passages = {p.index: p for p in begun if p is not None}
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
            for p in small:
                if p.ticket.in_force and p.ticket.audited and not p.on:
                    self._check_later(p, admitted[p.index])
            return await large([p.index for p in small if p.ticket.in_force and p.on])

        at_once = [i for i in range(len(requests)) if i not in waiting]
        try:
            found = await _await_or_cancel([large(at_once), in_turn()]) if small else [await large(at_once)]
            results = {i: result for part in found for i, result in part.items()}
            for i in waiting:
                self._counted(requests[i].model.tenant, i not in results)
            return [
                passages[i].answer(results.get(i)) if i in passages else results[i]
                for i in range(len(requests))
            ]
        finally:
            for passage in passages.values():
                passage.settle()  # those without an answer

    def _check_later(self, passage: CascadedText, admitted: Admitted) -> None:
        """Ask the large level, in a task of its own, for an audited text that the small level has answered.

        The caller does not wait for this task and cannot cancel it, so an audit changes no answer and no
        deadline. An audit that fails counts as a disagreement, since audits may fail more often for texts on
        which the levels disagree.
        """
        passage.checked = True
        check = asyncio.create_task(self._check(passage, admitted))
        self._checks.add(check)
        check.add_done_callback(self._checks.discard)

    async def _check(self, passage: CascadedText, admitted: Admitted) -> None:
        last = None
        try:
            (last,) = await self._ask(
                [replace(passage.large_request, deadline=None, utility=1.0)], [admitted]
            )
        except Exception as error:
            log_failure(log, f"an audit of {passage.request.model} got no answer", error)
        finally:
            passage.compare(last)

    async def _first(self, passages: Sequence[CascadedText]) -> None:
        """Ask the small level of each model. Texts that it cannot answer are left to the large level."""
        groups: dict[ModelId, list[CascadedText]] = {}
        for passage in passages:
            groups.setdefault(passage.request.model, []).append(passage)
        await _await_or_cancel([self._first_of(group) for group in groups.values()])

    async def _first_of(self, passages: Sequence[CascadedText]) -> None:
        """Ask the small level for the texts of one model. If it fails, it is not asked again for PAUSE_S, and
        the large level answers. Raises DeadlineExceeded."""
        model, cascade = passages[0].request.model, passages[0].watched.cascade
        requests = [p.small_request for p in passages]
        try:
            results = await self._small(cascade, requests)
        except DeadlineExceeded:
            raise
        except HmiError as error:
            log.warning("the small level of %s is not asked for %g s: %s", model, PAUSE_S, error)
            results = []
        for passage, result in zip(passages, results, strict=False):
            passage.take(result)
        if not results:
            now = time.monotonic()
            self._paused = {of: until for of, until in self._paused.items() if until > now}
            self._paused[model] = now + PAUSE_S
            for passage in passages:
                passage.settle()

    async def _small(self, cascade: Cascade, requests: Sequence[TextRequest]) -> list[TextResult]:
        """The small level's answers; [] if its version is not the profiled one.

        The version is looked up first: another one may not even take these texts.
        """
        if not _holds(cascade, self._record(requests[0].model).live):
            return []
        admitted = await self._admission.admit(requests)
        if not all(_holds(cascade, each.bundle.version) for each in admitted):
            return []  # it was published meanwhile
        return await self._ask(requests, admitted)

    def _passage(self, index: int, request: TextRequest, bundle: Bundle) -> CascadedText | None:
        """Return a text's passage through its model's cascade; None if the large level shall answer it as if
        there were no cascade."""
        cascade, version = bundle.cascade, bundle.version
        if cascade is None or cascade.small is None or bundle.objective.agreement is None:
            return None
        if request.exact or not request.early or cascade.version != version.version:
            return None
        watched = self._evidence.of(request.model, version.artefact, cascade, bundle.objective)
        if not watched.offers or self._paused.get(request.model, 0.0) > time.monotonic():
            return None
        request = request if request.id else replace(request, id=uuid.uuid4().hex)
        # Not by the request's id: a client may choose it, and send the same one again.
        audited = draw("audit", uuid.uuid4().hex) < watched.trial.share
        return CascadedText(index, request, bundle, watched, watched.offers, watched.trial.begin(audited))


async def _await_or_cancel(work: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Await all side by side. If one fails or the caller is cancelled, the others are cancelled."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        del tasks  # see `threads.together`


def _holds(cascade: Cascade, small: ModelVersion) -> bool:
    """Return True if the small level's version is the profiled one."""
    return (small.version, small.artefact) == (cascade.small_version, cascade.small_artefact)


def _sum(one: dict[str, float], other: dict[str, float]) -> dict[str, float]:
    """The times of both phases, in ms."""
    return {name: round(one.get(name, 0.0) + other.get(name, 0.0), 3) for name in one | other}
