"""Dividing memory for bodies and places for requests among callers, so that none can take all."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType

from hmi.errors import QuotaExceeded, Unavailable

Holder = str | None
"""A tenant; None is the administrator."""


class Shares:
    """`total` units of something, lent to holders. Thread-safe.

    A holder may have at most as much as is then left for the others: alone half of all, of two each a third.
    So however greedy some are, a newcomer finds room, and nobody needs to say beforehand how many there will
    be.
    """

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._held: Counter[Holder] = Counter()
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        return self._used

    def loan(self, holder: Holder, amount: int = 0) -> Loan:
        """Raises QuotaExceeded where the holder has its share, Unavailable where others have taken all."""
        loan = Loan(self, holder)
        loan.cover(amount)
        return loan

    def take(self, holder: Holder, amount: int) -> None:
        with self._lock:
            held, used = self._held[holder] + amount, self._used + amount
            if held <= self._total - used:
                self._held[holder], self._used = held, used
                return
            over = held > amount
        if over:
            raise QuotaExceeded(
                f"too many {self._what} at once: wait for the answers to those under way, then try again"
            )
        raise Unavailable(f"overloaded: the server has too many {self._what} under way; try again shortly")

    def give_back(self, holder: Holder, amount: int) -> None:
        with self._lock:
            self._used -= amount
            self._held[holder] -= amount
            if not self._held[holder]:
                del self._held[holder]


class Loan:
    """One request's part of the shares; `with` gives it back."""

    def __init__(self, shares: Shares, holder: Holder) -> None:
        self._shares, self.holder = shares, holder
        self.amount = 0
        self._ended = False
        self._lock = threading.Lock()

    def cover(self, amount: int) -> None:
        """Hold at least `amount`. Raises QuotaExceeded or Unavailable, also after the loan was given back,
        since a thread may go on with work that its request no longer waits for."""
        with self._lock:
            if self._ended:
                raise Unavailable("the request has ended")
            if amount > self.amount:
                self._shares.take(self.holder, amount - self.amount)
                self.amount = amount

    def end(self) -> None:
        with self._lock:
            self._shares.give_back(self.holder, self.amount)
            self.amount, self._ended = 0, True

    def __enter__(self) -> Loan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.end()
