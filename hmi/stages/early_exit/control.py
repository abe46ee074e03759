"""The control of one model's exits: records in, thresholds in force out.

1. While nothing may leave, every text runs to the end, and is recorded. A window of records gives a policy
   (`thresholds.tune`).
2. Later records test the policy as it stands: its gate opens once they suffice. If they do not, a more
   careful policy is tuned on all records, and tested on later ones.
3. From then on texts leave, as long as the stream is `solvent`. A random share is audited. The audits ring
   the alarm if the stream has drifted, and then everything begins again. They also test a further policy,
   if one would save more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hmi.model.calibration import Floats
from hmi.stages.early_exit.drift import Alarm
from hmi.stages.early_exit.evidence import Audits, Gate, granted, solvent, upper_bound
from hmi.stages.early_exit.rule import exit_index
from hmi.stages.early_exit.thresholds import Window, evaluate, pooled, tune

Bools = NDArray[np.bool_]

TARGET, DOUBT = 0.45, 0.1
"""A policy is tuned so that `upper_bound` of its rate, wrong with the probability DOUBT, is at most this
fraction of the tolerated rate. The search picks what looks best, so the true rate is higher than the one on
the window: without the margin it was .46% with one error in 512 records, and gates need long for such rates
(at a tolerated 1%: 400 audits at 0, some 900 at .25%, 2,400 at .5%). Each failure halves the target."""
PATIENCE = 20.0
"""The audits after which a policy whose gate is still closed is given up, times the tolerated rate."""
MAX_RECORDS = 4096
"""Older records are dropped."""
WORTH, LEAST = 1.05, 0.05
"""A policy is tested if it saves so many times what the present one saves on the records, and at least this
fraction of what it would save if every text left at the first ramp. One that saves less is no better than
none: while nothing leaves, every text is a record, and a good policy is found sooner."""


@dataclass(frozen=True)
class Terms:
    """The bounds that a tenant sets, and the fraction of its texts that may be audited."""

    loss: float = 0.01
    """The tolerated fraction of answers that differ from the full model's."""
    error: float = 0.05
    """The probability with which it may be exceeded: that of all gates together, and that of the bound of
    the stream."""
    share: float = 0.25
    """The fraction of texts that are audited."""
    window: int = 512
    """The number of records before a policy is tuned, and again before a further one is."""


@dataclass(frozen=True)
class Policy:
    """Thresholds with what is known of them."""

    thresholds: tuple[float, ...]
    gate: Gate
    alarm: Alarm

    def errs(self, uncertainty: Floats, agrees: Bools) -> bool:
        """Return whether a text would leave with another answer than the full model's. Both arrays are
        [ramps]."""
        return _errs(uncertainty, agrees, self.thresholds)


class Control:
    """The state of one version of one model. It holds no lock: one thread uses it."""

    def __init__(self, saved_s: Sequence[float], terms: Terms, others: Sequence[Window] = ()) -> None:
        """saved_s: the seconds that an exit at each ramp avoids. others: records of the domain's and the
        root's other tenants, which fill the first window while the model has few of its own."""
        self._saved_s, self._terms, self._others = np.array(saved_s, np.float64), terms, tuple(others)
        self._texts = self._disagreed = self._under_way = self._failures = 0
        self._records: deque[tuple[Floats, Bools]] = deque(maxlen=MAX_RECORDS)
        """The newest last."""
        self._present: Policy | None = None
        """In force: its gate is open."""
        self._tested: Policy | None = None
        """Its gate is closed."""
        self._wait = terms.window - sum(len(window.agrees) for window in others)
        """Records until the next policy is tuned."""
        self.policies = self.alarms = 0
        """The numbers of policies and of alarms so far."""

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The thresholds that the next text obeys."""
        t, disagreed = self._terms, self._disagreed + self._under_way
        if self._present is None or not solvent(self._texts, disagreed, t.share, t.loss, t.error):
            return (0.0,) * len(self._saved_s)
        return self._present.thresholds

    def begin(self, audited: bool) -> tuple[float, ...]:
        """Count a text, and return the thresholds that it obeys. audited: whether it was drawn for an audit.

        If it was, or if the thresholds are all 0, it runs to the end and is reported to `record`. Other texts
        are not, whether they leave or not: those that stay are the hard ones, and would bias the records.
        Until then an audit counts as a disagreement. `abandon` takes back one that will not be reported.
        """
        thresholds = self.thresholds
        self._texts += 1
        self._under_way += audited and any(thresholds)
        return thresholds

    def abandon(self, thresholds: Sequence[float], *, audited: bool) -> None:
        """Take back an audit whose text failed."""
        self._under_way -= audited and any(thresholds)

    def record(
        self,
        uncertainty: Sequence[float],
        agrees: Sequence[bool],
        thresholds: Sequence[float],
        *,
        audited: bool,
    ) -> None:
        """Take note of a text that ran to the end. The first three are [ramps].

        thresholds, audited: those of `begin`.
        """
        self.abandon(thresholds, audited=audited)
        u, right = np.array(uncertainty, np.float64), np.array(agrees, np.bool_)
        self._disagreed += audited and _errs(u, right, thresholds)
        self._wait -= 1
        self._records.append((u, right))
        if self._present is not None:
            alarm = self._present.alarm.after(self._present.errs(u, right))
            self._present = replace(self._present, alarm=alarm)
            if alarm.rung:
                self._begin_again()
        if self._tested is not None:
            self._test(self._tested, u, right)
        elif self._wait <= 0:
            self._tested = self._tune()

    def _begin_again(self) -> None:
        """Forget all records: the stream is another one from here on."""
        self._records.clear()
        self._present = self._tested = None
        self._others, self._failures, self._wait = (), 0, self._terms.window
        self.alarms += 1

    def _test(self, policy: Policy, uncertainty: Floats, agrees: Bools) -> None:
        gate = policy.gate.after(policy.errs(uncertainty, agrees))
        self._tested = replace(policy, gate=gate)
        if gate.open:
            self._present, self._tested = self._tested, None
            self._failures, self._wait = 0, self._terms.window
        elif gate.own.seen >= PATIENCE / self._terms.loss:
            self._failures += 1
            self._tested, self._wait = None, 0 if self._present is None else self._terms.window

    def _tune(self) -> Policy | None:
        """A policy for the newest records, after a failure for all; None if none is worth a test.

        While the model has fewer records than a window, others' are added.
        """
        terms, self._wait = self._terms, self._terms.window
        u, agrees = (np.stack(rows) for rows in zip(*reversed(self._records), strict=True))
        few = len(agrees) < terms.window
        levels = [Window(u, agrees, self._saved_s), *(self._others if few else ())]
        window = pooled(levels, MAX_RECORDS if few or self._failures else terms.window)
        allowed = _most_errors(len(window.agrees), terms.loss * TARGET / 2**self._failures)
        if allowed is None:
            return None
        found = tune(window, allowed)
        now = 0.0 if self._present is None else evaluate(window, [self._present.thresholds])[0][0]
        if found.saved_s <= WORTH * now or found.saved_s < LEAST * self._saved_s.max(initial=0.0):
            return None
        gate = Gate(terms.loss, granted(terms.error, self.policies))
        self.policies += 1
        return Policy(tuple(found.thresholds.tolist()), gate, Alarm(terms.loss))


def _most_errors(texts: int, rate: float) -> int | None:
    """Return the most errors on `texts` records with an upper bound of at most `rate`; None if no number has
    one."""
    fits = [e for e in range(int(texts * rate) + 1) if upper_bound(Audits(texts, e), DOUBT) <= rate]
    return max(fits, default=None)


def _errs(uncertainty: Floats, agrees: Bools, thresholds: Sequence[float]) -> bool:
    index = int(exit_index(uncertainty[None], thresholds)[0])
    return index < len(agrees) and not agrees[index]
