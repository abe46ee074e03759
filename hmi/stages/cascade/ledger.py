"""The account of a stream of texts whose cascade may answer: may one more text obey a policy?

As `hmi.stages.early_exit.account`, for policies whose texts may disagree whichever level answers them: the
ensemble of both, too. Each text earns. A text that obeys a policy may spend: it gets the policy's answer,
and if it is audited, what it spent is known once the audit has ended. Of those that nobody checks,
`most_disagreements` gives a bound. At first all texts are audited, and nothing needs a bound; then the share
falls in phases. Each phase begins at a time that depends on the past alone, so its bound holds with its own
part of the error, and all of them together with the sum.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hmi.stages.early_exit.account import BEGUN, PHASES, USED, Phase
from hmi.stages.early_exit.evidence import most_disagreements


@dataclass
class Count:
    """The texts of one phase that obeyed a policy."""

    wrong: int = 0
    """Those whose audits disagreed."""
    under_way: int = 0
    """Those whose audits are not reported yet. They count as disagreements."""
    free: int = 0
    """Those that are not audited."""


@dataclass
class Ledger:
    """The account of one stream."""

    loss: float
    """The fraction of answers that may differ from the large level's."""
    error: float
    """The probability with which more may."""
    phases: tuple[Phase, ...] = PHASES
    texts: int = 0
    phase: int = 0
    """The last one that has begun."""
    used: int = 0
    """The phase of the next text: the first or the last that has begun."""
    counts: list[Count] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = self.counts or [Count() for _ in self.phases]

    @property
    def share(self) -> float:
        """The probability with which the next text is audited if it obeys a policy."""
        return self.phases[self.used].share

    @property
    def count(self) -> Count:
        """The counts of the phase of the next text."""
        return self.counts[self.used]

    @property
    def solvent(self) -> bool:
        """True if one more text may disagree, and the fraction is still at most `loss`. Audits under way
        count as if they disagreed."""
        return self._spent(under_way=True) + 1.0 <= self.loss * (self.texts + 1)

    def advance(self) -> None:
        """Choose the phase of the coming texts. Audits under way will mostly have agreed by then."""
        earned, spent, following = self.loss * self.texts, self._spent(under_way=False), self.phase + 1
        if following < len(self.phases) and spent + self._unchecked(following, 0) <= BEGUN * earned:
            self.phase = following
        self.used = self.phase if spent <= USED * earned else 0

    def _spent(self, *, under_way: bool) -> float:
        """A bound of the answers so far that disagree."""
        spent = 0.0
        for phase, count in enumerate(self.counts[: self.phase + 1]):
            seen = count.wrong + (count.under_way if under_way else 0)
            spent += seen + (min(count.free, self._unchecked(phase, seen)) if count.free else 0.0)
        return spent

    def _unchecked(self, phase: int, seen: int) -> float:
        """A bound of a phase's answers that nobody checks and that disagree. seen: audits that did."""
        return most_disagreements(seen, self.phases[phase].share, self.error * self.phases[phase].part)
