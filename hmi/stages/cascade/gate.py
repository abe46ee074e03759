"""A fixed policy under test: may this cascade decide about this model's texts?

Early exits tune their policies from records (`hmi.stages.early_exit.control`). A cascade's were profiled
offline: its offers, each with a dispatcher, an ensemble and a pruning scale. They are tested one after
another. While the offer under test has a closed gate, the large level answers every text, and each text that
both levels have read is an audit. Once the audits suffice (`Gate`) the offer is followed, as long as the
stream is `solvent`, and a random share of the texts is audited. If they ring the alarm, the test of that
offer begins again.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from hmi.core import Cascade, Objective, Offer
from hmi.stages.draw import draw
from hmi.stages.early_exit.control import PATIENCE, Terms
from hmi.stages.early_exit.drift import HIGHEST, Alarm
from hmi.stages.early_exit.evidence import Audits, Gate, granted, solvent

AUDIT = "cascade audit"
"""The purpose of the draw that decides whether a text is audited."""
CLOSEST = 0.999 * HIGHEST
"""The largest loss that gate and alarm are made for."""


MOST_OFFERS = 8
"""The offers of a cascade that are tested at most. Each failure costs many audits."""


@dataclass(frozen=True)
class Begun:
    """What was decided about one text when its small level answered."""

    offer: int
    """The index of the offer under test or in use."""
    test: int
    """The number of the test, so that reports to an earlier one are recognised."""
    audited: bool
    """Whether the text was drawn for an audit."""
    followed: bool
    """Whether the offer decides about the text. Otherwise the large level answers it."""
    at_stake: bool
    """Whether the text would be followed if it were not audited."""


@dataclass(frozen=True)
class Counts:
    """The state of one model's cascade, for metrics."""

    texts: int
    audits: Audits
    """Of the present test."""
    offer: int | None
    """None: no offer is left to test."""
    open: bool
    alarms: int


def terms_for(agreement: float) -> Terms:
    """The terms of a tenant that insists on this fraction of equal answers."""
    return Terms(loss=min(1.0 - agreement, CLOSEST))


def offers_for(cascade: Cascade, objective: Objective) -> tuple[Offer, ...]:
    """The offers to test, in order: each is slower than the one before and agrees more often.

    The first is the fastest that agreed often enough on the profile's rows. With a deadline it is the one
    that agreed most often among those within it, if there are any. None without an agreement to keep.
    """
    least = 1.0 if objective.agreement is None else objective.agreement
    able = [] if objective.agreement is None else [o for o in cascade.offers if o.agreement >= least]
    able.sort(key=lambda o: (o.mean_ms, -o.agreement))
    in_time = [o for o in able if objective.deadline_ms is not None and o.mean_ms <= objective.deadline_ms]
    if in_time:
        best = max(in_time, key=lambda o: (o.agreement, -o.mean_ms))
        able = able[able.index(best) :]
    found: list[Offer] = []
    for offer in able:
        if not found or offer.agreement > found[-1].agreement:
            found.append(offer)
    return tuple(found[:MOST_OFFERS])


class Trial:
    """The offers of one cascade of one version of one model, and the test of the present one. Thread-safe.

    Offers are named by their index, in the order in which they are tried.
    """

    def __init__(self, offers: int, terms: Terms) -> None:
        self._offers, self._terms, self._lock = offers, terms, threading.Lock()
        self._texts = self._disagreed = self._under_way = 0
        self._offer = self._test = self._alarms = 0
        self._gate, self._alarm = self._fresh()

    def begin(self, request: str) -> Begun | None:
        """Count a text. None: no offer is left, so the large level answers it, and nothing is reported.

        A text that is audited, or not followed, may be reported (`report`); if it was audited, it must be, or
        be taken back by `abandon`. A text that is followed must not be reported.
        """
        t = self._terms
        audited = draw(AUDIT, request) < t.share
        with self._lock:
            self._texts += 1
            if self._offer >= self._offers:
                return None
            disagreed = self._disagreed + self._under_way
            open_ = self._gate.open and solvent(self._texts - 1, disagreed, t.share, t.loss, t.error)
            self._under_way += open_ and audited
            return Begun(self._offer, self._test, audited, open_ and not audited, open_)

    def report(self, begun: Begun, *, disagrees: bool) -> None:
        """Take note of an audit. disagrees: whether the offer, had it decided, would have given another
        answer than the large level."""
        with self._lock:
            if begun.audited and begun.at_stake:
                self._under_way -= 1
                self._disagreed += disagrees
            if begun.test != self._test or self._offer >= self._offers:
                return
            if not self._gate.open:
                self._gate = self._gate.after(disagrees)
                if not self._gate.open and self._gate.own.seen >= PATIENCE / self._terms.loss:
                    self._begin_test(self._offer + 1)
                return
            self._alarm = self._alarm.after(disagrees)
            if self._alarm.rung:
                self._alarms += 1
                self._begin_test(self._offer)

    def abandon(self, begun: Begun) -> None:
        """Take back a text that failed."""
        with self._lock:
            self._texts -= 1
            self._under_way -= begun.audited and begun.at_stake

    @property
    def counts(self) -> Counts:
        with self._lock:
            offer = self._offer if self._offer < self._offers else None
            return Counts(self._texts, self._gate.own, offer, self._gate.open, self._alarms)

    def _begin_test(self, offer: int) -> None:
        self._offer, self._test = offer, self._test + 1
        self._gate, self._alarm = self._fresh()

    def _fresh(self) -> tuple[Gate, Alarm]:
        """A gate of its own for each test, so that all of them together err with `Terms.error`."""
        return Gate(self._terms.loss, granted(self._terms.error, self._test)), Alarm(self._terms.loss)
