"""A cache of tenants' modules in memory: least recently used first out, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Cached(Generic[T]):
    """The state of one name. It is loading until `value` or `error` is set."""

    holders: int = 0
    """Callers that hold the object or wait for it. It is evicted only while there are none."""
    counted: bool = False
    """Whether the load of this object has been counted as a miss."""
    size: int = 0
    value: T | None = None
    error: Exception | None = None

    @property
    def settled(self) -> bool:
        return self.value is not None or self.error is not None


class AdapterPool(Generic[T]):
    """An LRU cache whose held objects are never evicted. Thread-safe. Concurrent callers share one load.

    `load(name)` returns (object, bytes) and may raise. The error reaches every caller that waits for that
    load; the next caller tries again. Held objects may exceed the budget; the excess is evicted as soon as
    they are given back.

    Each use of an object, from `take` or `load` to `give_back`, is counted once. It is a miss if the object
    was loaded for it, a hit otherwise. A prefetch is no use: the first use after it is the miss.
    """

    def __init__(self, budget_bytes: int, load: Callable[[str], tuple[T, int]]) -> None:
        self._budget, self._load = budget_bytes, load
        self._cached: OrderedDict[str, _Cached[T]] = OrderedDict()
        """Least recently used first."""
        self._changed = threading.Condition()
        self.hits = self.misses = self.evictions = self.bytes = 0

    def has(self, name: str) -> bool:
        """Return whether the object is in memory."""
        with self._changed:
            cached = self._cached.get(name)
            return cached is not None and cached.value is not None

    def take(self, names: Iterable[str], *, count: bool = True) -> dict[str, T] | None:
        """Hold the objects of `names` until `give_back` and return them, if all are in memory. Never waits.

        Returns None, and holds nothing, if any is missing. With `count` False no hit or miss is counted.
        """
        unique = list(dict.fromkeys(names))
        with self._changed:
            found = {
                name: cached.value
                for name in unique
                if (cached := self._cached.get(name)) and cached.value is not None
            }
            if len(found) < len(unique):
                return None
            for name in unique:
                self._hold(name, count)
            return found

    def load(self, names: Iterable[str], *, count: bool = True) -> tuple[dict[str, T], dict[str, Exception]]:
        """Load what is missing of `names`, and hold all of them until `give_back`. Waits for the disk.

        Returns the objects, and the errors of the names that could not be loaded. With `count` False no hit
        or miss is counted.
        """
        unique = list(dict.fromkeys(names))
        mine = self._hold_all(unique, count)
        try:
            # A caller finishes its own loads before it waits for others', so two cannot deadlock.
            for name in mine:
                self._fill(name)
            return self._await(unique)
        except BaseException:
            self._abandon(mine)
            self._let_go(unique)
            raise

    def prefetch(self, name: str) -> None:
        """Load an object that will be used soon, without holding it. Raises what its load raises."""
        _, errors = self.load([name], count=False)
        self.give_back([name])
        for error in errors.values():
            raise error

    def give_back(self, names: Iterable[str]) -> None:
        """End one `take` or `load` of the same `names`."""
        self._let_go(list(dict.fromkeys(names)))

    def resident(self) -> list[str]:
        """Names in memory, the least recently used first."""
        with self._changed:
            return [name for name, cached in self._cached.items() if cached.value is not None]

    def _hold(self, name: str, count: bool) -> None:
        """Caller holds the lock."""
        cached = self._cached[name]
        cached.holders += 1
        self._cached.move_to_end(name)
        if count and cached.counted:
            self.hits += 1
        elif count:
            self.misses += 1
            cached.counted = True

    def _hold_all(self, names: list[str], count: bool) -> list[str]:
        """Hold all of `names`; returns those that this caller must load."""
        mine = []
        with self._changed:
            for name in names:
                cached = self._cached.get(name)
                if cached is None or cached.error is not None:
                    self._cached[name] = _Cached(0 if cached is None else cached.holders)
                    mine.append(name)
                self._hold(name, count)
        return mine

    def _fill(self, name: str) -> None:
        value: T | None = None
        error: Exception | None = None
        size = 0
        try:
            value, size = self._load(name)
        except Exception as failed:
            error = failed
        assert value is not None or error is not None, "load returns an object"
        with self._changed:
            cached = self._cached[name]
            cached.value, cached.error, cached.size = value, error, size
            self.bytes += size
            self._evict()
            self._changed.notify_all()

    def _abandon(self, mine: list[str]) -> None:
        """After an interrupt (Ctrl-C), fail the callers that wait for a load that did not finish."""
        with self._changed:
            for name in mine:
                cached = self._cached[name]
                if not cached.settled:
                    cached.error = RuntimeError(f"the load of {name} was interrupted: ask again")
            self._changed.notify_all()

    def _await(self, names: list[str]) -> tuple[dict[str, T], dict[str, Exception]]:
        values: dict[str, T] = {}
        errors: dict[str, Exception] = {}
        with self._changed:
            for name in names:
                cached = self._cached[name]
                self._changed.wait_for(lambda cached=cached: cached.settled)  # type: ignore[misc]
                if cached.value is not None:
                    values[name] = cached.value
                else:
                    assert cached.error is not None
                    errors[name] = cached.error
        return values, errors

    def _let_go(self, names: list[str]) -> None:
        with self._changed:
            for name in names:
                cached = self._cached[name]
                cached.holders -= 1
                if cached.holders == 0 and cached.value is None:
                    del self._cached[name]
            self._evict()

    def _evict(self) -> None:
        """Caller holds the lock."""
        if self.bytes <= self._budget:
            return
        for name in [n for n, c in self._cached.items() if c.holders == 0 and c.value is not None]:
            self.bytes -= self._cached.pop(name).size
            self.evictions += 1
            if self.bytes <= self._budget:
                return
