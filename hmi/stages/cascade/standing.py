"""The standing of one model's cascade inside its root: which offers are tested or used, and their evidence.

As `hmi.engine.adaptive.levels` does it for two roots, but for compute threads, and every text that ran to the
end for another reason is an audit too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hmi.core import Offer
from hmi.stages.cascade.gate import Ticket
from hmi.stages.cascade.report import CascadeReport
from hmi.stages.cascade.watched import CascadeEvidence
from hmi.stages.draw import draw


@dataclass(frozen=True)
class TextDecision:
    """The decision about one text, made when its ramp had answered."""

    ticket: Ticket
    offers: tuple[Offer, ...]
    """Under test or in use, the most careful one first."""

    @property
    def offer(self) -> Offer:
        """The one that is in force; while none is, the most careful one."""
        return self.offers[self.ticket.version or 0]


class VersionEvidence:
    """The evidence of a cascade of one version of a model, for compute threads. Thread-safe."""

    def __init__(self, watched: CascadeEvidence) -> None:
        self._lock, self._watched = watched.lock, watched

    def begin(self, nonce: str) -> TextDecision | None:
        """Count a text. None: no offer is left, so the text runs to the end, and nothing is reported.

        A text that was drawn for an audit must be recorded or abandoned. Another one may be recorded if no
        offer is in force. nonce: the text's, for audits.
        """
        with self._lock:
            trial, offers = self._watched.trial, self._watched.offers
            ticket = trial.begin(draw("audit", nonce) < trial.share)
            return TextDecision(ticket, offers) if offers else None

    def followed(self, *, returned: bool) -> None:
        """Count a text that the offer in force decided about, by the level that answered."""
        with self._lock:
            self._watched.returned += returned
            self._watched.gone_on += not returned

    def record(self, begun: TextDecision, *, disagrees: Sequence[bool]) -> None:
        """Take note of an audit. disagrees: whether each offer would have given another answer than the full
        model."""
        with self._lock:
            self._watched.audit(begun.ticket, disagrees)

    def abandon(self, begun: TextDecision) -> None:
        """Take back an audit that will not be recorded, such as that of a text that failed."""
        with self._lock:
            self._watched.trial.abandon(begun.ticket)

    @property
    def report(self) -> CascadeReport:
        with self._lock:
            return self._watched.report
