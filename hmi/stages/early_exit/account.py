"""The account of a stream: may one more text leave early without breaking what the tenant tolerates?

Each answer earns, and each early answer that may disagree with the full model's spends. An audited text gets
its early answer, too, and runs on to be compared, as in Apparate. So what it spends is known once it has
ended: 1 if it disagreed, else 0. Of the early answers that nobody checks, `most_disagreements` gives a bound.
The fraction of audited texts falls in phases. At first all texts are audited, and nothing needs a bound. A
small fraction makes the stream wait: its bound is 11 early answers at 1/3, 27 at 1/6 and 47 at 1/10, even if
no audit disagrees. A large fraction costs processor time as long as it lasts.

Why the bounds of the phases may be added: a phase begins at a time that depends on the past alone. From then
on `most_disagreements` bounds the phase's unchecked early answers that disagree, at all times together, with
the probability 1 − (the phase's error). The phases' errors sum to `error`, so with the probability 1 − error
all bounds hold at all times. A phase has no more of such answers than unchecked early answers either, which
is certain and costs no error. `solvent` lets a text leave only if all that is spent plus 1 is at most `loss`
times the answers so far, this one included. Texts under way earn nothing yet: they may be many, and may fail.
So with the probability 1 − error the fraction of answers that disagree never exceeds `loss`, under any drift.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

from hmi.stages.early_exit.evidence import most_disagreements


@dataclass(frozen=True)
class Phase:
    """A part of a stream with a constant share of audits."""

    share: float
    """The probability with which a text is audited."""
    part: float
    """Of the tenant's error, the part that bounds this phase may use. The parts of all phases sum to 1."""


PHASES = (Phase(1.0, 0.0), Phase(1 / 3, 0.4), Phase(1 / 6, 0.3), Phase(1 / 10, 0.3))
AUDITED = PHASES[-1].share
"""The part of the texts that is audited in the long run."""
BEGUN, USED = 0.8, 0.9
"""The next phase begins once all that is spent, with the new phase's bound for the texts under way, is at
most the first part of what the stream has earned. While more than the second part is spent, all texts are
audited: then a disagreement costs 1, and any policy whose rate is tolerated earns more than it spends."""


@dataclass
class Count:
    """The counts of one phase: of texts that left early."""

    wrong: int = 0
    """Those whose audits disagreed."""
    free: int = 0
    """Those that are not audited."""
    pending: dict[object, int] = field(default_factory=dict)
    """Those whose audits have not ended yet, oldest first, each with `free` when it left. They count as
    disagreements."""

    @property
    def since(self) -> int:
        """Those that are not audited, and left after the oldest one whose audit has not ended."""
        return self.free - next(iter(self.pending.values()), self.free)


@dataclass
class Account:
    """The account of one stream."""

    loss: float
    error: float
    phases: tuple[Phase, ...] = PHASES
    texts: int = 0
    """Those that have begun."""
    waiting: int = 0
    """Those of them that have no answer yet."""
    phase: int = 0
    """The last phase that has begun."""
    used: int = 0
    """The phase of the next text: the first or the last that has begun."""
    counts: list[Count] = field(default_factory=list)
    peak: int = 0
    """The most audits that were under way at once since the last `advance`."""

    def __post_init__(self) -> None:
        self.counts = self.counts or [Count() for _ in self.phases]

    @property
    def share(self) -> float:
        """The probability with which the next text is audited."""
        return self.phases[self.used].share

    @property
    def count(self) -> Count:
        """The counts of the phase of the next text."""
        return self.counts[self.used]

    def left(self, count: Count, text: object | None) -> None:
        """Take note of a text of this phase that leaves early. text: it if it is audited, else None."""
        if text is None:
            count.free += 1
            return
        count.pending[text] = count.free
        self.peak = max(self.peak, len(count.pending))

    @property
    def solvent(self) -> bool:
        """True if a text that waits may leave early."""
        return self._spent(pending=True) + 1.0 <= self.loss * (self.texts - self.waiting + 1)

    @property
    def open(self) -> bool:
        """True if one more text may leave early once all texts under way have ended well."""
        return self._spent(pending=False) + 1.0 <= self.loss * (self.texts + 1)

    def advance(self, *, settled: bool, ahead: bool = True) -> None:
        """Choose the phase of the coming texts.

        settled: whether fewer audits than all will do. ahead: whether a phase must be able to bear as many
        audits under way as there are; else they are taken to agree.
        """
        earned, following = self.loss * self.texts, self.phase + 1
        if settled and following < len(self.phases):
            share = self.phases[following].share
            peak = self.peak if ahead else 0
            pending = ceil(peak * share / self.share)  # as many texts are under way then
            others = ceil(pending * (1.0 - share) / share)
            first = pending + self._unchecked(following, 0, pending, others)
            if self._spent(pending=False) + first <= BEGUN * earned:
                self.phase = following
        rich = self._spent(pending=ahead) <= USED * earned
        self.used, self.peak = self.phase if settled and rich else 0, len(self.count.pending)

    def _spent(self, *, pending: bool) -> float:
        """A bound of the early answers that disagree so far. pending: count audits under way as such."""
        spent = 0.0
        for i, count in enumerate(self.counts[: self.phase + 1]):
            more = len(count.pending) if pending else 0
            spent += count.wrong + more
            if count.free:
                spent += min(count.free, self._unchecked(i, count.wrong, more, count.since if pending else 0))
        return spent

    def _unchecked(self, phase: int, wrong: int, pending: int, since: int) -> float:
        """A bound of a phase's unchecked early answers that disagree.

        since: those of them that left after the oldest text whose audit is pending. Until then all audits are
        known, so `wrong` bounds the unchecked answers before, and each later one counts as a disagreement.
        """
        share, error = self.phases[phase].share, self.error * self.phases[phase].part
        known = most_disagreements(wrong, share, error) + since
        return min(known, most_disagreements(wrong + pending, share, error))
