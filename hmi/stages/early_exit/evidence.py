"""Evidence from audits that a policy may be used: does a tenant's early answer equal the full model's?

An audit is a text, drawn at random, whose rows run to the end whatever the policy decides. It disagrees if
the policy lets it leave, or would have let it leave, with another answer. The rate in question is that of
disagreements among all of the tenant's texts, those that stay to the end included.

Three statements are kept apart:

- `upper_bound`: Clopper–Pearson's bound after a number of audits that was fixed beforehand. For reports.
- `Gate`: opens for a policy once the tenant's own audits reject "the rate is `loss` or more". It may be read
  after each audit, since it is an e-process: by Ville's inequality, the probability that it ever opens for a
  policy whose rate is `loss` or more is at most the error that was granted, however often it is read.
- `most_disagreements`: how many unchecked early answers of a stream disagreed so far at most, whatever the
  stream does.

Only the tenant's own audits count here. Other tenants' records may choose a policy (`Control`), but say
nothing about this tenant's rate. docs/design/0012-exits-and-cascades.md has the proofs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.special import betainc, betaincinv, betaln

STRENGTHS = np.array([0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
"""The values of λ over which `most_disagreements` takes the best."""
PARTS = np.array([1, 1, 1, 1, 2, 6]) / 12
"""The part of the error that each of them gets. A large λ is best while few audits disagree."""

SMALLEST = 1e-290
"""Below this a part of a distribution has lost digits, and counts as 0: less evidence than there is."""


@dataclass(frozen=True)
class Audits:
    """A number of audits, and how many of them disagreed."""

    seen: int = 0
    disagreed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.disagreed <= self.seen:
            raise ValueError(f"audits: {self.disagreed} of {self.seen} cannot disagree")

    def plus(self, disagrees: bool) -> Audits:
        return Audits(self.seen + 1, self.disagreed + disagrees)


def upper_bound(audits: Audits, error: float) -> float:
    """Clopper–Pearson's upper bound of the rate: wrong with at most this probability. 1 without audits.

    It holds for a number of audits that does not depend on their outcomes, so not at the moment at which the
    bound first looks good.
    """
    if audits.disagreed == audits.seen:
        return 1.0
    return float(betaincinv(audits.disagreed + 1, audits.seen - audits.disagreed, 1.0 - error))


@lru_cache(maxsize=4096)
def log_evidence(audits: Audits, loss: float) -> float:
    """The logarithm of the e-process against "the rate is `loss` or more", after these audits.

    The likelihood of the audits, averaged over the rates below `loss`, over that at `loss`. The average is by
    a Beta(1/2, 2 / loss), whose mean is about loss / 4. If the rate is `loss` or more, the expectation of
    exp(log_evidence) after each further audit is at most its present value.
    """
    x, n, a, b = audits.disagreed, audits.seen, 0.5, 2.0 / loss
    kept = betainc(a + x, b + n - x, loss)
    if kept < SMALLEST:
        return -np.inf
    above = betaln(a + x, b + n - x) + np.log(kept)
    below = betaln(a, b) + np.log(betainc(a, b, loss))
    return float(above - below - x * np.log(loss) - (n - x) * np.log1p(-loss))


def error_for_policy(error: float, policy: int) -> float:
    """The error for a tenant's policy, counted from 0: error / ((policy + 1)(policy + 2)), in sum `error`.

    So the error bounds the probability that any of all the policies that the tenant ever tries is let through
    wrongly, although each failure leads to a new attempt.
    """
    return error / ((policy + 1) * (policy + 2))


@dataclass(frozen=True)
class Gate:
    """The gate of one policy, which is used while the gate is open. It begins closed, and stays open once the
    evidence has sufficed.

    A policy is fixed: with other thresholds, ramps or weights it is another one, with a gate of its own.
    """

    loss: float
    """The rate of disagreements that the tenant tolerates, above 0 and below 1."""
    error: float
    """The probability with which the gate may open wrongly (`error_for_policy`)."""
    own: Audits = Audits()
    """The tenant's own audits of this policy, none of which chose it."""
    open: bool = False

    def __post_init__(self) -> None:
        if not (0.0 < self.loss < 1.0 and 0.0 < self.error < 1.0):
            raise ValueError(f"gate: loss {self.loss} and error {self.error} must be between 0 and 1")

    def after(self, disagrees: bool) -> Gate:
        """The gate after one more audit."""
        own = self.own.plus(disagrees)
        return replace(self, own=own, open=self.open or self._enough(own))

    @property
    def needed(self) -> int:
        """The audits after which it opens if no further one disagrees."""
        return max(self.own.seen, least_audits(self.own.disagreed, self.loss, self.error))

    def _enough(self, own: Audits) -> bool:
        return own.seen >= least_audits(own.disagreed, self.loss, self.error)


@lru_cache(maxsize=4096)
def least_audits(disagreed: int, loss: float, error: float) -> int:
    """Return the number of audits at which a gate opens. disagreed: how many of them disagree.

    With more audits it is open, too: one that agrees always adds to the evidence.
    """

    def enough(seen: int) -> bool:
        return bool(log_evidence(Audits(seen, disagreed), loss) >= -np.log(error))

    high = max(1, disagreed)
    while not enough(high):
        high *= 2
    low = max(high // 2, disagreed - 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@lru_cache(maxsize=4096)
def most_disagreements(disagreed: int, share: float, error: float) -> float:
    """An upper bound of the unchecked early answers of a stream so far that differ from the full model's.

    disagreed: the early answers whose audits disagreed. share: the probability with which each text was
    audited, drawn independently of the text and constant over the stream. The bound is wrong with at most the
    probability `error`, at all times together. Nothing is assumed of the stream: it may drift, and thresholds
    may change at will.

    A text that leaves wrongly is audited with the probability `share`, and otherwise unchecked. So for each λ
    the product over texts of exp(c·w − λ·x), with w whether it was wrong and unchecked, x whether it was
    wrong and audited and c = ln((1 − share·exp(−λ)) / (1 − share)), has expectation 1, and Ville's inequality
    bounds c·W − λ·X.
    """
    if not 0.0 < share <= 1.0:
        raise ValueError(f"share: {share} is not a probability above 0")
    if share == 1.0:
        return 0.0
    c = np.log1p(-share * np.exp(-STRENGTHS)) - np.log1p(-share)
    return float(((STRENGTHS * disagreed - np.log(PARTS * error)) / c).min())
