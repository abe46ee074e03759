"""The evidence and counts of cascades: which offers of each are tested, and which is used."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from hmi.core import Cascade, CascadeState, ModelId, Objective, Offer
from hmi.stages.cascade import kept
from hmi.stages.cascade.gate import StreamEvidence, Terms, Ticket
from hmi.stages.cascade.kept import Key
from hmi.stages.cascade.profiling import ladder
from hmi.stages.cascade.report import CascadeReport

MAX_AGREEMENTS = 8
"""The agreements of one model whose evidence is kept. The one that was asked for longest ago begins anew."""


@dataclass
class Numbers(Iterator[int]):
    """0, 1, 2, …: the numbers of rounds, each once."""

    given: int = 0
    """The numbers given so far."""

    def __next__(self) -> int:
        self.given += 1
        return self.given - 1


@dataclass
class CascadeEvidence:
    """The evidence and the counts of one cascade under one agreement. One thread at a time uses it; threads
    that share it hold `lock`."""

    cascade: Cascade
    objective: Objective
    """It must name an agreement."""
    numbers: Iterator[int] = field(default_factory=Numbers)
    """Numbers the cascade's rounds. All agreements share them, and with them one error."""
    trial: StreamEvidence = field(init=False)
    offers: tuple[Offer, ...] = ()
    """The dispatchers that are tested or used, the most careful one first; (): the large level answers."""
    failed: list[Offer] = field(default_factory=list)
    """Offers whose gates were given up."""
    returned: int = 0
    gone_on: int = 0
    audited: int = 0
    disagreed: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        assert self.objective.agreement is not None
        self._choose()
        self.trial = StreamEvidence(Terms.of(self.objective.agreement), self.numbers, len(self.offers))

    @property
    def offer(self) -> Offer | None:
        """The dispatcher that is used, or the most careful one that is tested; None if there is none."""
        return self.offers[self.trial.present or 0] if self.offers else None

    def within(self, objective: Objective) -> None:
        """Obey an objective with the same agreement and another mean time. The evidence goes on, unless
        other offers are chosen."""
        before, self.objective = self.offers, objective
        self._choose()
        if self.offers != before:
            self.trial.renew(len(self.offers))

    def _choose(self) -> None:
        """Take the fastest offers that reach the objective and have not failed."""
        wanted, cascade = self.objective, self.cascade
        assert wanted.agreement is not None
        left = [offer for offer in cascade.offers if offer not in self.failed]
        self.offers = ladder(left, wanted.agreement, wanted.deadline_ms or np.inf, cascade.large_accuracy)

    def audit(self, ticket: Ticket, disagrees: Sequence[bool]) -> bool:
        """Take note of an audit, and choose anew if that ends the present offers' trial.

        disagrees: of each of `offers` when the text came. Returns whether the alarm has rung, so that the
        evidence begins anew.
        """
        self.audited += 1
        self.disagreed += disagrees[ticket.version or 0]
        rung, before = self.trial.record(ticket, disagrees), self.offers
        if rung:
            self.failed.clear()
        elif self.offers and self.trial.hopeless:
            self.failed += self.offers
        else:
            return False
        self._choose()
        if not rung or self.offers != before:
            self.trial.renew(len(self.offers))
        return rung

    @property
    def report(self) -> CascadeReport:
        trial, offer = self.trial, self.offer
        state: CascadeState = "no offer" if offer is None else "testing"
        if offer is not None and trial.open:
            state = "in use" if trial.solvent else "paused"
        return CascadeReport(
            state=state,
            cut_off=None if offer is None else offer.cut_off,
            slope=None if offer is None else offer.slope,
            weight=None if offer is None else offer.weight,
            texts=trial.texts,
            returned=self.returned,
            gone_on=self.gone_on,
            audited=self.audited,
            disagreed=self.disagreed,
            gate_audits=trial.own.seen,
            gate_needed=trial.needed,
            gate_disagreed=trial.own.disagreed,
            gate_bound=trial.bound,
            alarms=trial.alarms,
            share=trial.share,
        )


@dataclass(frozen=True)
class EvidenceByAgreement:
    """One model's cascade with its evidence by agreement, the one used last at the end."""

    cascade: Cascade
    found: OrderedDict[float, CascadeEvidence] = field(default_factory=OrderedDict)
    numbers: Numbers = field(default_factory=Numbers)


class Evidence:
    """The evidence of many models' cascades. Thread-safe."""

    def __init__(self, most: int, path: Path | None = None) -> None:
        """most: the cascades whose evidence is kept. The one that was used longest ago begins anew.

        path: of the file that `close` writes, which is read here and deleted; None: nothing is kept.
        """
        self._most, self._lock, self._path = most, threading.Lock(), path
        self._profiles: OrderedDict[Key, EvidenceByAgreement] = OrderedDict()
        """The evidence, by model and the artefacts of both levels, since two tenants may have equal
        artefacts. The one used last is the last."""
        self._kept = {} if path is None else kept.take(path)
        """That of the last engine, of cascades that no text has asked for since."""

    def close(self) -> None:
        """Write the evidence to its file."""
        with self._lock:
            if self._path is not None:
                states = {key: kept.packed(profile) for key, profile in self._profiles.items()}
                kept.write(self._path, {**self._kept, **states})

    def of(self, model: ModelId, artefact: str, cascade: Cascade, objective: Objective) -> CascadeEvidence:
        """The evidence of a cascade under an objective, which must name an agreement.

        Another profile begins anew. Each agreement has evidence of its own, which is kept while another one
        holds; their policies share one error.
        """
        key, agreement = (model, artefact, cascade.small_artefact or ""), objective.agreement
        assert agreement is not None
        with self._lock:
            profile = self._profiles.get(key)
            if profile is None or profile.cascade != cascade:
                profile = self._profiles[key] = EvidenceByAgreement(cascade)
                kept.unpack(self._kept.pop(key, None), profile)
            found = profile.found.get(agreement)
            if found is None:
                found = profile.found[agreement] = CascadeEvidence(cascade, objective, profile.numbers)
            profile.found.move_to_end(agreement)
            self._profiles.move_to_end(key)
            if len(profile.found) > MAX_AGREEMENTS:
                profile.found.popitem(last=False)
            if len(self._profiles) > self._most:
                self._profiles.popitem(last=False)
        if found.objective != objective:
            with found.lock:
                found.within(objective)
        return found

    def report(
        self, model: ModelId, artefact: str, small_artefact: str, agreement: float | None
    ) -> CascadeReport | None:
        """Return a cascade's traffic under an agreement; None if none of its texts has come under it."""
        with self._lock:
            profile = self._profiles.get((model, artefact, small_artefact))
            found = None if profile is None or agreement is None else profile.found.get(agreement)
        if found is None:
            return None
        with found.lock:
            return found.report

    def forget(self, artefacts: Collection[str]) -> None:
        """Drop the evidence of deleted artefacts."""
        with self._lock:
            for found in (self._profiles, self._kept):
                for key in [key for key in found if not {*key[1:]}.isdisjoint(artefacts)]:
                    found.pop(key)
