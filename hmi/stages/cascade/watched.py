"""One cascade's evidence and counts: which of its offers is tested or used."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from hmi.core import Cascade, CascadeState, Objective, Offer
from hmi.stages.cascade.gate import Terms, Ticket, Trial
from hmi.stages.cascade.profiling import prudent
from hmi.stages.cascade.report import CascadeReport


@dataclass
class Watched:
    """The evidence and the counts of one cascade. It holds no lock: one thread at a time uses it."""

    cascade: Cascade
    objective: Objective
    """It must name an agreement."""
    trial: Trial = field(init=False)
    offer: Offer | None = None
    """The dispatcher that is tested or used; None: the large level answers."""
    failed: list[Offer] = field(default_factory=list)
    """Offers whose gates were given up."""
    returned: int = 0
    gone_on: int = 0
    audited: int = 0
    disagreed: int = 0

    def __post_init__(self) -> None:
        assert self.objective.agreement is not None
        self.trial = Trial(Terms.of(self.objective.agreement))
        self._choose()

    def _choose(self) -> None:
        """Take the fastest offer that reaches the objective and has not failed."""
        assert self.objective.agreement is not None
        left = [offer for offer in self.cascade.offers if offer not in self.failed]
        self.offer = prudent(left, self.objective.agreement, self.objective.deadline_ms or np.inf)

    def audit(self, ticket: Ticket, disagrees: bool) -> bool:
        """Take note of an audit, and choose anew if that ends the present offer's trial.

        Returns whether the alarm has rung, so that the evidence begins anew.
        """
        self.audited += 1
        self.disagreed += disagrees
        rung = self.trial.record(ticket, disagrees)
        if rung:
            self.failed.clear()
            self._choose()
        elif self.trial.hopeless and self.offer is not None:
            self.failed.append(self.offer)
            self.trial.renew()
            self._choose()
        return rung

    @property
    def report(self) -> CascadeReport:
        trial, offer = self.trial, self.offer
        state: CascadeState = "no offer" if offer is None else "testing"
        if offer is not None and trial.open:
            state = "in use" if trial.solvent else "earning"
        return CascadeReport(
            state=state,
            cut_off=None if offer is None else offer.cut_off,
            slope=None if offer is None else offer.slope,
            texts=trial.texts,
            returned=self.returned,
            gone_on=self.gone_on,
            audited=self.audited,
            disagreed=self.disagreed,
            gate_audits=trial.own.seen,
            gate_disagreed=trial.own.disagreed,
            gate_bound=trial.bound,
            alarms=trial.alarms,
            share=trial.share,
        )
