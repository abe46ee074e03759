"""The adapter pool against a plain one that works its rules out from scratch at each step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hmi.errors import Damaged, TooLarge
from hmi.stores.tensors.adapter_pool import AdapterPool, NoRoom, Size

SIZES = {"a": 1, "b": 2, "c": 3, "d": 3, "e": 4, "f": 5, "g": 9}
BUDGET = 8
ENDS: dict[type[Exception], str] = {NoRoom: "no room", TooLarge: "too large", Damaged: "broken"}
NAMES = st.lists(st.sampled_from(sorted(SIZES)), min_size=1, max_size=4, unique=True)


class PlainPool:
    """The names that should be in memory."""

    def __init__(self) -> None:
        self.memory: list[str] = []
        """Those that nobody uses stand in the order in which their last use ended."""
        self.held: Counter[str] = Counter()
        self.needs: list[list[str]] = []
        self.forgotten: set[str] = set()
        self.broken: set[str] = set()

    def needed(self) -> list[str]:
        return list(dict.fromkeys(name for names in self.needs for name in names))

    def idle(self) -> list[str]:
        return [n for n in self.memory if not self.held[n] and n not in self.needed()]

    def bytes(self) -> int:
        return sum(SIZES[name] for name in self.memory)

    def load(self, names: Sequence[str], *, spare_needed: bool = False) -> dict[str, str]:
        """Hold `names`; returns what becomes of each: here, broken, too large or no room."""
        missing = [name for name in names if name not in self.memory]
        self.held.update(names)
        found = dict.fromkeys(names, "here")
        for name in missing:
            found[name] = "broken" if name in self.broken else self._admit(name, spare_needed)
        return found

    def _admit(self, name: str, spare_needed: bool) -> str:
        if SIZES[name] > BUDGET:
            return "too large"
        free = [n for n in self.memory if n in self.needed() and not self.held[n]]
        latest_first = sorted(free, key=self.needed().index, reverse=True)
        for victim in [*self.idle(), *([] if spare_needed else latest_first)]:
            if self.bytes() + SIZES[name] > BUDGET:
                self.memory.remove(victim)
        if self.bytes() + SIZES[name] > BUDGET:
            return "no room"
        self.memory.append(name)
        return "here"

    def give_back(self, names: Sequence[str]) -> None:
        self.held.subtract(names)
        self.used(names)

    def used(self, names: Sequence[str]) -> None:
        for name in [n for n in names if n in self.idle()]:
            self.memory.remove(name)
            if name not in self.forgotten:
                self.memory.append(name)
        while self.idle() and self.bytes() > BUDGET:
            self.memory.remove(self.idle()[0])


class PoolMachine(RuleBasedStateMachine):
    """One thread does everything that the engine's threads may do, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.held = PlainPool(), list[list[str]]()
        self.marks: Counter[str] = Counter()
        self.pool: AdapterPool[str] = AdapterPool(
            BUDGET, self._load, lambda name: Size(SIZES[name], 2), self.marks.get
        )

    def _load(self, name: str) -> str:
        if name in self.plain.broken:
            raise Damaged(name)
        return name

    @rule(names=NAMES)
    def load(self, names: list[str]) -> None:
        values, errors = self.pool.load(names)
        found: dict[str, str] = dict.fromkeys(values, "here")
        found |= {n: ENDS[type(e)] for n, e in errors.items()}
        assert found == self.plain.load(names)
        self.held.append(names)

    @rule(names=NAMES)
    def take(self, names: list[str]) -> None:
        taken = self.pool.take(names)
        assert (taken is None) == (not set(names) <= set(self.plain.memory))
        if taken is not None:
            assert taken == {name: name for name in names}
            self.plain.held.update(names)
            self.held.append(names)

    @rule(which=st.integers(0, 9))
    def give_back(self, which: int) -> None:
        if which < len(self.held):
            names = self.held.pop(which)
            self.pool.give_back(names)
            self.plain.give_back(names)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def prefetch(self, name: str) -> None:
        skipped = not self.plain.idle() and self.plain.bytes() + 1 > BUDGET
        try:
            self.pool.prefetch(name)
        except Damaged:
            assert not skipped
            assert name in self.plain.broken
        except TooLarge:
            assert not skipped
            assert SIZES[name] > BUDGET
        if not skipped:
            self.plain.load([name], spare_needed=True)
            self.plain.give_back([name])

    @rule(names=NAMES)
    def need(self, names: list[str]) -> None:
        self.pool.need(names)
        self.plain.needs.append(names)

    @rule(which=st.integers(0, 9))
    def need_no_more(self, which: int) -> None:
        if which < len(self.plain.needs):
            names = self.plain.needs.pop(which)
            self.pool.need_no_more(names)
            self.plain.used(names)

    @rule(names=NAMES)
    def forget(self, names: list[str]) -> None:
        self.pool.forget(names)
        self.plain.forgotten.update(names)
        self.plain.used(names)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def remember(self, name: str) -> None:
        self.pool.remember(name)
        self.plain.forgotten.discard(name)

    @rule(name=st.sampled_from(sorted(SIZES)))
    def damage_or_repair(self, name: str) -> None:
        self.plain.broken ^= {name}
        self.marks[name] += 1

    @invariant()
    def the_same_is_in_memory(self) -> None:
        idle = self.plain.idle()
        assert self.pool.resident()[: len(idle)] == idle
        assert set(self.pool.resident()) == set(self.plain.memory)
        assert self.pool.bytes == self.plain.bytes()
        assert self.pool.mapped_bytes == 2 * len(self.plain.memory)
        assert self.pool.bytes <= BUDGET


PoolMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
test_pool = PoolMachine.TestCase
