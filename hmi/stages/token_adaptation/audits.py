"""The audits of merging: merged texts that also ran unmerged, by model and γ, and the γ that they leave."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from hmi.core import Cascade, ModelId, ModelVersion, Objective
from hmi.stages.draw import draw
from hmi.stages.early_exit.evidence import Audits
from hmi.stages.token_adaptation.allowed import allowed

SHARE = 1 / 50
"""The share of merged texts that are audited."""
MEMORY = 4096
"""At this many audits of a γ all count half from then on, so that what a model's traffic has become shows."""
MOST = 16_384
"""The models whose audits are kept. Those of the one that was asked longest ago begin anew."""


def audited(nonce: str) -> bool:
    """Return whether a merged text is an audit. nonce: the text's."""
    return draw("tokens", nonce) < SHARE


@dataclass
class _Standing:
    """One model's audits, and the γ that it may use by them."""

    version: ModelVersion
    objective: Objective
    cascade: Cascade | None
    audits: dict[int, Audits] = field(default_factory=dict)
    gammas: tuple[int, ...] = ()

    def judge(self) -> None:
        self.gammas = allowed(self.version, self.objective, self.cascade, self.audits)


class AuditRecords:
    """The audits of all models, by model and artefact: another artefact begins anew. Thread-safe."""

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, threading.Lock()
        self._standings: OrderedDict[tuple[ModelId, str], _Standing] = OrderedDict()
        self.totals = Audits()
        """The audits of all models since the ledger was made. To be read only; on any thread."""

    def allowed(
        self, model: ModelId, version: ModelVersion, objective: Objective, cascade: Cascade | None
    ) -> tuple[int, ...]:
        """Return the γ that the model may use now; see `allowed`."""
        if objective.agreement_under_load is None or not version.tokens:
            return ()
        key = model, version.artefact
        with self._lock:
            found = self._standings.get(key)
            if found is None:
                found = self._standings[key] = _Standing(version, objective, cascade)
                found.judge()
                while len(self._standings) > self._most:
                    self._standings.popitem(last=False)
                return found.gammas
            self._standings.move_to_end(key)
            if not (found.version is version and found.objective is objective and found.cascade is cascade):
                found.version, found.objective, found.cascade = version, objective, cascade
                found.judge()
            return found.gammas

    def record(self, model: ModelId, artefact: str, gamma: int, disagrees: bool) -> None:
        """Take note of an audit."""
        with self._lock:
            self.totals = self.totals.plus(disagrees)
            found = self._standings.get((model, artefact))
            if found is None:
                return  # forgotten meanwhile
            audits = found.audits.get(gamma, Audits()).plus(disagrees)
            if audits.seen >= MEMORY:
                audits = Audits(audits.seen // 2, audits.disagreed // 2)
            found.audits[gamma] = audits
            found.judge()

    def audits(self, model: ModelId, artefact: str) -> Mapping[int, Audits]:
        """Return a model's audits, by γ."""
        with self._lock:
            found = self._standings.get((model, artefact))
            return {} if found is None else dict(found.audits)

    def forget(self, artefacts: Collection[str], models: Collection[ModelId] = ()) -> None:
        """Drop the audits of deleted artefacts. models: those deleted; (): all that have them."""
        with self._lock:
            for model, artefact in list(self._standings):
                if artefact in artefacts and (not models or model in models):
                    del self._standings[model, artefact]
