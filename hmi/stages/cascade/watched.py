"""The evidence and counts of cascades: which offers of each are tested, and which is used.

An engine writes the evidence to one file when it stops, and the next one takes it over. The file is deleted
when it is read, so that no two streams ever spend from one account. After a crash there is none, and all
cascades begin anew: then the guarantee holds for the stream since, with an error of its own. Audits under way
are written as if they had disagreed.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from hmi.core import Cascade, CascadeState, ModelId, Objective, Offer
from hmi.stages.cascade.gate import StreamEvidence, Terms, Ticket
from hmi.stages.cascade.profiling import ladder
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.early_exit.account import Count
from hmi.stages.early_exit.evidence import Alarm, Audits, Gate
from hmi.stores.failures import log_failure

if TYPE_CHECKING:
    from hmi.stages.cascade.gate import StreamEvidence


log = logging.getLogger("hmi.stages")
_Key = tuple[ModelId, str, str]
"""A model and the artefacts of both levels."""
_State = dict[str, Any]
"""The evidence of one cascade as JSON: numbers, strings, lists and objects."""
_COUNTS = ("returned", "gone_on", "audited", "disagreed")
PLAIN = ("present", "round", "alarms")
"""The trial's fields that are numbers."""


def _write_evidence(path: Path, states: Mapping[_Key, _State]) -> None:
    """Write the states of all cascades. A failure is logged: they begin anew."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        body = json.dumps([[str(model), *artefacts, s] for (model, *artefacts), s in states.items()]).encode()
        path.write_bytes(xxhash.xxh3_64_digest(body) + body)
    except Exception as error:
        log_failure(log, "the evidence of cascades could not be written", error)


def _take_evidence(path: Path) -> dict[_Key, _State]:
    """Read the states and delete the file; empty if there is none, or if it is damaged."""
    try:
        data = path.read_bytes()
        path.unlink()
        if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
            raise ValueError("the checksum is wrong")
        return {(ModelId.parse(model), one, other): s for model, one, other, s in json.loads(data[8:])}
    except FileNotFoundError:
        return {}
    except Exception as error:
        log_failure(log, "the evidence of cascades is damaged and begins anew", error)
        return {}


def _packed_evidence(profile: EvidenceByAgreement) -> _State:
    """The evidence of one cascade, the agreement used last at the end."""
    return {
        "cascade": _digest(profile),
        "given": profile.numbers.given,
        "found": [_watched(agreement, one) for agreement, one in profile.found.items()],
    }


def _unpack_evidence(state: _State | None, profile: EvidenceByAgreement) -> None:
    """Put evidence into a new profile, unless it is that of another cascade, or cannot be read."""

    if state is None or state["cascade"] != _digest(profile):
        return
    try:
        offers = profile.cascade.offers
        for one in state["found"]:
            objective = Objective.model_validate(one["objective"])
            made = CascadeEvidence(profile.cascade, objective, profile.numbers)
            made.failed = [offers[i] for i in one["failed"]]
            made.offers = tuple(offers[i] for i in one["offers"])
            for name in _COUNTS:
                setattr(made, name, one[name])
            _restore(made.trial, one["trial"])
            profile.found[one["agreement"]] = made
    except Exception as error:
        profile.found.clear()
        log_failure(log, "the evidence of a cascade is damaged and begins anew", error)
    profile.numbers.given = max(profile.numbers.given, state["given"])


def _digest(profile: EvidenceByAgreement) -> str:
    return xxhash.xxh3_64_hexdigest(profile.cascade.model_dump_json().encode())


def _watched(agreement: float, one: CascadeEvidence) -> _State:
    offers, trial = one.cascade.offers, one.trial
    with one.lock:
        return {
            "agreement": agreement,
            "objective": one.objective.model_dump(),
            "offers": [offers.index(offer) for offer in one.offers],
            "failed": [offers.index(offer) for offer in one.failed],
            **{name: getattr(one, name) for name in _COUNTS},
            "trial": {
                **{name: getattr(trial, name) for name in PLAIN},
                "texts": trial.account.texts,
                "phase": trial.account.phase,
                "counts": [(c.wrong + len(c.pending), c.free) for c in trial.account.counts],
                "gates": [asdict(gate) for gate in trial.gates],
                "alarm": asdict(trial.alarm),
            },
        }


def _restore(trial: StreamEvidence, state: _State) -> None:
    """Put a state into a new trial. Raises ValueError if it has other phases."""
    account = trial.account
    counts = [Count(wrong, free) for wrong, free in state["counts"]]
    if len(counts) != len(account.phases):
        raise ValueError("it has other phases")
    account.texts, account.phase, account.counts = state["texts"], state["phase"], counts
    account.advance(settled=True, ahead=False)
    for name in PLAIN:
        setattr(trial, name, state[name])
    trial.gates = [Gate(**{**gate, "own": Audits(**gate["own"])}) for gate in state["gates"]]
    trial.alarm = Alarm(**{**state["alarm"], "score": tuple(state["alarm"]["score"])})


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
        self._profiles: OrderedDict[_Key, EvidenceByAgreement] = OrderedDict()
        """The evidence, by model and the artefacts of both levels, since two tenants may have equal
        artefacts. The one used last is the last."""
        self._kept = {} if path is None else _take_evidence(path)
        """That of the last engine, of cascades that no text has asked for since."""

    def close(self) -> None:
        """Write the evidence to its file."""
        with self._lock:
            if self._path is not None:
                states = {key: _packed_evidence(profile) for key, profile in self._profiles.items()}
                _write_evidence(self._path, {**self._kept, **states})

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
                _unpack_evidence(self._kept.pop(key, None), profile)
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
