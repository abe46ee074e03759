"""The state of one model's exits: its control, its answers and their labels, behind one lock.

It is written to a small file when it is put away, and read at the model's next text. A file is deleted when
it is read. So after a crash there is none, and the model begins anew: what was counted since the last file is
lost, and with it the account that the guarantee rests on. Then the guarantee holds for the stream since the
crash, with an error of its own. Audits under way are written as if they had disagreed. Texts that have no
answer yet are not counted: they run to the end. Files are not synced, since compute threads write them: after
a power cut one may be damaged, and then its model begins anew, too.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from safetensors.numpy import load, save

from hmi.model.tenant.calibration import Floats
from hmi.stages.base import Text
from hmi.stages.draw import draw
from hmi.stages.early_exit.account import AUDITED, Account, Count
from hmi.stages.early_exit.answers import agrees, short_of
from hmi.stages.early_exit.control import Begun, Bools, Control, ExitBounds, Policy, Recorded
from hmi.stages.early_exit.costs import ExitCosts
from hmi.stages.early_exit.evidence import Alarm, Audits, upper_bound
from hmi.stages.early_exit.labelled import Answers, Labels
from hmi.stages.early_exit.ladder import PolicyTests
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.report import ExitReport, Label, Totals
from hmi.stores.failures import log_failure

log = logging.getLogger("hmi.stages")
_KEPT = 1024
"""The newest records that are written."""
_ACCOUNT = ("texts", "phase", "used")
_PLAIN = ("wait", "windows", "due", "policies", "alarms", "fruitless", "off", "skipped", "asleep")
"""The control's fields that are numbers."""


def _write_snapshot(path: Path, control: Control, besides: dict[str, Any]) -> None:
    """Write the control's state, and what JSON can hold besides.

    A failure is logged: the model begins anew.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        body = _packed_control(control, besides)
        path.write_bytes(xxhash.xxh3_64_digest(body) + body)
    except Exception as error:
        log_failure(log, "the state of a model's early exits could not be written", error)


def _take_snapshot(path: Path, control: Control) -> dict[str, Any] | None:
    """Put the state in this file into a new control, and delete the file. Returns what it held besides; None
    if there is no file.

    A damaged file, or one of other ramps, is deleted too, and the control stays new.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        log_failure(log, "the state of a model's early exits could not be read", error)
        return None
    try:
        path.unlink()  # first, so that no two streams ever spend from one account
        if xxhash.xxh3_64_digest(data[8:]) != data[:8]:
            raise ValueError("the checksum is wrong")
        return _unpack_control(data[8:], control)
    except Exception as error:
        log_failure(log, "the state of a model's early exits is damaged and begins anew", error)
        return None


def _packed_control(control: Control, besides: dict[str, Any]) -> bytes:
    """The control's state as bytes, with what JSON can hold besides."""
    account = control.account
    state = {
        "besides": besides,
        "terms": asdict(control.terms),
        "ramps": control.ramps,
        **{name: getattr(account, name) for name in _ACCOUNT},
        "texts": account.texts - account.waiting,
        "phases": [asdict(phase) for phase in account.phases],
        "counts": [(c.wrong + len(c.pending), c.free) for c in account.counts],
        "audits": asdict(control.audits),
        "left_at": sorted(control.left_at.items()),
        "checked_at": sorted(control.checked_at.items()),
        "present": None if control.present is None else asdict(control.present),
        "tested": [asdict(ladder) for ladder in control.tested],
        **{name: getattr(control, name) for name in _PLAIN},
    }
    u, agrees = control.records.newest(_KEPT)
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    return save({"uncertainty": u, "agrees": agrees, "state": text})


def _unpack_control(data: bytes, control: Control) -> dict[str, Any] | None:
    """Put a state into a new control, unless it is one of other ramps. Returns what it held besides.

    If it is one of other terms, the control obeys its own (`Control.obey`).
    """
    tensors = load(data)
    state: dict[str, Any] = json.loads(tensors["state"].tobytes())
    if state["ramps"] != control.ramps:
        return None
    present = None if state["present"] is None else _policy(state["present"])
    tested = tuple(_ladder(each) for each in state["tested"])
    counts = [Count(wrong, free) for wrong, free in state["counts"]]
    wanted, terms = control.terms, ExitBounds(**state["terms"])
    numbers = {name: state[name] for name in _ACCOUNT}
    account = Account(terms.loss, terms.error, **numbers, counts=counts)
    besides: dict[str, Any] = state["besides"]
    if state["phases"] != [asdict(phase) for phase in account.phases] or terms.error != wanted.error:
        return None
    control.terms, control.account, control.audits = terms, account, Audits(**state["audits"])
    control.left_at = Counter(dict(state["left_at"]))
    control.checked_at = Counter(dict(state["checked_at"]))
    control.present, control.tested = present, tested
    for name in _PLAIN:
        setattr(control, name, state.get(name, getattr(control, name)))
    control.records.fill(tensors["uncertainty"], tensors["agrees"])
    if terms != wanted:
        control.obey(wanted)
    return besides


def _policy(state: dict[str, Any]) -> Policy:
    alarm = state["alarm"]
    return Policy(tuple(state["thresholds"]), Alarm(**{**alarm, "score": tuple(alarm["score"])}))


def _ladder(state: dict[str, Any]) -> PolicyTests:
    return PolicyTests(**{**state, "rungs": tuple(map(tuple, state["rungs"]))})


AUDIT = "audit"
"""The purpose of the draw that decides whether a text is audited."""
SETTLES_S = 30.0
"""The seconds after a change of the objective in which texts under the former one may still come: they were
admitted before it."""
SUMS = ("saved", "avoided", "sooner", "timed")
"""See `ModelState._sums`."""
SMALL = 8192
"""The bytes of a state besides records and answers, about."""


class AnsweredText(NamedTuple):
    """A text with its answer."""

    begun: Begun
    id: str
    """Of its request."""
    short: int
    """The short form of its answer."""


class ModelState:
    """The state of one version of one model. Thread-safe.

    It reads what was put away of it when its first text begins, so that only this model's texts wait for the
    file. Once it is put away itself, no text begins in it any more.
    """

    def __init__(
        self,
        text: Text,
        agreement: float,
        measured: ExitCosts,
        others: Sequence[Recorded] = (),
        path: Path | None = None,
    ) -> None:
        """agreement: the tenant's. others: records of other models with the same task, root and sites. path:
        the file that it is put away in; None: nothing is kept."""
        self.agreement, self.task = agreement, text.task
        self.sites, self.domain = text.version.ramps, text.version.domain
        self.peers = text.task.name, text.version.root, text.version.root_version, self.sites
        """Models that have this in common may choose thresholds by each other's records."""
        self._measured, self._lock = measured, threading.Lock()
        self.control = Control(self._costs, ExitBounds(loss=1.0 - agreement), others, ramps=len(self.sites))
        self.labels, self._answers = Labels(), Answers()
        self._sums = dict.fromkeys(SUMS, 0.0)
        """Sums over texts, in fractions of all upper layers' time: `saved` by exits, less what the stage
        took; `avoided`; by which answers came `sooner`. And `timed`, the number of these texts. Fractions,
        not seconds: the costs are relative numbers before anything is measured."""
        self._borrowed = sum(len(agrees) for _, agrees in others)
        self._path, self._gone = path, False
        self.read = False
        """True once the file has been read, if there was one."""
        self.before: ModelState | None = None
        """The model's former state, which is being put away. Set before the first text begins."""
        self._earlier = 0, 0, 0
        """The audits, disagreements and alarms that were read: not of this run."""
        self._former, self._until = agreement, -math.inf
        """The agreement before the present one, and the time until which its texts may still come."""
        self.nbytes = SMALL + self.control.nbytes + self._answers.nbytes
        """The memory that it takes, about."""

    def begin(self, nonce: str, agreement: float) -> Begun | None:
        """Count a text; None: no ramp is to be asked for it. nonce: the text's, for audits. agreement: the
        tenant's when the text was admitted."""
        with self._lock:
            if self._gone:
                return None
            if not self.read:
                self._take_over()
            if not self._obeys(agreement):
                return None
            return self.control.begin(draw(AUDIT, nonce))

    def put_away(self) -> None:
        """Write what a later state may take over, once, and let no further text begin."""
        with self._lock:
            if not self._gone and self.read and self._path is not None:
                besides = {**self._sums, "labels": asdict(self.labels)}
                _write_snapshot(self._path, self.control, besides)
            elif not self._gone and self.before is not None:
                self.before.put_away()
            self._gone = True

    def discard(self) -> None:
        """Let no further text begin, and write nothing."""
        with self._lock:
            self._gone = True

    def abandon(self, begun: Begun) -> None:
        """Take back a text that got no answer."""
        with self._lock:
            self.control.abandon(begun)

    def skip(self, texts: int) -> bool:
        """Count texts if the control is off; returns whether it is."""
        if not self.control.off:  # read without the lock: one batch more or less does not matter
            return False
        with self._lock:
            return self.control.skip(texts)

    def leave(self, one: AnsweredText, ramp: int) -> bool:
        """Let a text leave with this ramp's answer, if the stream can afford it. Returns whether it does.

        None leaves once the state has been put away: what was written would not know of its early answer.
        """
        with self._lock:
            if self._gone or not self.control.leave(one.begun, ramp):
                return False
            self._answers.add(one.id, one.short, early=True)
            self._sums["sooner"] += self._avoids(ramp)
            if not one.begun.recorded:
                self._ran([one], ramp)
            return True

    def stayed(self, ended: Sequence[AnsweredText]) -> None:
        """Take note of texts that ran to the end, and are not recorded."""
        with self._lock:
            for _ in ended:
                self.control.stay()
            self._ended(ended)

    def record(self, ended: Sequence[AnsweredText], uncertainty: Floats, right: Bools) -> None:
        """Take note of recorded texts: their uncertainty and agreement at each ramp [texts, ramps]."""
        with self._lock:
            left = [one.begun for one in reversed(ended)]
            try:
                for u, agrees in zip(uncertainty, right, strict=True):
                    self.control.record(u, agrees, left.pop())
            finally:  # if one fails, the others do not stay under way
                for begun in left:
                    self.control.abandon(begun)
            self._ended(ended)

    def feedback(self, id: str, label: Label) -> bool:
        """See `Exits.feedback`."""
        with self._lock:
            known = self._answers.take(id)
            if known is None:
                return False
            short, early = known
            truth = short_of(self.task, label)
            self.labels.add(truth is not None and agrees(self.task, short, truth), early=early)
            if self.control.present is not None and self.labels.rings(self.control.terms.loss):
                self.control.begin_again()
                self.labels.begin_again()
            return True

    def records(self) -> Recorded:
        """The newest window of records: [records, ramps] twice."""
        with self._lock:
            u, right = self.control.records.newest(self.control.terms.window)
        return u.astype(float), right

    def report(self) -> ExitReport:
        with self._lock:
            control, account = self.control, self.control.account
            counted, needed = control.progress
            audits, thresholds = control.audits, control.thresholds
            used = control.present.thresholds if control.present else thresholds
            active = [i for i, threshold in enumerate(used) if threshold > 0.0]
            costs, before_s = self._measured.costs(self.sites)
            means = {name: value / max(1, self._sums["timed"]) for name, value in self._sums.items()}
            return ExitReport(
                state=control.state,
                agreement=self.agreement,
                texts=account.texts + control.skipped,
                left={self.sites[i]: n for i, n in sorted(control.left_at.items())},
                share=account.share,
                audits=audits.seen,
                disagreed=audits.disagreed,
                agreement_at_least=1.0 - upper_bound(Audits(audits.seen, audits.disagreed), 0.05),
                sites=tuple(self.sites[i] for i in active),
                thresholds=tuple(thresholds[i] for i in active),
                policies=control.policies,
                alarms=control.alarms,
                saved=means["saved"],
                early=Labels.report(self.labels.early),
                full=Labels.report(self.labels.full),
                counted=counted,
                needed=needed,
                borrowed=min(self._borrowed, max(0, counted - len(control.records))),
                skipped=control.skipped,
                checked={self.sites[i]: n for i, n in sorted(control.checked_at.items())},
                sooner=means["sooner"],
                avoided=means["avoided"],
                layers_ms=1e3 * (before_s + costs.full_s) if self._measured.known else None,
                avoids={site: self._avoids(i) for i, site in enumerate(self.sites)},
            )

    def totals(self) -> Totals:
        """The counts of this model in this run (`Exits.totals`)."""
        with self._lock:
            now = zip(self._counts, self._earlier, strict=True)
            return Totals({self.control.state: 1}, *(count - earlier for count, earlier in now))

    @property
    def _counts(self) -> tuple[int, int, int]:
        audits = self.control.audits
        return audits.seen, audits.disagreed, self.control.alarms

    def _take_over(self) -> None:
        """Read what was put away of the model. The caller holds the lock."""
        if self.before is not None:
            self.before.put_away()
            self.before = None
        found = None if self._path is None else _take_snapshot(self._path, self.control)
        if found is not None:
            if "timed" in found:  # an earlier version wrote seconds
                self._sums = {name: found[name] for name in SUMS}
            self.labels, self._earlier = Labels.of(found["labels"]), self._counts
        self.read = True

    def _obeys(self, agreement: float) -> bool:
        """Return True if the present objective is this one. Takes it over unless the text is older than a
        change."""
        if agreement == self.agreement:
            return True
        now = time.monotonic()
        if agreement == self._former and now < self._until:
            return False
        self._former, self._until, self.agreement = self.agreement, now + SETTLES_S, agreement
        self.control.obey(ExitBounds(loss=1.0 - agreement))
        return True

    def _ended(self, ended: Sequence[AnsweredText]) -> None:
        """Take note of texts that ran to the end."""
        for one in ended:
            if one.begun.left_at is None:
                self._answers.add(one.id, one.short, early=False)
        self._ran(ended, len(self.sites))

    def _ran(self, ended: Sequence[AnsweredText], ramp: int) -> None:
        """Count the time of texts. ramp: the one before which their layers ended; their number for all."""
        costs, before_s = self._measured.costs(self.sites)
        whole_s, avoided = before_s + costs.full_s, self._avoids(ramp)
        for one in ended:
            fixed_s = costs.fixed_s + (one.begun.recorded - AUDITED) * costs.record_s
            self._sums["saved"] += avoided - (fixed_s + _asked_s(costs, one.begun, ramp)) / whole_s
        self._sums["avoided"] += len(ended) * avoided
        self._sums["timed"] += len(ended)
        self.nbytes = SMALL + self.control.nbytes + self._answers.nbytes

    def _avoids(self, ramp: int) -> float:
        """The fraction of all layers' time after a ramp; 0 for the number of ramps."""
        costs, before_s = self._measured.costs(self.sites)
        return costs.rest_s(ramp) / (before_s + costs.full_s) if ramp < len(self.sites) else 0.0

    def _costs(self) -> Costs:
        return self._measured.costs(self.sites)[0]


def _asked_s(costs: Costs, begun: Begun, last: int) -> float:
    """The seconds of the ramps, up to this one, that a text has asked."""
    pairs = zip(costs.ramp_s[: last + 1], begun.thresholds, strict=False)
    return sum(cost for cost, threshold in pairs if begun.recorded or threshold > 0.0)
