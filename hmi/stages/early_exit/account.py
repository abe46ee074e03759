"""The account of a stream: may one more text leave early without breaking what the tenant tolerates?

Texts that stay earn, texts that leave may spend. The fraction of audited texts falls in phases, since a small
fraction costs a long wait at the beginning (`most_disagreements` without any disagreement is 6.7 early
answers at 1/2, 22 at 1/5 and 47 at 1/10), and a large one costs savings for ever.

Why the bounds of the phases may be added: a phase begins at a time that depends on the past alone. From then
on `most_disagreements` bounds the phase's early answers that disagree, at all times together, with the
probability 1 − (the phase's error). There are three phases, and their errors sum to `error`, so with the
probability 1 − error all three bounds hold at all times. Then the early answers that disagree are at most the
bounds' sum. A phase has no more of them than early answers either, which is certain and costs no error.
`solvent` lets a text leave only if that sum plus 1 is at most `loss` times the texts so far. So with the
probability 1 − error the fraction of answers that disagree never exceeds `loss`, under any drift.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hmi.stages.early_exit.evidence import most_disagreements


@dataclass(frozen=True)
class Phase:
    """A part of a stream with a constant share of audits."""

    share: float
    """The probability with which a text is audited."""
    part: float
    """Of the tenant's error, the part that bounds this phase may use. The parts of all phases sum to 1."""


PHASES = (Phase(1 / 2, 0.4), Phase(1 / 5, 0.3), Phase(1 / 10, 0.3))
AUDITED = PHASES[-1].share
"""The part of the texts that is audited in the long run."""
ROOM = 0.95
"""The next phase begins once its bound without disagreements, with all that is spent, is at most this part of
what the stream has earned."""


@dataclass
class Count:
    """The counts of one phase."""

    disagreed: int = 0
    """The audits that disagreed."""
    under_way: int = 0
    """The audits that are not reported yet. They count as disagreements."""
    free: int = 0
    """The texts that left, or still may: not audited, begun under thresholds above 0, and not known to have
    stayed."""


@dataclass
class Account:
    """The account of one stream."""

    loss: float
    error: float
    phases: tuple[Phase, ...] = PHASES
    texts: int = 0
    phase: int = 0
    counts: list[Count] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.counts or [Count() for _ in self.phases]

    @property
    def share(self) -> float:
        """The probability with which the next text is audited."""
        return self.phases[self.phase].share

    @property
    def count(self) -> Count:
        """The counts of the present phase."""
        return self.counts[self.phase]

    @property
    def spent(self) -> float:
        """A bound of the early answers that disagree so far."""
        return sum(self._bound(i) for i in range(self.phase + 1))

    @property
    def solvent(self) -> bool:
        """True if one more text may leave early."""
        return self.spent + 1.0 <= self.loss * (self.texts + 1)

    def advance(self) -> None:
        """Begin the next phase if the stream can afford it."""
        following = self.phase + 1
        if following < len(self.phases):
            first = most_disagreements(0, self.phases[following].share, self._error(following))
            if self.spent + first <= ROOM * self.loss * self.texts:
                self.phase = following

    def _error(self, phase: int) -> float:
        return self.error * self.phases[phase].part

    def _bound(self, phase: int) -> float:
        count = self.counts[phase]
        if count.free == 0:
            return 0.0
        seen = count.disagreed + count.under_way
        bound = most_disagreements(seen, self.phases[phase].share, self._error(phase))
        return min(float(count.free), bound)
