"""Late labels: the answers that a model gave lately, and how many of them proved right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash

from hmi.stages.early_exit.evidence import Audits, error_for_policy, upper_bound
from hmi.stages.early_exit.report import LabelAgreement

REMEMBERED = 4096
"""The answers of a model that are remembered."""
FIRST = 128
"""The answers that there is memory for at first; it doubles when they are full."""
FIRST_LOOK = 32
"""The labels at which early and full answers are compared first; then at twice as many, and so on."""
ERROR = 0.05
"""The probability that the comparison ever rings wrongly; also that of each bound in reports."""


class Answers:
    """The newest answers by the id of their text. Ids are kept as hashes, so an answer takes 17 bytes."""

    def __init__(self) -> None:
        self._ids, self._shorts = np.zeros(FIRST, np.uint64), np.zeros(FIRST, np.uint64)
        self._early = np.zeros(FIRST, np.bool_)
        self._added = 0

    def add(self, id: str, short: int, *, early: bool) -> None:
        """Remember an answer in its short form. early: whether the text left early."""
        if self._added == len(self._ids) < REMEMBERED:
            self._ids = np.concatenate([self._ids, np.zeros_like(self._ids)])
            self._shorts = np.concatenate([self._shorts, np.zeros_like(self._shorts)])
            self._early = np.concatenate([self._early, np.zeros_like(self._early)])
        at = self._added % REMEMBERED
        self._ids[at], self._shorts[at], self._early[at] = _hash(id), short, early
        self._added += 1

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self._ids.nbytes + self._shorts.nbytes + self._early.nbytes

    def take(self, id: str) -> tuple[int, bool] | None:
        """The short form of the newest answer with this id, and whether it was early; forgets it. None if
        there is none."""
        found = np.flatnonzero(self._ids == _hash(id))
        if not len(found):
            return None
        at = int(found[np.argmin((self._added - 1 - found) % len(self._ids))])  # the newest of them
        self._ids[at] = 0
        return int(self._shorts[at]), bool(self._early[at])


@dataclass
class Labels:
    """Counts of answers that got a label, since the model's last alarm."""

    early: Audits = field(default_factory=Audits)
    """Answers that were wrong count as `disagreed`."""
    full: Audits = field(default_factory=Audits)
    looks: int = 0
    """The comparisons so far, also those before the last alarm: each took its part of ERROR."""
    due: int = FIRST_LOOK
    """The labels at which the next one is made."""

    @classmethod
    def of(cls, state: dict[str, Any]) -> Labels:
        """The inverse of `asdict`."""
        early, full = Audits(**state.pop("early")), Audits(**state.pop("full"))
        return cls(early, full, **state)

    def begin_again(self) -> None:
        """Count from 0, after an alarm."""
        self.early, self.full, self.due = Audits(), Audits(), FIRST_LOOK

    def add(self, right: bool, *, early: bool) -> None:
        if early:
            self.early = self.early.plus(not right)
        else:
            self.full = self.full.plus(not right)

    def rings(self, loss: float) -> bool:
        """Return whether early answers are surely less often right than full ones, by more than `loss`.

        Texts that leave are the easy ones, so on a stream that has not changed they are right more often.
        The bounds of both rates are Clopper and Pearson's. They are compared only at 32, 64, 128 … labels.
        Comparison k gets `error_for_policy(ERROR, k)`, half for each bound, so all together err with at most
        ERROR, also those after an alarm, which begin at 32 labels again.
        """
        if self.early.seen + self.full.seen < self.due:
            return False
        error = error_for_policy(ERROR, self.looks) / 2
        self.looks += 1
        self.due *= 2
        right = Audits(self.early.seen, self.early.seen - self.early.disagreed)
        return 1.0 - upper_bound(right, error) > upper_bound(self.full, error) + loss

    @staticmethod
    def report(counted: Audits) -> LabelAgreement:
        right = counted.seen - counted.disagreed
        low = 1.0 - upper_bound(counted, ERROR)
        return LabelAgreement(counted.seen, right, low, upper_bound(Audits(counted.seen, right), ERROR))


def _hash(id: str) -> np.uint64:
    return np.uint64(xxhash.xxh3_64_intdigest(id.encode(errors="surrogatepass")) | 1)
