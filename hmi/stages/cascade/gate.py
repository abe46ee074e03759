"""The evidence for the policies of one model's cascade, from audits of the tenant's own traffic.

A policy is an offer of the profile: dispatcher, ensemble, pruning scale. Several are tested at once, from a
careful one to a bold one, on the same audits. The gate of each opens once its audits suffice, if those of the
more careful ones are open. This is fixed-sequence testing: consider the first policy in the order whose rate
is too high. No later gate opens unless its own does, so the error of one gate is that of the whole round.

While all gates are closed, the large level answers every text, and the policies' answers are compared with
it. The boldest policy whose gate is open is in force, as long as the stream is `solvent` (`Account`). The
alarm closes the gates, and the evidence begins anew.

`hmi.stages.early_exit.control` does the same for policies that it tunes itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count

from hmi.stages.early_exit.account import PHASES, Account, Count, Phase
from hmi.stages.early_exit.evidence import Alarm, Audits, Gate, error_for_policy, log_evidence, upper_bound

ERROR = 0.05
"""The probability with which the tolerated rate may be exceeded: that of all rounds of a model together, and
that of the bound of its stream."""
CLOSED_SHARE = 0.5
"""The share of audited texts while no policy is in force. No answer can disagree then, so the bound of the
stream does not read these audits, and they cost the small level alone."""
PATIENCE = 20.0
"""The audits after which a round without an open gate is given up, times the tolerated rate."""
HOPELESS = -4.0
"""It also is once the logarithm of the most careful policy's evidence is below this: that would need long to
recover."""
ADVANCE_EVERY = 32
"""The texts between looks at whether fewer audits will do."""


@dataclass(frozen=True)
class Terms:
    """The rate of other answers that a tenant tolerates, and the shares of audits that find it out."""

    loss: float
    """The fraction of answers that may differ from the large level's."""
    phases: tuple[Phase, ...] = PHASES
    error: float = ERROR

    @classmethod
    def of(cls, agreement: float) -> Terms:
        """The terms of a tenant who insists on this fraction of equal answers."""
        return cls(1.0 - agreement)


@dataclass(frozen=True, eq=False)
class Ticket:
    """One text of the stream, from `begin` until it is settled."""

    round: int
    """The number of the trial's round when the text came."""
    version: int | None
    """The policy that it obeys; None: the large level answers it."""
    audited: bool
    count: Count
    """The phase of the account that it belongs to."""

    @property
    def in_force(self) -> bool:
        return self.version is not None


class StreamEvidence:
    """The evidence of one stream, for one round of policies after another. It holds no lock: one thread uses
    it."""

    def __init__(self, terms: Terms, numbers: Iterator[int] | None = None, versions: int = 1) -> None:
        """versions: the policies of the first round.

        numbers: of the rounds, each once. Trials that share one error share them; None: it is alone.
        """
        self.terms, self._numbers = terms, count() if numbers is None else numbers
        self.account = Account(terms.loss, terms.error, terms.phases)
        """A text that obeys a policy may disagree whichever level answers it, also with the ensemble of both.
        So it counts like an exit, from its beginning on."""
        self.alarms = 0
        self.present: int | None = None
        """The boldest policy that may be in force; None if there is none."""
        self.alarm = Alarm(terms.loss)
        """The alarm that watches the present policy."""
        self._begin(versions)

    @property
    def texts(self) -> int:
        return self.account.texts

    @property
    def open(self) -> bool:
        """True if a policy's gate is open."""
        return self.present is not None

    @property
    def own(self) -> Audits:
        """The audits of the present policy until its gate opened; of the most careful one if none is open."""
        return self.gates[self.present or 0].own if self.gates else Audits()

    @property
    def needed(self) -> int:
        """The audits after which the gate of `own` opens, or has opened, if no further one disagrees."""
        return self.gates[self.present or 0].needed if self.gates else 0

    @property
    def solvent(self) -> bool:
        """Return True if one more text may obey a policy, whatever the stream has been. If it disagrees, the
        rate is still at most the tolerated one, wrong with the probability `terms.error`."""
        return self.account.solvent

    @property
    def under_way(self) -> int:
        """The audits of texts that obey a policy which are not reported yet."""
        return sum(len(phase.pending) for phase in self.account.counts)

    @property
    def bound(self) -> float:
        """Clopper–Pearson's upper bound of the rate of disagreements in `own`."""
        return upper_bound(self.own, self.terms.error)

    @property
    def hopeless(self) -> bool:
        """True if the round should be given up: its gates are closed after too many audits."""
        if self.open or not self.own.disagreed:
            return False
        late = self.own.seen >= PATIENCE / self.terms.loss
        return late or log_evidence(self.own, self.terms.loss) < HOPELESS

    @property
    def share(self) -> float:
        """The probability with which the next text is to be audited."""
        return self.account.share if self.open and self.solvent else CLOSED_SHARE

    def begin(self, audited: bool) -> Ticket:
        """Count a text. audited: whether it was drawn for an audit, with the probability `share`.

        An audited text must be settled by `record` or `abandon`. Until then it counts as a disagreement.
        """
        account = self.account
        ticket = Ticket(self.round, self.present if self.solvent else None, audited, account.count)
        account.texts += 1
        if ticket.in_force:
            account.left(account.count, ticket if audited else None)
        if self.open and account.texts % ADVANCE_EVERY == 0:  # after the text: its share was the former one
            account.advance(settled=True, ahead=False)  # audits last long: the large level runs afterwards
        return ticket

    def abandon(self, ticket: Ticket) -> None:
        """Take back an audit that will not be reported, such as that of a text that failed.

        Only if the text would have failed without the audit, too. Otherwise texts on which the levels
        disagree might be lost more often than others: then `record` a disagreement.
        """
        ticket.count.pending.pop(ticket, None)

    def record(self, ticket: Ticket, disagrees: Sequence[bool]) -> bool:
        """Take note of an audit. disagrees: whether each policy's answer differs from the large level's.

        Returns whether the alarm has rung: the stream has drifted, and a fresh round is to begin.
        """
        self.abandon(ticket)
        if ticket.version is not None:
            ticket.count.wrong += disagrees[ticket.version]
        if ticket.round != self.round:  # of policies that were given up meanwhile
            return False
        present = self.present
        if present is not None:
            self.alarm = self.alarm.after(disagrees[present])
            if self.alarm.rung:
                self.alarms += 1
                self.renew(len(self.gates))
                return True
        first = 0 if present is None else present + 1
        for i in range(first, len(self.gates)):
            self.gates[i] = self.gates[i].after(disagrees[i])
        while first < len(self.gates) and self.gates[first].open:
            self.present, self.alarm = first, Alarm(self.terms.loss)
            first += 1
        return False

    def renew(self, versions: int) -> None:
        """Begin anew with other policies, or with the same on a stream that has drifted."""
        self._begin(versions)

    def _begin(self, versions: int) -> None:
        loss, self.round = self.terms.loss, next(self._numbers)
        self.gates = [Gate(loss, error_for_policy(self.terms.error, self.round)) for _ in range(versions)]
        self.present, self.alarm = None, Alarm(loss)
