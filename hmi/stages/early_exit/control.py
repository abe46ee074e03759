"""The control of one model's exits: it gets records of texts, and decides which thresholds are in force.

1. While nothing may leave, every text runs to the end, and is recorded at every ramp. A window of records
   gives a ladder: policies, each with its ramps and their thresholds, from careful to bold (`ladder_of`).
2. Later records test all policies of the ladder, which do not change meanwhile. The gate of a policy opens
   once its records suffice and the gates of all more careful policies are open. The boldest policy with an
   open gate is in force.
3. From then on texts leave, as long as the stream is solvent (`account`). A random share is audited: such a
   text leaves as well, but its rows run on, to be compared. Audits ring the alarm if the stream has drifted,
   and then everything begins again. They also test the rest of the ladder, and a new one, tuned on all
   records, each time that these have doubled.
4. If no policy saves more than the stage takes, the control is off: texts run as if the model had no ramps,
   until an alarm, or until RETRY texts have run; then one more window is collected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmi.model.tenant.calibration import Floats
from hmi.stages.early_exit.account import Account, Count
from hmi.stages.early_exit.evidence import Alarm, Audits, error_for_policy
from hmi.stages.early_exit.ladder import PolicyTests, Thresholds
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.report import State
from hmi.stages.early_exit.rule import errs
from hmi.stages.early_exit.thresholds import ladder_of, net_of, ramps_of

_MAX_RECORDS = 4096
"""Older records are dropped."""
_FIRST = 128
"""The records that there is memory for at first; it doubles when they are full."""


class Records:
    """The newest _MAX_RECORDS records, of 5 bytes for each ramp.

    A record is a text that ran to the end, with what each ramp would have answered.
    """

    def __init__(self, ramps: int) -> None:
        self._uncertainty = np.empty((_FIRST, ramps), np.float32)
        self._agrees = np.empty((_FIRST, ramps), np.bool_)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, _MAX_RECORDS)

    def add(self, uncertainty: ArrayLike, agrees: ArrayLike) -> None:
        """Add a record: both are [ramps]."""
        if self._added == len(self._agrees) < _MAX_RECORDS:
            self._uncertainty = np.concatenate([self._uncertainty, np.empty_like(self._uncertainty)])
            self._agrees = np.concatenate([self._agrees, np.empty_like(self._agrees)])
        at = self._added % _MAX_RECORDS
        self._uncertainty[at], self._agrees[at] = uncertainty, agrees
        self._added += 1

    def fill(self, uncertainty: NDArray[np.float32], agrees: NDArray[np.bool_]) -> None:
        """Put what `newest` gave into new records, at once."""
        self._added = len(agrees)
        size = max(_FIRST, 1 << (self._added - 1).bit_length())
        self._uncertainty = np.resize(uncertainty[::-1], (size, uncertainty.shape[1]))
        self._agrees = np.resize(agrees[::-1], (size, agrees.shape[1]))

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self._uncertainty.nbytes + self._agrees.nbytes

    def newest(self, count: int = _MAX_RECORDS) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Copies of the newest records, the newest first: [at most count, ramps] twice."""
        rows = (self._added - 1 - np.arange(min(count, len(self)))) % _MAX_RECORDS
        return self._uncertainty[rows], self._agrees[rows]


Bools = NDArray[np.bool_]
Recorded = tuple[Floats, Bools]
"""Uncertainty and agreement of records, newest first: [texts, ramps] twice."""

PATIENCE = 20.0
"""A ladder without an open gate is given up after PATIENCE / (tolerated rate) audits: 2,000 at 1%. A ladder
with an open gate is given up after twice as many."""
LADDERS = 3
"""The most ladders that are tested at once. A further one replaces the oldest."""
WORTH, LEAST, KEPT = 1.05, 0.05, 0.01
"""A policy is tested if it saves more than WORTH times what the present one saves on the records, and more
than LEAST of the layers' time. A present policy that saves less than KEPT of the layers' time is given
up."""
WINDOW, LEAST_WINDOW = 5.12, 128
"""The first ladder is tuned on WINDOW / (tolerated rate) records, and on no fewer than LEAST_WINDOW: 512 at
1%. The 128 texts that Apparate uses are too few to estimate a rate of 1%."""
FRUITLESS = 3
"""The control is switched off after this many windows in a row without a policy that is worth a test."""
RETRY = 50_000
"""A control that is off collects one more window after this many texts. At 1% tolerated, the window is about
1% of them."""
SETTLED = 4
"""The windows of records after which fewer texts are audited. Until then, audits often find bolder policies.
"""
ADVANCE_EVERY = 64
"""After each this many texts, the control checks whether fewer audits suffice."""


@dataclass(frozen=True)
class ExitBounds:
    """The bounds that a tenant sets."""

    loss: float = 0.01
    """The tolerated fraction of answers that differ from the full model's."""
    error: float = 0.05
    """The probability with which `loss` may be exceeded. It holds once for all gates together, and once for
    the bound of the whole stream."""

    @property
    def window(self) -> int:
        """The number of records before the first review, and from each to the next."""
        return round(min(_MAX_RECORDS, max(LEAST_WINDOW, WINDOW / self.loss)))  # 1 - .99 is no round .01


@dataclass(frozen=True)
class Policy:
    """Thresholds in force, with the alarm that watches them."""

    thresholds: Thresholds
    alarm: Alarm


@dataclass(eq=False)
class Begun:
    """A text under way. `Control.record` ends a recorded one, `Control.stay` another one that has not left,
    and `Control.abandon` one that gets no answer."""

    thresholds: Thresholds
    """[ramps]: the text may leave at the first ramp whose threshold is above the text's uncertainty there."""
    recorded: bool
    """True if the text's rows run to the end, whatever its thresholds say, and it is recorded at every ramp.
    """
    count: Count
    """The phase of the account in which the text began."""
    left_at: int | None = None
    """The ramp whose answer the text got; None: it has no answer yet."""

    @property
    def audited(self) -> bool:
        """True if it was drawn for an audit while others could leave."""
        return self.recorded and any(self.thresholds)


class Control:
    """The state of one version of one model. It holds no lock: one thread at a time uses it."""

    def __init__(
        self,
        costs: Callable[[], Costs],
        terms: ExitBounds,
        others: Sequence[Recorded] = (),
        *,
        ramps: int = 0,
    ) -> None:
        """costs: returns the present costs, with one time for each ramp: `layer_s` is that of the layers from
        the ramp to the next one. others: records of other models of the domain and the root, which fill the
        first window while the model has few records of its own. ramps: the number of ramps; 0: as many as
        `costs` names."""
        self.terms, self._costs, self._others = terms, costs, tuple(others)
        self.ramps = ramps or len(costs().ramp_s)
        self.account = Account(terms.loss, terms.error)
        self.records = Records(self.ramps)
        self.audits = Audits()
        """The audits of all policies that were in force."""
        self.left_at: Counter[int] = Counter()
        """The texts that left, by ramp."""
        self.checked_at: Counter[int] = Counter()
        """The audited ones among the texts that left, by ramp."""
        self.present: Policy | None = None
        """The policy in force, whose gate is open; None: no text may leave."""
        self.tested: tuple[PolicyTests, ...] = ()
        """The ladders under test, which have closed gates, the newest last."""
        self.wait = terms.window - sum(len(agrees) for _, agrees in others)
        """Records until the next review."""
        self.windows = self.due = 0
        """The reviews so far, and the one at which the next ladder is tuned."""
        self.policies = self.alarms = self.fruitless = 0
        """Three counts: of the ladders so far, of the alarms so far, and of windows and ladders in a row that
        gave no policy."""
        self.off, self.skipped, self.asleep = False, 0, 0
        """Three values: True if the control is off, the texts that ever ran while it was off, and those since
        it was last switched off."""

    @property
    def state(self) -> State:
        if self.off:
            return "off"
        if self.present is not None:
            return "open" if self.account.open else "paused"
        return "testing" if self.tested else "collecting"

    @property
    def nbytes(self) -> int:
        """Bytes of memory of the model's own records and of other models' records."""
        return self.records.nbytes + sum(u.nbytes + agrees.nbytes for u, agrees in self._others)

    @property
    def progress(self) -> tuple[int, int]:
        """The texts that count towards the next state, and how many it takes (`ExitReport.counted`)."""
        if self.state == "collecting":
            window = self.terms.window
            return window - max(0, self.wait), window
        if self.state == "testing":
            return self.tested[-1].seen, self.tested[-1].needed
        return 0, 0

    @property
    def thresholds(self) -> Thresholds:
        """The thresholds that the next text obeys: [ramps]."""
        if self.present is None or not self.account.open:
            return (0.0,) * self.ramps
        return self.present.thresholds

    def begin(self, draw: float) -> Begun | None:
        """Count a text that begins. Return None if the control is off, so that no ramp is computed for the
        text.

        draw: a random number of the text, 0 to 1; the text is audited if it is below the share of audits. A
        text is recorded if it is audited, or if all thresholds are 0. Other texts are not recorded, not even
        those that stay to the end: they are harder than the average text, and would bias the records.
        """
        account = self.account
        if account.texts % ADVANCE_EVERY == 0:
            account.advance(settled=self._settled)
        thresholds, count = self.thresholds, account.count
        account.texts += 1
        if self.off:
            return None
        account.waiting += 1
        return Begun(thresholds, draw < account.share or not any(thresholds), count)

    def skip(self, texts: int) -> bool:
        """Return whether the control is off, and if so, count `texts` texts. They do not count in the
        account."""
        if self.off and self.asleep >= RETRY:
            self.off, self.wait, self.fruitless = False, self.terms.window, FRUITLESS - 1
        if self.off:
            self.skipped += texts
            self.asleep += texts
        return self.off

    def leave(self, begun: Begun, ramp: int) -> bool:
        """Let a text leave with the answer of the ramp `ramp`, unless the account does not allow a further
        disagreement. Return whether the text leaves.

        The rows of an audited text run on. Until it is recorded, it counts as a disagreement.
        """
        if not self.account.solvent:
            return False
        begun.left_at = ramp
        self.account.waiting -= 1
        self.account.left(begun.count, begun if begun.recorded else None)
        self.left_at[ramp] += 1
        self.checked_at[ramp] += begun.recorded
        return True

    def stay(self) -> None:
        """Note a text that gets the full model's answer."""
        self.account.waiting -= 1

    def abandon(self, begun: Begun) -> None:
        """Note that a text ends without the full model's answer. If it has no early answer either, it is not
        counted. If it has one and is audited, it counts as a disagreement, since the answers cannot be
        compared any more."""
        if begun.left_at is None:
            self.account.texts -= 1
            self.account.waiting -= 1
        elif begun.recorded:
            self._ended(begun, wrong=True)

    def record(
        self, uncertainty: Sequence[float] | Floats, agrees: Sequence[bool] | Bools, begun: Begun
    ) -> None:
        """Record a text whose rows ran to the end.

        uncertainty: float [ramps], 0 to 1. agrees: bool [ramps], whether the ramp's answer is the full
        model's.
        """
        u, right = np.asarray(uncertainty, np.float64), np.asarray(agrees, np.bool_)
        us, rights = u.tolist(), right.tolist()
        if begun.left_at is None:
            self.stay()
        else:
            self._ended(begun, wrong=not rights[begun.left_at])
        if begun.audited:
            self.audits = self.audits.plus(errs(us, rights, begun.thresholds))
        self.wait -= 1
        self.records.add(u, right)
        if self.present is not None:
            alarm = self.present.alarm.after(errs(us, rights, self.present.thresholds))
            self.present = replace(self.present, alarm=alarm)
            if alarm.rung:
                self.begin_again()
        self._test(us, rights)
        if self.wait <= 0 and not self.off:
            self._review()

    def obey(self, terms: ExitBounds) -> None:
        """Replace the terms. Policies that were tested under the former terms are dropped.

        The account, the records and the number of policies are kept. So a tenant that changes its terms and
        changes them back gets no more disagreements than before.
        """
        self.terms, self.account.loss = terms, terms.loss
        self.present, self.tested = None, ()
        self.fruitless = self.asleep = self.windows = self.due = 0
        self.off = False
        known = len(self.records) + sum(len(agrees) for _, agrees in self._others)
        self.wait = max(0, terms.window - known)

    def begin_again(self) -> None:
        """Drop all records and policies after an alarm, since the texts have changed. The account is kept."""
        self.records = Records(self.ramps)
        self.present, self.tested = None, ()
        self._others, self.fruitless, self.wait = (), 0, self.terms.window
        self.windows, self.due, self.off = 0, 0, False
        self.alarms += 1

    @property
    def _settled(self) -> bool:
        """True if a policy is in force and SETTLED windows have passed in search of bolder ones."""
        return self.present is not None and self.windows >= min(SETTLED, _MAX_RECORDS // self.terms.window)

    @staticmethod
    def _ended(begun: Begun, *, wrong: bool) -> None:
        """Note that the audit of a text that left has ended. wrong: whether the answers differ."""
        del begun.count.pending[begun]
        begun.count.wrong += wrong

    def _test(self, uncertainty: Sequence[float], agrees: Sequence[bool]) -> None:
        """Test all ladders with one record, and put a policy into force whose gate opens."""
        kept = []
        for ladder in self.tested:
            if ladder.test(uncertainty, agrees) and ladder.top is not None:
                self._use(ladder.top)
            patience = PATIENCE / self.terms.loss * (2 if ladder.opened else 1)
            if not ladder.done and ladder.seen < patience:
                kept.append(ladder)
        if len(kept) < len(self.tested):
            self.tested = tuple(kept)
            if not kept and self.present is None:
                self.fruitless, self.wait = self.fruitless + 1, 0

    def _use(self, thresholds: Thresholds) -> None:
        """Put thresholds with an open gate into force, unless the present ones save more."""
        (u, agrees), costs = self._window(self.terms.window), self._costs()
        now = 0.0 if self.present is None else net_of(u, agrees, costs, self.present.thresholds)
        if net_of(u, agrees, costs, thresholds) > now:
            self.present, self.fruitless = Policy(thresholds, Alarm(self.terms.loss)), 0

    def _review(self) -> None:
        """Give up policies and ladders that save too little by now, and tune a new ladder if it is time for
        one.

        While the model has fewer records than a window, other models' records are added.
        """
        terms, costs, self.wait = self.terms, self._costs(), self.terms.window
        self.windows += 1
        few = len(self.records) < terms.window
        self._others = self._others if few else ()
        u, agrees = self._window(terms.window)
        now = 0.0 if self.present is None else net_of(u, agrees, costs, self.present.thresholds)
        if now < KEPT * costs.full_s:
            self.present, now = None, 0.0
        self.tested = tuple(
            ladder for ladder in self.tested if net_of(u, agrees, costs, ladder.rungs[-1]) > WORTH * now
        )
        if self.windows < self.due and (self.tested or self.present):
            return
        self.due = min(2 * self.windows, self.windows + _MAX_RECORDS // terms.window)
        # After an alarm the older half of the records may be of the texts that rang it.
        u, agrees = self._window(max(terms.window, len(self.records) // 2) if self.alarms else _MAX_RECORDS)
        found = ladder_of(u, agrees, costs, terms.loss)
        least = max(WORTH * now, LEAST * costs.full_s)
        rungs = tuple(one.thresholds for one in found if one.net_s > least)
        if rungs:
            ladder = PolicyTests(rungs, terms.loss, error_for_policy(terms.error, self.policies))
            self.policies += 1
            self.tested = (*self.tested, ladder)[-LADDERS:]
        elif not (few or self.tested or self.present):
            self.fruitless += 1
            hopeless = not ramps_of(u, agrees, costs, int(len(agrees) * terms.loss))
            self.off = hopeless or self.fruitless >= FRUITLESS
            self.asleep = 0

    def _window(self, size: int) -> tuple[Floats, Bools]:
        """Return at most `size` of the newest records: the model's own first, then those of other models."""
        levels = [self.records.newest(size), *self._others]
        u, agrees = (np.concatenate(parts)[:size] for parts in zip(*levels, strict=True))
        return u.astype(np.float64), agrees
