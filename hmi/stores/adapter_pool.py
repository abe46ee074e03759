"""The modules that are in memory: the recently used ones, within a budget of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass
class _Slot(Generic[T]):
    """One name: loading until `value` or `error` is set."""

    pins: int = 0
    size: int = 0
    value: T | None = None
    error: Exception | None = None

    @property
    def settled(self) -> bool:
        return self.value is not None or self.error is not None


class AdapterPool(Generic[T]):
    """Least recently used goes first; what is held never goes. Each name is loaded once however many ask at
    once.

    `load(name)` returns (object, bytes) and may raise; the error reaches everyone who waits for that load,
    and who comes next tries again. Held objects may exceed the budget; the excess goes as soon as they are
    given back.
    """

    def __init__(self, budget_bytes: int, load: Callable[[str], tuple[T, int]]) -> None:
        self._budget, self._load = budget_bytes, load
        self._slots: OrderedDict[str, _Slot[T]] = OrderedDict()
        self._changed = threading.Condition()
        self.hits = self.misses = self.evictions = self.bytes = 0

    def has(self, name: str) -> bool:
        """Whether it is in memory."""
        with self._changed:
            slot = self._slots.get(name)
            return slot is not None and slot.value is not None

    def take(self, names: Iterable[str]) -> dict[str, T] | None:
        """The objects of `names`, where all are in memory: they stay there until `give_back`. Never waits."""
        unique = list(dict.fromkeys(names))
        with self._changed:
            found = {
                name: slot.value
                for name in unique
                if (slot := self._slots.get(name)) and slot.value is not None
            }
            if len(found) < len(unique):
                return None
            for name in unique:
                self._slots[name].pins += 1
                self._slots.move_to_end(name)
            self.hits += len(unique)
            return found

    def load(self, names: Iterable[str]) -> tuple[dict[str, T], dict[str, Exception]]:
        """The objects of `names` that could be loaded, and why others could not; those that can be stay in
        memory until all of `names` are given back."""
        unique = list(dict.fromkeys(names))
        mine = self._pin(unique)
        try:
            # All of one's own loads come before any waiting, so two callers cannot wait for each other.
            for name in mine:
                self._fill(name)
            return self._await(unique)
        except BaseException:
            self._abandon(mine)
            self._unpin(unique)
            raise

    def give_back(self, names: Iterable[str]) -> None:
        """What `take` or `load` was asked for is no longer needed."""
        self._unpin(list(dict.fromkeys(names)))

    def resident(self) -> list[str]:
        """Names in memory, the least recently used first."""
        with self._changed:
            return [name for name, slot in self._slots.items() if slot.value is not None]

    def _pin(self, names: list[str]) -> list[str]:
        """Pin all; returns those that this caller must load."""
        mine = []
        with self._changed:
            for name in names:
                slot = self._slots.get(name)
                if slot is None or slot.error is not None:
                    slot = self._slots[name] = _Slot(pins=0 if slot is None else slot.pins)
                    mine.append(name)
                    self.misses += 1
                else:
                    self.hits += 1
                slot.pins += 1
                self._slots.move_to_end(name)
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
            slot = self._slots[name]
            slot.value, slot.error, slot.size = value, error, size
            self.bytes += size
            self._evict()
            self._changed.notify_all()

    def _abandon(self, mine: list[str]) -> None:
        """After an interrupt (Ctrl-C): releases those who wait for a load that did not finish."""
        with self._changed:
            for name in mine:
                slot = self._slots[name]
                if not slot.settled:
                    slot.error = RuntimeError(f"the load of {name} was interrupted: ask again")
            self._changed.notify_all()

    def _await(self, names: list[str]) -> tuple[dict[str, T], dict[str, Exception]]:
        values: dict[str, T] = {}
        errors: dict[str, Exception] = {}
        with self._changed:
            for name in names:
                slot = self._slots[name]
                self._changed.wait_for(lambda slot=slot: slot.settled)  # type: ignore[misc]
                if slot.value is not None:
                    values[name] = slot.value
                else:
                    assert slot.error is not None
                    errors[name] = slot.error
        return values, errors

    def _unpin(self, names: list[str]) -> None:
        with self._changed:
            for name in names:
                slot = self._slots[name]
                slot.pins -= 1
                if slot.pins == 0 and slot.value is None:
                    del self._slots[name]
            self._evict()

    def _evict(self) -> None:
        """Caller holds the lock."""
        if self.bytes <= self._budget:
            return
        for name in [n for n, s in self._slots.items() if s.pins == 0 and s.value is not None]:
            self.bytes -= self._slots.pop(name).size
            self.evictions += 1
            if self.bytes <= self._budget:
                return
