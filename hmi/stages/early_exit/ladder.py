"""Policies from careful to bold, tested in this order on the same audits.

This is fixed-sequence testing, as in Learn then Test (Angelopoulos et al., 2021). The gate of a policy is
open once its own audits reject "its rate is `loss` or more" with the error of the whole ladder, and all gates
before it are open. Consider the first policy in the order whose rate is too high. No later gate opens unless
its own does, and that one ever opens with a probability of at most `error` (`evidence.log_evidence`). So the
number of policies costs no evidence, and the bold ones gather theirs while the careful ones do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hmi.stages.early_exit.evidence import least_audits
from hmi.stages.early_exit.rule import errs

Thresholds = tuple[float, ...]
"""[ramps]"""


@dataclass
class PolicyTests:
    """Policies under test. They were chosen before the first audit that counts here."""

    rungs: tuple[Thresholds, ...]
    """The policies, careful ones first."""
    loss: float
    """The rate of disagreements that the tenant tolerates."""
    error: float
    """The probability with which any gate may open wrongly (`evidence.error_for_policy`)."""
    seen: int = 0
    """The audits so far."""
    wrong: list[int] = field(default_factory=list)
    """[rungs]: those under which each policy would have let the text leave with another answer."""
    opened: int = 0
    """The number of open gates."""

    def __post_init__(self) -> None:
        self.wrong = list(self.wrong) or [0] * len(self.rungs)

    @property
    def top(self) -> Thresholds | None:
        """The boldest policy whose gate is open."""
        return self.rungs[self.opened - 1] if self.opened else None

    @property
    def done(self) -> bool:
        """True if all gates are open."""
        return self.opened == len(self.rungs)

    @property
    def needed(self) -> int:
        """The audits after which the next gate opens if no further one disagrees. Not if `done`."""
        return max(self.seen, least_audits(self.wrong[self.opened], self.loss, self.error))

    def test(self, uncertainty: Sequence[float], agrees: Sequence[bool]) -> bool:
        """Take note of an audit: [ramps] twice. Returns whether a gate opened."""
        self.seen += 1
        for i in range(self.opened, len(self.rungs)):
            self.wrong[i] += errs(uncertainty, agrees, self.rungs[i])
        before = self.opened
        while not self.done and self.seen >= self.needed:
            self.opened += 1
        return self.opened > before
