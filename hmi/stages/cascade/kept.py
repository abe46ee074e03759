"""The evidence of cascades in one file, which an engine writes when it stops and the next one takes over.

The file is deleted when it is read, so that no two streams ever spend from one account. After a crash there
is none, and all cascades begin anew: then the guarantee holds for the stream since, with an error of its own.
Audits under way are written as if they had disagreed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import xxhash

from hmi.core import ModelId, Objective
from hmi.stages.early_exit.account import Count
from hmi.stages.early_exit.drift import Alarm
from hmi.stages.early_exit.evidence import Audits, Gate
from hmi.stores.failures import log_failure

if TYPE_CHECKING:
    from hmi.stages.cascade.gate import StreamEvidence
    from hmi.stages.cascade.watched import CascadeEvidence, EvidenceByAgreement

log = logging.getLogger("hmi.stages")
Key = tuple[ModelId, str, str]
"""A model and the artefacts of both levels."""
State = dict[str, Any]
"""The evidence of one cascade as JSON: numbers, strings, lists and objects."""
COUNTS = ("returned", "gone_on", "audited", "disagreed")
PLAIN = ("present", "round", "alarms")
"""The trial's fields that are numbers."""


def write(path: Path, states: Mapping[Key, State]) -> None:
    """Write the states of all cascades. A failure is logged: they begin anew."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        body = json.dumps([[str(model), *artefacts, s] for (model, *artefacts), s in states.items()]).encode()
        path.write_bytes(xxhash.xxh3_64_digest(body) + body)
    except Exception as error:
        log_failure(log, "the evidence of cascades could not be written", error)


def take(path: Path) -> dict[Key, State]:
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


def packed(profile: EvidenceByAgreement) -> State:
    """The evidence of one cascade, the agreement used last at the end."""
    return {
        "cascade": _digest(profile),
        "given": profile.numbers.given,
        "found": [_watched(agreement, one) for agreement, one in profile.found.items()],
    }


def unpack(state: State | None, profile: EvidenceByAgreement) -> None:
    """Put evidence into a new profile, unless it is that of another cascade, or cannot be read."""
    from hmi.stages.cascade.watched import CascadeEvidence

    if state is None or state["cascade"] != _digest(profile):
        return
    try:
        offers = profile.cascade.offers
        for one in state["found"]:
            objective = Objective.model_validate(one["objective"])
            made = CascadeEvidence(profile.cascade, objective, profile.numbers)
            made.failed = [offers[i] for i in one["failed"]]
            made.offers = tuple(offers[i] for i in one["offers"])
            for name in COUNTS:
                setattr(made, name, one[name])
            _restore(made.trial, one["trial"])
            profile.found[one["agreement"]] = made
    except Exception as error:
        profile.found.clear()
        log_failure(log, "the evidence of a cascade is damaged and begins anew", error)
    profile.numbers.given = max(profile.numbers.given, state["given"])


def _digest(profile: EvidenceByAgreement) -> str:
    return xxhash.xxh3_64_hexdigest(profile.cascade.model_dump_json().encode())


def _watched(agreement: float, one: CascadeEvidence) -> State:
    offers, trial = one.cascade.offers, one.trial
    with one.lock:
        return {
            "agreement": agreement,
            "objective": one.objective.model_dump(),
            "offers": [offers.index(offer) for offer in one.offers],
            "failed": [offers.index(offer) for offer in one.failed],
            **{name: getattr(one, name) for name in COUNTS},
            "trial": {
                **{name: getattr(trial, name) for name in PLAIN},
                "texts": trial.account.texts,
                "phase": trial.account.phase,
                "counts": [(c.wrong + len(c.pending), c.free) for c in trial.account.counts],
                "gates": [asdict(gate) for gate in trial.gates],
                "alarm": asdict(trial.alarm),
            },
        }


def _restore(trial: StreamEvidence, state: State) -> None:
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
