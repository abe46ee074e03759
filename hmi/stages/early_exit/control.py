"""The control of one model's exits: records in, thresholds in force out.

1. While nothing may leave, every text runs to the end, and is recorded at every ramp. A window of records
   gives a policy: the ramps in use, and their thresholds (`choice.choose`).
2. Later records test the policy as it stands: its gate opens once they suffice. If they do not, a more
   careful policy is tuned on all records, and tested on later ones.
3. From then on texts leave, as long as the stream is solvent (`account`). A random share is audited. The
   audits ring the alarm if the stream has drifted, and then everything begins again. They also test a further
   policy, if one would save more.
4. If no policy saves more than the stage takes, the control is off: texts run as if the model had no ramps,
   until an alarm, or until RETRY texts have run; then one more window is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from hmi.model.calibration import Floats
from hmi.stages.early_exit.account import Account, Count
from hmi.stages.early_exit.choice import choose, net_of
from hmi.stages.early_exit.drift import Alarm
from hmi.stages.early_exit.evidence import Audits, Gate, granted, upper_bound
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.records import MAX_RECORDS, Records
from hmi.stages.early_exit.report import State

Bools = NDArray[np.bool_]
Recorded = tuple[Floats, Bools]
"""Uncertainty and agreement of records, newest first: [texts, ramps] twice."""

TARGET, DOUBT = 0.45, 0.1
"""A policy is tuned so that `upper_bound` of its rate, wrong with the probability DOUBT, is at most this
fraction of the tolerated rate. The search picks what looks best, so the true rate is higher than the one on
the window: without the margin it was .46% with one error in 512 records, and gates need long for such rates
(at a tolerated 1%: 400 audits at 0, some 900 at .25%, 2,400 at .5%). Each failure halves the target."""
PATIENCE = 20.0
"""The audits after which a policy whose gate is still closed is given up, times the tolerated rate."""
WORTH, LEAST, KEPT = 1.05, 0.05, 0.01
"""A policy is tested if it saves so many times what the present one saves on the records, and at least this
fraction of what it would save if every text left at the first ramp. A present one that saves less than KEPT
of it is given up. One that saves less is no better than
none: while nothing leaves, every text is a record, and a good policy is found sooner."""
WINDOW, LEAST_WINDOW = 5.12, 128
"""The records before a policy is tuned, times the tolerated rate: with 512 at 1%, a policy without an error
among them is within TARGET. Apparate's 128 texts tell nothing of a rate of 1%."""
CAREFUL = (0.5, 0.75, 1.0)
"""Versions of a policy that are tested side by side: they let this part of its early texts leave, the surest.
The first two give up little, and their gates open sooner: the tuned thresholds lie just below the errors of
their window, so their own rate is near what the gate can tell from too high."""
FRUITLESS = 3
"""The windows in a row without a policy that is worth a test, after which the control is off."""
RETRY = 50_000
"""The texts after which a control that is off collects one more window: it costs about 1% of them."""
ADVANCE_EVERY = 64
"""The texts between looks at whether fewer audits will do."""


@dataclass(frozen=True)
class Terms:
    """The bounds that a tenant sets."""

    loss: float = 0.01
    """The tolerated fraction of answers that differ from the full model's."""
    error: float = 0.05
    """The probability with which it may be exceeded: that of all gates together, and that of the bound of
    the stream."""

    @property
    def window(self) -> int:
        """The number of records before a policy is tuned, and again before a further one is."""
        return round(min(MAX_RECORDS, max(LEAST_WINDOW, WINDOW / self.loss)))  # 1 - .99 is no round .01


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


@dataclass(frozen=True)
class Begun:
    """A text under way. Exactly one of `Control.record`, `left`, `stayed` and `abandon` ends it."""

    thresholds: tuple[float, ...]
    """[ramps]: it leaves at the first ramp whose threshold is above its uncertainty."""
    recorded: bool
    """It runs to the end, whatever its thresholds, and is recorded at every ramp."""
    count: Count
    """The phase of the account that it belongs to."""

    @property
    def audited(self) -> bool:
        """True if it was drawn for an audit while others could leave."""
        return self.recorded and any(self.thresholds)


class Control:
    """The state of one version of one model. It holds no lock: one thread at a time uses it."""

    def __init__(
        self, costs: Callable[[], Costs], terms: Terms, others: Sequence[Recorded] = (), *, ramps: int = 0
    ) -> None:
        """costs: the present ones, with one time for each ramp: `layer_s` of the layers up to the next ramp.

        others: records of the domain's and the root's other models, which fill the first window while the
        model has few of its own.
        """
        self.terms, self._costs, self._others = terms, costs, tuple(others)
        self.ramps = ramps or len(costs().ramp_s)
        self.account = Account(terms.loss, terms.error)
        self.records = Records(self.ramps)
        self.audits = Audits()
        """Of all policies that were in force."""
        self.left_at: Counter[int] = Counter()
        """The texts that left, by ramp."""
        self.present: Policy | None = None
        """In force: its gate is open."""
        self.tested: tuple[Policy, ...] = ()
        """Versions of one policy whose gates are closed. The last saves most."""
        self.wait = terms.window - sum(len(agrees) for _, agrees in others)
        """Records until the next policy is tuned."""
        self.policies = self.alarms = self.failures = self.fruitless = 0
        """The numbers of policies and of alarms so far, of failures in a row, and of windows in a row without
        a policy."""
        self.off, self.skipped, self.asleep = False, 0, 0
        """Three values: True if it is off, the texts that ran while it was off, and those since it was last
        put off."""

    @property
    def state(self) -> State:
        if self.off:
            return "off"
        if self.present is not None:
            return "open" if self.account.solvent else "paused"
        return "testing" if self.tested else "collecting"

    @property
    def nbytes(self) -> int:
        """The memory of its records and of others'."""
        return self.records.nbytes + sum(u.nbytes + agrees.nbytes for u, agrees in self._others)

    @property
    def progress(self) -> tuple[int, int]:
        """The texts that count towards the next state, and how many it takes (`ExitReport.counted`)."""
        if self.state == "collecting":
            window = self.terms.window
            return window - max(0, self.wait), window
        if self.state == "testing":  # the most careful policy, whose gate opens first
            return self.tested[0].gate.own.seen, self.tested[0].gate.needed
        return 0, 0

    @property
    def thresholds(self) -> tuple[float, ...]:
        """The thresholds that the next text obeys: [ramps]."""
        if self.present is None or not self.account.solvent:
            return (0.0,) * self.ramps
        return self.present.thresholds

    def begin(self, draw: float) -> Begun | None:
        """Count a text; None: no ramp is to be asked for it. draw: its own, for audits.

        If it was drawn for an audit, or if the thresholds are all 0, it runs to the end and is recorded.
        Other texts are not, whether they leave or not: those that stay are the hard ones, and would bias the
        records. Until it is recorded, an audit counts as a disagreement.
        """
        account = self.account
        if account.texts % ADVANCE_EVERY == 0 and self.present is not None:
            account.advance()
        thresholds, count = self.thresholds, account.count
        account.texts += 1
        if self.off:
            return None
        if not any(thresholds):
            return Begun(thresholds, True, count)
        audited = draw < account.share
        count.under_way += audited
        count.free += not audited
        return Begun(thresholds, audited, count)

    def skip(self, texts: int) -> bool:
        """Count texts that run while it is off; returns whether it is. They earn nothing in the account."""
        if self.off and self.asleep >= RETRY:
            self.off, self.wait, self.fruitless = False, self.terms.window, FRUITLESS - 1
        if self.off:
            self.skipped += texts
            self.asleep += texts
        return self.off

    def left(self, begun: Begun, ramp: int) -> None:
        """Take note of a text that left."""
        self.left_at[ramp] += 1

    def stayed(self, begun: Begun) -> None:
        """Take note of a text that could have left, and ran to the end."""
        begun.count.free -= 1

    def abandon(self, begun: Begun) -> None:
        """Take back a text that got no answer."""
        self.account.texts -= 1
        self._end(begun)

    def record(
        self, uncertainty: Sequence[float] | Floats, agrees: Sequence[bool] | Bools, begun: Begun
    ) -> None:
        """Take note of a recorded text that ran to the end. The arrays are [ramps]."""
        self._end(begun)
        u, right = np.asarray(uncertainty, np.float64), np.asarray(agrees, np.bool_)
        if begun.audited:
            wrong = _errs(u, right, begun.thresholds)
            begun.count.disagreed += wrong
            self.audits = self.audits.plus(wrong)
        self.wait -= 1
        self.records.add(u, right)
        if self.present is not None:
            alarm = self.present.alarm.after(self.present.errs(u, right))
            self.present = replace(self.present, alarm=alarm)
            if alarm.rung:
                self.begin_again()
        if self.tested and self.wait <= 0:
            self._review()
        if self.tested:
            self._test(u, right)
        elif self.wait <= 0 and not self.off:
            self.tested = self._tune()

    def obey(self, terms: Terms) -> None:
        """Obey other terms. Account, records and the number of policies go on, so that to change terms and to
        change them back buys no further disagreements. What was certified for the former ones is dropped."""
        self.terms, self.account.loss = terms, terms.loss
        self.present, self.tested = None, ()
        self.failures = self.fruitless = self.asleep = 0
        self.off = False
        known = len(self.records) + sum(len(agrees) for _, agrees in self._others)
        self.wait = max(0, terms.window - known)

    def begin_again(self) -> None:
        """Forget all records: the stream is another one from here on. The account goes on."""
        self.records = Records(self.ramps)
        self.present, self.tested = None, ()
        self._others, self.failures, self.fruitless, self.wait = (), 0, 0, self.terms.window
        self.off = False
        self.alarms += 1

    @staticmethod
    def _end(begun: Begun) -> None:
        if begun.audited:
            begun.count.under_way -= 1
        elif not begun.recorded:
            begun.count.free -= 1

    def _test(self, uncertainty: Floats, agrees: Bools) -> None:
        tested = [replace(p, gate=p.gate.after(p.errs(uncertainty, agrees))) for p in self.tested]
        opened = max((i for i, policy in enumerate(tested) if policy.gate.open), default=None)
        if opened is not None:
            self.present, self.failures = tested[opened], 0
            tested = tested[opened + 1 :]
        if tested and tested[0].gate.own.seen >= PATIENCE / self.terms.loss:
            tested = []
            self.failures += self.present is None
        if not tested:
            self.wait = 0 if self.present is None else self.terms.window
        self.tested = tuple(tested)

    def _review(self) -> None:
        """Give up what has come to save less than it takes, since tests may last for many windows."""
        (u, agrees), costs, self.wait = self._window(False), self._costs(), self.terms.window

        def pays(policy: Policy) -> bool:
            return net_of(u, agrees, costs, policy.thresholds) >= KEPT * costs.full_s

        self.tested = tuple(filter(pays, self.tested))
        self.present = self.present if self.present is not None and pays(self.present) else None
        if not self.tested:
            self.wait = 0

    def _tune(self) -> tuple[Policy, ...]:
        """Policies for the newest records, after a failure for all; () if none is worth a test.

        While the model has fewer records than a window, others' are added. A policy in force that loses time
        is given up, and the control is off if no ramp can save any.
        """
        terms, costs, self.wait = self.terms, self._costs(), self.terms.window
        few = len(self.records) < terms.window
        self._others = self._others if few else ()
        u, agrees = self._window(few)
        now = 0.0 if self.present is None else net_of(u, agrees, costs, self.present.thresholds)
        if now < KEPT * costs.full_s:
            self.present, now = None, 0.0
        allowed = most_errors(len(agrees), terms.loss * TARGET / 2**self.failures)
        found = None if allowed is None else choose(u, agrees, costs, allowed)
        if found is None or found.net_s <= WORTH * now or found.net_s < LEAST * costs.full_s:
            self._without(not few and self.present is None, u, agrees, costs)
            return ()
        self.fruitless = 0
        return tuple(self._policy(_surest(u, found.thresholds, part)) for part in CAREFUL)

    def _policy(self, thresholds: tuple[float, ...]) -> Policy:
        gate = Gate(self.terms.loss, granted(self.terms.error, self.policies))
        self.policies += 1
        return Policy(thresholds, gate, Alarm(self.terms.loss))

    def _without(self, whole: bool, u: Floats, agrees: Bools, costs: Costs) -> None:
        """Count a whole window without a policy; off if none is to be expected of a further one."""
        if whole:
            self.fruitless += 1
            hopeless = choose(u, agrees, costs, int(len(agrees) * self.terms.loss)).net_s <= 0.0
            self.off = hopeless or self.fruitless >= FRUITLESS
            self.asleep = 0

    def _window(self, few: bool) -> tuple[Floats, Bools]:
        """The records that choose a policy: own first, then the domain's, then the root's."""
        size = MAX_RECORDS if few or self.failures else self.terms.window
        levels = [self.records.newest(size), *(self._others if few else ())]
        u, agrees = (np.concatenate(parts)[:size] for parts in zip(*levels, strict=True))
        return u.astype(np.float64), agrees


def most_errors(texts: int, rate: float) -> int | None:
    """Return the most errors on `texts` records with an upper bound of at most `rate`; None if no number has
    one."""
    fits = [e for e in range(int(texts * rate) + 1) if upper_bound(Audits(texts, e), DOUBT) <= rate]
    return max(fits, default=None)


def _surest(uncertainty: Floats, thresholds: Sequence[float], part: float) -> tuple[float, ...]:
    """Thresholds that let this part of the texts leave at each ramp that would leave there by itself."""
    if part == 1.0:
        return tuple(thresholds)
    low = [u[u < t] for u, t in zip(uncertainty.T, thresholds, strict=True)]
    return tuple(float(np.quantile(u, part)) if len(u) else 0.0 for u in low)


def _errs(uncertainty: Floats, agrees: Bools, thresholds: Sequence[float]) -> bool:
    """See `rule.exit_index`, which is slower for one text."""
    for u, right, threshold in zip(uncertainty.tolist(), agrees.tolist(), thresholds, strict=True):
        if u < threshold:
            return not right
    return False
