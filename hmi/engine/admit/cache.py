"""A small LRU cache that also drops values which have not been used for a while."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class IdleCache(Generic[K, V]):
    """Keeps at most `most` values, each until `idle_s` seconds after its last use. Thread-safe, never waits.

    The latest value always stays. Dropping a value closes nothing: a request in flight that refers to the
    value keeps it alive.
    """

    def __init__(self, most: int, idle_s: float) -> None:
        self._most, self._idle_s = most, idle_s
        self._values: OrderedDict[K, tuple[V, float]] = OrderedDict()
        self._lock = threading.Lock()

    def peek(self, key: K) -> V | None:
        """Return the value of `key`, which counts as a use; None if there is none."""
        with self._lock:
            found = self._values.pop(key, None)
            if found is not None:
                self._values[key] = (found[0], time.monotonic())
            self._drop()
            return None if found is None else found[0]

    def put(self, key: K, value: V) -> V:
        with self._lock:
            self._values.pop(key, None)
            self._values[key] = (value, time.monotonic())
            self._drop()
            return value

    def values(self) -> list[V]:
        """Return the values in memory; this counts as no use."""
        with self._lock:
            return [value for value, _ in self._values.values()]

    def keys(self) -> list[K]:
        """Return the keys of the values in memory."""
        with self._lock:
            return list(self._values)

    def drop(self, unwanted: Callable[[K], bool]) -> None:
        """Drop the values of these keys."""
        with self._lock:
            for key in [key for key in self._values if unwanted(key)]:
                del self._values[key]

    def clear(self) -> None:
        with self._lock:
            self._values.clear()

    def __len__(self) -> int:
        return len(self._values)

    def _drop(self) -> None:
        oldest_kept = time.monotonic() - self._idle_s
        while len(self._values) > 1:
            key, (_, used) = next(iter(self._values.items()))
            if len(self._values) <= self._most and used >= oldest_kept:
                return
            del self._values[key]
