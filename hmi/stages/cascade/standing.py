"""The standing of one model's cascade inside its root: which offer is tested or used, and its evidence.

As `hmi.engine.levels` does it for two roots, but for compute threads, and every text that ran to the end for
another reason is an audit too.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np

from hmi.core import Cascade, CascadeState, Objective, Offer
from hmi.stages.cascade.gate import Terms, Ticket, Trial
from hmi.stages.cascade.profiling import prudent
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.draw import draw


@dataclass(frozen=True)
class Begun:
    """What was decided about one text when its ramp had answered."""

    ticket: Ticket
    offer: Offer
    """Under test or in use."""

    @property
    def followed(self) -> bool:
        """Whether the offer decides about the text. Otherwise the text runs to the end."""
        return self.ticket.in_force and not self.ticket.audited


class Standing:
    """The offers of a cascade of one version of a model, and the trial of the present one. Thread-safe."""

    def __init__(self, cascade: Cascade, objective: Objective) -> None:
        """The objective must name an agreement."""
        assert objective.agreement is not None
        self._cascade, self._agreement, self._deadline = cascade, objective.agreement, objective.deadline_ms
        self._lock, self._failed = threading.Lock(), list[Offer]()
        self._trial = Trial(Terms.of(objective.agreement))
        self._returned = self._gone_on = self._audited = self._disagreed = 0
        self._offer = self._chosen()

    def begin(self, request: str) -> Begun | None:
        """Count a text. None: no offer is left, so the text runs to the end, and nothing is reported.

        A text that is not followed may be recorded, and must be if it was drawn for an audit (`record`,
        `abandon`). One that is followed must not.
        """
        with self._lock:
            if self._offer is None:
                self._trial.texts += 1
                return None
            audited = draw("audit", request) < self._trial.share
            return Begun(self._trial.begin(audited), self._offer)

    def followed(self, *, returned: bool) -> None:
        """Count a text that the offer decided about, by the level that answered."""
        with self._lock:
            self._returned += returned
            self._gone_on += not returned

    def record(self, begun: Begun, *, disagrees: bool) -> None:
        """Take note of an audit. disagrees: whether the offer would have given another answer than the full
        model."""
        with self._lock:
            self._audited += 1
            self._disagreed += disagrees
            if self._trial.record(begun.ticket, disagrees):
                self._failed.clear()
                self._offer = self._chosen()
            elif self._trial.hopeless and self._offer is not None:
                self._failed.append(self._offer)
                self._trial.renew()
                self._offer = self._chosen()

    def abandon(self, begun: Begun) -> None:
        """Take back an audit that will not be recorded, such as that of a text that failed."""
        with self._lock:
            self._trial.abandon(begun.ticket)

    @property
    def report(self) -> CascadeReport:
        with self._lock:
            trial, offer = self._trial, self._offer
            state: CascadeState = "no offer" if offer is None else "testing"
            if offer is not None and trial.open:
                state = "in use" if trial.solvent else "earning"
            return CascadeReport(
                state=state,
                cut_off=None if offer is None else offer.cut_off,
                slope=None if offer is None else offer.slope,
                texts=trial.texts,
                returned=self._returned,
                gone_on=self._gone_on,
                audited=self._audited,
                disagreed=self._disagreed,
                gate_audits=trial.own.seen,
                gate_disagreed=trial.own.disagreed,
                gate_bound=trial.bound,
                alarms=trial.alarms,
                share=trial.share,
            )

    def _chosen(self) -> Offer | None:
        """The fastest offer that reaches the objective and has not failed."""
        left = [offer for offer in self._cascade.offers if offer not in self._failed]
        return prudent(left, self._agreement, self._deadline or np.inf)
