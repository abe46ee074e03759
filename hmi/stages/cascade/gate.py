"""The evidence for one fixed policy of a model at a time, from audits of the tenant's own traffic.

A cascade's policy is an offer of its profile: dispatcher, ensemble, pruning scale. While its gate is closed,
the large level answers every text, and the policy's answer to a random share of them is compared with it.
Once the gate is open the policy is in force, as long as the stream is `solvent`; the share is audited as
before. The alarm closes the gate, and the evidence begins anew.

`hmi.stages.early_exit.control` does the same for policies that it tunes itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from hmi.stages.early_exit.drift import Alarm
from hmi.stages.early_exit.evidence import (
    Audits,
    Gate,
    granted,
    log_evidence,
    most_disagreements,
    upper_bound,
)

ERROR = 0.05
"""The probability with which the tolerated rate may be exceeded: that of all gates of a model together, and
that of the bound of its stream."""
MOST_SHARE, LEAST_SHARE, SHARE_LOSS = 0.25, 0.01, 0.0025
"""The share of audited texts is SHARE_LOSS over the tolerated rate, within these bounds: 1/4 at 1%, 1/20 at
5%. While no policy is in force it is MOST_SHARE. Then a stream without disagreements may return its first
text after about 1,800 at each rate, and audits of returned texts, which run both levels, cost less where more
is tolerated."""
PATIENCE = 20.0
"""The audits after which a policy whose gate is still closed is given up, times the tolerated rate."""
HOPELESS = -4.0
"""It is also given up once the logarithm of its evidence is below this: it would need long to recover."""


@dataclass(frozen=True)
class Terms:
    """The rate of other answers that a tenant tolerates, and the cost of finding it out."""

    loss: float
    """The fraction of answers that may differ from the large level's."""
    share: float
    """The fraction of texts that are audited while a policy is in force, constant over the stream."""
    error: float = ERROR

    @classmethod
    def of(cls, agreement: float) -> Terms:
        """The terms of a tenant who insists on this fraction of equal answers."""
        loss = 1.0 - agreement
        return cls(loss, min(MOST_SHARE, max(LEAST_SHARE, SHARE_LOSS / loss)))


@dataclass(frozen=True)
class Ticket:
    """One text of the stream, from `begin` until it is settled."""

    policy: int
    """The number of the policy that was tested or used when the text came."""
    in_force: bool
    """True if the text obeys the policy. Otherwise the large level answers it."""
    audited: bool


class Trial:
    """The evidence of one stream for one policy after another. It holds no lock: one thread uses it."""

    def __init__(self, terms: Terms, numbers: Iterator[int] | None = None) -> None:
        """numbers: of the policies, each once. Trials that share one error share them; None: it is alone."""
        self.terms, self._numbers = terms, count() if numbers is None else numbers
        self.policy = next(self._numbers)
        """The number of the present policy."""
        self.texts = self.alarms = 0
        self._disagreed = self._under_way = 0
        """Audits of texts that obeyed a policy: those that disagreed, and those not yet reported."""
        self._gate, self._alarm = self._fresh()

    @property
    def open(self) -> bool:
        """True if the present policy's gate is open."""
        return self._gate.open

    @property
    def own(self) -> Audits:
        """The audits of the present policy until its gate opened, or so far."""
        return self._gate.own

    @property
    def needed(self) -> int:
        """The audits after which the gate opens if no further one disagrees."""
        return self._gate.needed

    @property
    def solvent(self) -> bool:
        """Return True if one more text may obey a policy, whatever the stream has been. If it disagrees, the
        rate is still at most the tolerated one, wrong with the probability `terms.error`."""
        return _solvent(self.texts, self._disagreed + self._under_way, self.terms)

    @property
    def bound(self) -> float:
        """Clopper–Pearson's upper bound of the rate of disagreements in `own`."""
        return upper_bound(self.own, self.terms.error)

    @property
    def hopeless(self) -> bool:
        """True if the present policy should be given up: its gate is closed after too many audits."""
        if self.open or not self.own.disagreed:
            return False
        late = self.own.seen >= PATIENCE / self.terms.loss
        return late or log_evidence(self.own, self.terms.loss) < HOPELESS

    @property
    def share(self) -> float:
        """The probability with which the next text is to be audited.

        While the large level answers every text, it may be any: no answer can disagree, so the bound of the
        stream, which needs a constant share, does not read these audits. They cost the small level alone.
        """
        return self.terms.share if self.open and self.solvent else max(MOST_SHARE, self.terms.share)

    def begin(self, audited: bool) -> Ticket:
        """Count a text. audited: whether it was drawn for an audit, with the probability `share`.

        An audited text must be settled by `record` or `abandon`. Until then it counts as a disagreement.
        """
        ticket = Ticket(self.policy, self.open and self.solvent, audited)
        self.texts += 1
        self._under_way += ticket.in_force and audited
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Take back an audit that will not be reported, such as that of a text that failed.

        Only if the text would have failed without the audit, too. Otherwise texts on which the levels
        disagree might be lost more often than others: then `record` a disagreement.
        """
        self._under_way -= ticket.in_force and ticket.audited

    def record(self, ticket: Ticket, disagrees: bool) -> bool:
        """Take note of an audit: whether the policy's answer differs from the large level's.

        Returns whether the alarm has rung: the stream has drifted, and a fresh policy is to be tested.
        """
        self.abandon(ticket)
        self._disagreed += ticket.in_force and disagrees
        if ticket.policy != self.policy:  # of a policy that was given up meanwhile
            return False
        if not self._gate.open:
            self._gate = self._gate.after(disagrees)
            return False
        self._alarm = self._alarm.after(disagrees)
        if not self._alarm.rung:
            return False
        self.alarms += 1
        self.renew()
        return True

    def renew(self) -> None:
        """Begin anew with another policy, or with the same on a stream that has drifted."""
        self.policy = next(self._numbers)
        self._gate, self._alarm = self._fresh()

    def _fresh(self) -> tuple[Gate, Alarm]:
        loss = self.terms.loss
        return Gate(loss, granted(self.terms.error, self.policy)), Alarm(loss)


@lru_cache(maxsize=1024)
def _least_texts(disagreed: int, terms: Terms) -> int:
    """The least number of texts at which a stream with these disagreements is solvent."""
    low, high = 0, 1
    while not _affordable(high, disagreed, terms):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        enough = _affordable(middle, disagreed, terms)
        low, high = (low, middle) if enough else (middle, high)
    return high


def _affordable(texts: int, disagreed: int, terms: Terms) -> bool:
    """Return True if one more text may disagree. Audits count too: between two roots they get the policy's
    answer."""
    answered = most_disagreements(disagreed, terms.share, terms.error) + disagreed
    return answered + 1.0 <= terms.loss * (texts + 1)


def _solvent(texts: int, disagreed: int, terms: Terms) -> bool:
    return texts >= _least_texts(disagreed, terms)
