"""A cache of tenants' modules in memory, which never takes more than its limit.

A module that a running batch holds is never evicted. One that queued texts will need is evicted last.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from hmi.errors import HmiError, TooLarge, Unavailable, copy_of

T = TypeVar("T")
MOST = 30_000
"""The most objects in memory. Each may be a mapped file, of which Linux allows a process 65,530."""
FAILED_S = 1.0
"""A load that failed is repeated only after this many seconds, unless the file has changed."""
MOST_FAILED = 1024
"""Failed loads that are remembered."""
MOST_FORGOTTEN = 4096
"""The most names of deleted objects that the pool remembers."""


class Size(NamedTuple):
    """The memory that an object takes, in bytes."""

    private: int
    """Counts towards the pool's limit."""
    mapped: int = 0
    """Bytes of mapped files. The kernel reclaims them when memory is short."""


NOTHING = Size(0)


class NoRoom(Unavailable):
    """Running batches hold so much that an object does not fit beside it: try again when one has ended."""

    def __init__(self) -> None:
        super().__init__(
            "running batches hold all the memory for modules: try again shortly", retry_after_s=1
        )


@dataclass
class _Cached(Generic[T]):
    """The state of one name. It is loading until `value` or `error` is set."""

    holders: int = 0
    """Callers that hold the object or wait for it."""
    counted: bool = False
    """Whether the load of this object has been counted as a miss."""
    size: Size = NOTHING
    value: T | None = None
    error: Exception | None = None
    used: float = 0.0
    """The `time.monotonic()` of its last use."""

    @property
    def settled(self) -> bool:
        return self.value is not None or self.error is not None


@dataclass(frozen=True)
class _Failed:
    error: HmiError
    mark: object
    until: float


class AdapterPool(Generic[T]):
    """An LRU cache of at most `budget_bytes` of private memory. Thread-safe. Concurrent callers share one
    load.

    `load(name)` returns an object and may raise. The error reaches every caller that waits for that load. For
    FAILED_S the next callers get it, too, unless `mark(name)` has changed. `size(value)` is read after a load
    and whenever the last holder gives the object back, since objects may grow in use.

    Objects that are held are never evicted. Objects that are needed (`need`) are evicted only for a batch
    that is about to run, and last. A load that finds no room beside what others hold raises NoRoom. An object
    that is larger than the whole budget raises TooLarge, and evicts nothing.

    Each use of an object, from `take` or `load` to `give_back`, is counted once. It is a miss if the object
    was loaded for it, a hit otherwise. A prefetch is no use: the first use after it is the miss.
    """

    def __init__(
        self,
        budget_bytes: int,
        load: Callable[[str], T],
        size: Callable[[T], Size],
        mark: Callable[[str], object] = lambda name: None,
    ) -> None:
        self._budget, self._load, self._size_of, self._mark = budget_bytes, load, size, mark
        self._cached: dict[str, _Cached[T]] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()
        """Names in memory that are neither held nor needed, the least recently used first."""
        self._needed: dict[str, int] = {}
        """The number of callers that need each name soon, in the order of their first calls."""
        self._failed: OrderedDict[str, _Failed] = OrderedDict()
        self._forgotten: OrderedDict[str, None] = OrderedDict()
        self._changed = threading.Condition()
        self.hits = self.misses = self.evictions = self.loads = self.bytes = self.mapped_bytes = 0
        self.load_seconds = self.unused_seconds = 0.0
        """Seconds of all loads; and, over all evictions, the sum of the seconds since each object's last
        use."""

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

    def load(
        self,
        names: Iterable[str],
        *,
        count: bool = True,
        ready: Callable[[T], object] | None = None,
        spare_needed: bool = False,
    ) -> tuple[dict[str, T], dict[str, Exception]]:
        """Load what is missing of `names`, and hold all of them until `give_back`. Waits for the disk.

        Returns the objects, and the errors of the names that could not be loaded; NoRoom is one of them.
        `ready` is called with each object that this call loads, before others get it. With `count` False no
        hit or miss is counted, with `spare_needed` nothing is evicted that others need soon.
        """
        unique = list(dict.fromkeys(names))
        mine = self._hold_all(unique, count)
        try:
            # A caller finishes its own loads before it waits for others', so two cannot deadlock.
            for name in mine:
                self._fill(name, ready, spare_needed)
            return self._await(unique)
        except BaseException:
            self._abandon(mine)
            self._let_go(unique)
            raise

    def prefetch(self, name: str, *, ready: Callable[[T], object] | None = None) -> None:
        """Load an object that will be used soon, without holding it. Raises what its load raises.

        Does nothing if all memory is held or needed: the batch that uses the object loads it.
        """
        with self._changed:
            if self._full() and not self._idle:
                return
        _, errors = self.load([name], count=False, ready=ready, spare_needed=True)
        self.give_back([name])
        for error in errors.values():
            if not isinstance(error, NoRoom):
                raise error

    def give_back(self, names: Iterable[str]) -> None:
        """End one `take` or `load` of the same `names`."""
        self._let_go(list(dict.fromkeys(names)))

    def need(self, names: Iterable[str]) -> None:
        """Mark these names as needed by waiting texts, until `need_no_more` with the same `names`."""
        with self._changed:
            for name in dict.fromkeys(names):
                self._needed[name] = self._needed.get(name, 0) + 1
                self._idle.pop(name, None)

    def need_no_more(self, names: Iterable[str]) -> None:
        with self._changed:
            for name in dict.fromkeys(names):
                self._needed[name] -= 1
                if not self._needed[name]:
                    del self._needed[name]
                    self._settle(name)
            self._trim()

    def forget(self, names: Iterable[str]) -> None:
        """Drop objects of deleted models at once, or as soon as nobody holds or needs them any more."""
        with self._changed:
            for name in names:
                self._failed.pop(name, None)
                self._forgotten[name] = None
                if name in self._idle:
                    self._drop(name)
            while len(self._forgotten) > MOST_FORGOTTEN:
                self._forgotten.popitem(last=False)

    def remember(self, name: str) -> None:
        """Undo `forget`: a live model has this object, too."""
        with self._changed:
            self._forgotten.pop(name, None)

    def resident(self) -> list[str]:
        """Names in memory: first those that nobody uses, the least recently used first."""
        with self._changed:
            others = [n for n, c in self._cached.items() if c.value is not None and n not in self._idle]
            return [*self._idle, *others]

    # The caller of everything below holds the lock, unless it says otherwise.

    def _hold(self, name: str, count: bool) -> None:
        cached = self._cached[name]
        cached.holders += 1
        self._idle.pop(name, None)
        if count and cached.counted:
            self.hits += 1
        elif count:
            self.misses += 1
            cached.counted = True

    def _hold_all(self, names: list[str], count: bool) -> list[str]:
        """Hold all of `names`; returns those that this caller must load. Takes the lock."""
        mine = []
        with self._changed:
            for name in names:
                cached = self._cached.get(name)
                if cached is None or cached.error is not None:
                    cached = self._cached[name] = _Cached(0 if cached is None else cached.holders)
                    cached.error = self._lately_failed(name)
                    if cached.error is None:
                        mine.append(name)
                self._hold(name, count)
        return mine

    def _lately_failed(self, name: str) -> HmiError | None:
        failed = self._failed.get(name)
        if failed is None:
            return None
        if time.monotonic() < failed.until and self._mark(name) == failed.mark:
            return copy_of(failed.error)
        del self._failed[name]
        return None

    def _fill(self, name: str, ready: Callable[[T], object] | None, spare_needed: bool) -> None:
        """Takes the lock, but not for the load."""
        value: T | None = None
        error: Exception | None = None
        size, begun, mark = NOTHING, time.monotonic(), self._mark(name)
        try:
            value = self._load(name)
            if ready is not None:
                ready(value)
            size = self._size_of(value)
            if size.private > self._budget:
                raise TooLarge(
                    f"the model's module takes {size.private:,} bytes of memory, more than all modules may "
                    f"take together ({self._budget:,}): the server needs a larger HMI_POOL_BYTES",
                    limit=self._budget,
                )
        except Exception as failed:
            value, error = None, failed
        assert value is not None or error is not None, "load returns an object"
        with self._changed:
            self.loads += 1
            self.load_seconds += time.monotonic() - begun
            if isinstance(error, HmiError):
                # Without its traceback, whose frames keep what was loaded.
                kept = copy_of(error).with_traceback(None)
                self._failed[name] = _Failed(kept, mark, time.monotonic() + FAILED_S)
                if len(self._failed) > MOST_FAILED:
                    self._failed.popitem(last=False)
            if value is not None and not self._make_room(size.private, spare_needed):
                value, error = None, NoRoom()
            cached = self._cached[name]
            cached.value, cached.error = value, error
            if value is not None:
                self._resize(cached, size)
            self._changed.notify_all()

    def _abandon(self, mine: list[str]) -> None:
        """After an interrupt (Ctrl-C), fail the callers that wait for a load that did not finish. Takes the
        lock."""
        with self._changed:
            for name in mine:
                cached = self._cached[name]
                if not cached.settled:
                    cached.error = RuntimeError(f"the load of {name} was interrupted: ask again")
            self._changed.notify_all()

    def _await(self, names: list[str]) -> tuple[dict[str, T], dict[str, Exception]]:
        """Takes the lock."""
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
        """Takes the lock."""
        with self._changed:
            for name in names:
                cached = self._cached[name]
                cached.holders -= 1
                if cached.holders == 0:
                    if cached.value is None:
                        del self._cached[name]
                    else:
                        cached.used = time.monotonic()
                        self._resize(cached, self._size_of(cached.value))
                        self._settle(name)
            self._trim()

    def _settle(self, name: str) -> None:
        """Make a name idle that nobody holds or needs, or drop it if it is forgotten."""
        cached = self._cached.get(name)
        if cached is None or cached.value is None or cached.holders or name in self._needed:
            return
        self._idle[name] = None
        if name in self._forgotten:
            self._drop(name)

    def _resize(self, cached: _Cached[T], size: Size) -> None:
        self.bytes += size.private - cached.size.private
        self.mapped_bytes += size.mapped - cached.size.mapped
        cached.size = size

    def _drop(self, name: str) -> None:
        self._idle.pop(name, None)
        self._resize(self._cached.pop(name), NOTHING)

    def _evict(self, name: str) -> None:
        self.evictions += 1
        self.unused_seconds += time.monotonic() - self._cached[name].used
        self._drop(name)

    def _full(self, more: int = 1) -> bool:
        return self.bytes + more > self._budget or len(self._cached) > MOST

    def _trim(self) -> None:
        """Evict what nobody uses until the limit holds."""
        while self._idle and self._full(0):
            self._evict(next(iter(self._idle)))

    def _make_room(self, more: int, spare_needed: bool) -> bool:
        """Evict until `more` bytes fit, which are at most the budget; returns whether they do."""
        while self._full(more) and self._idle:
            self._evict(next(iter(self._idle)))
        if self._full(more) and not spare_needed:
            for name in [n for n in reversed(self._needed) if self._free(n)]:  # the latest may wait longest
                self._evict(name)
                if not self._full(more):
                    break
        return not self._full(more)

    def _free(self, name: str) -> bool:
        cached = self._cached.get(name)
        return cached is not None and cached.value is not None and not cached.holders
