"""Divides a resource, such as memory or places for requests, among callers, so that none can take all."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType

from hmi.errors import QuotaExceeded, Unavailable

Holder = str | None
"""A tenant's name, or None for the administrator."""


class Shares:
    """`total` units of the resource `what`, lent to holders. Thread-safe.

    A holder may have at most as much as it leaves free: half of all if it is alone, a third if there are two.
    So a newcomer always finds something free, however many holders there are.
    """

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._held: Counter[Holder] = Counter()
        self._used = 0
        self._lock = threading.Lock()

    @property
    def used(self) -> int:
        """Units that all holders have together."""
        return self._used

    def loan(self, holder: Holder, amount: int = 0) -> Loan:
        """Lend `amount`, which the loan may raise later. Raises as `take`."""
        loan = Loan(self, holder)
        loan.cover(amount)
        return loan

    def take(self, holder: Holder, amount: int) -> None:
        """Lend `amount` more to the holder, without a `Loan`.

        Raises QuotaExceeded if that exceeds the holder's share, or Unavailable if the holder has nothing yet.
        """
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
    """The units that one request holds. As a context manager, a loan gives them back at the end.
    Thread-safe."""

    def __init__(self, shares: Shares, holder: Holder) -> None:
        self._shares, self.holder = shares, holder
        self.amount = 0
        self._ended = False
        self._lock = threading.Lock()

    def cover(self, amount: int) -> None:
        """Raise the loan to at least `amount`. Raises QuotaExceeded or Unavailable.

        It raises Unavailable, too, once the loan has ended: a thread may still work for a request that
        has ended.
        """
        with self._lock:
            if self._ended:
                raise Unavailable("the request has ended")
            if amount > self.amount:
                self._shares.take(self.holder, amount - self.amount)
                self.amount = amount

    def end(self) -> None:
        """Give everything back. A second call does nothing."""
        with self._lock:
            self._shares.give_back(self.holder, self.amount)
            self.amount, self._ended = 0, True

    def __enter__(self) -> Loan:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.end()
