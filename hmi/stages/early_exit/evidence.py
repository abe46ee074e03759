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

from hmi.model.tenant.calibration import Floats

_RUN_LENGTH = 10_000
"""The mean number of audits until a false alarm, at least, of a stream at exactly the tolerated rate."""
_FACTOR = 2.0
"""The ratio of neighbouring rates that the alarm listens for."""
HIGHEST = 0.5
"""The highest of these rates, at most; more disagreements than this are recognised as fast."""


@dataclass(frozen=True)
class Alarm:
    """The drift alarm of one policy: has the rate of disagreements risen above what the tenant tolerates?

    The gate's evidence is about the past. The alarm watches the audits of an open gate: a Shiryaev–Roberts
    procedure, averaged over several rates that the stream may have drifted to. For each rate q it keeps
    R ← (R + 1)·L, where L is the likelihood of an audit at q over that at `loss`. While the rate is `loss` or
    less, R − n never rises in expectation over n audits, so the mean number of audits until a false alarm is
    at least `run_length` (an e-detector; Shin, Ramdas and Rinaldo, 2024, "E-detectors"). It keeps ringing
    once it has rung.
    """

    loss: float
    """The tolerated rate of disagreements, above 0 and below 1/2."""
    run_length: int = _RUN_LENGTH
    score: tuple[float, ...] = ()
    """R for each of `rates_above`; empty before the first audit."""
    rung: bool = False

    def __post_init__(self) -> None:
        if not 0.0 < self.loss < HIGHEST:
            raise ValueError(f"alarm: a loss of {self.loss} is not above 0 and below {HIGHEST}")

    def after(self, disagrees: bool) -> Alarm:
        """The alarm after one more audit."""
        rates = rates_above(self.loss)
        likelihood = rates / self.loss if disagrees else (1.0 - rates) / (1.0 - self.loss)
        score = (np.array(self.score or np.zeros(len(rates))) + 1.0) * likelihood
        rings = bool(score.mean() >= self.run_length)
        return replace(self, score=tuple(np.minimum(score, 1e300).tolist()), rung=self.rung or rings)


@lru_cache(maxsize=64)
def rates_above(loss: float) -> Floats:
    """FACTOR, FACTOR², … times the tolerated rate, up to HIGHEST, which is always among them."""
    steps = int(np.floor(np.log(HIGHEST / loss) / np.log(_FACTOR)))
    return np.unique(np.append(loss * _FACTOR ** np.arange(1, steps + 1), HIGHEST))


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
