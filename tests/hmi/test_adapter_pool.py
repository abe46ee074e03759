"""The adapter pool: leased modules stay, each name is loaded once, and the budget holds."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from hmi.errors import Damaged
from hmi.stores.adapter_pool import AdapterPool


class Loader:
    """Loads names as objects of 10 bytes, and counts the loads."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.loads: list[str] = []
        self.pause_s = pause_s
        self.broken: set[str] = set()

    def __call__(self, name: str) -> tuple[list[str], int]:
        self.loads.append(name)
        time.sleep(self.pause_s)
        if name in self.broken:
            raise Damaged(f"artefact {name} is missing")
        return [name], 10


@contextmanager
def leased(pool: AdapterPool[list[str]], names: Sequence[str]) -> Iterator[list[list[str]]]:
    """Lease all of `names`, or raise the first error."""
    values, errors = pool.load(names)
    try:
        for error in errors.values():
            raise error
        yield [values[name] for name in names]
    finally:
        pool.give_back(names)


def test_a_lease_gives_objects_in_order_and_shares_repeats() -> None:
    load = Loader()
    pool = AdapterPool(100, load)
    with leased(pool, ["b", "a", "b"]) as got:
        assert got == [["b"], ["a"], ["b"]]
        assert got[0] is got[2]
    with leased(pool, ["a"]):
        pass
    assert load.loads == ["b", "a"]
    assert (pool.hits, pool.misses, pool.evictions, pool.bytes) == (1, 2, 0, 20)


def test_the_least_recently_used_goes_first() -> None:
    pool = AdapterPool(30, Loader())
    for name in ("a", "b", "c", "a", "d"):
        with leased(pool, [name]):
            pass
    assert pool.resident() == ["c", "a", "d"]
    assert (pool.evictions, pool.bytes) == (1, 30)


def test_what_is_leased_stays_and_the_excess_goes_after() -> None:
    pool = AdapterPool(20, Loader())
    with leased(pool, ["a", "b"]) as held:
        with leased(pool, ["c", "d"]):
            assert pool.bytes == 40
            assert pool.evictions == 0
        assert pool.resident() == ["a", "b"]
        assert held == [["a"], ["b"]]
    assert pool.bytes == 20


def test_a_budget_of_nothing_still_serves() -> None:
    pool = AdapterPool(0, Loader())
    with leased(pool, ["a", "b"]) as got:
        assert got == [["a"], ["b"]]
    assert (pool.resident(), pool.bytes, pool.evictions) == ([], 0, 2)


def test_many_at_once_load_once() -> None:
    load = Loader(pause_s=0.05)
    pool = AdapterPool(1000, load)
    got: list[object] = []

    def ask() -> None:
        with leased(pool, ["a", "b"]) as values:
            got.append(values[0])

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(load.loads) == ["a", "b"]
    assert len({id(v) for v in got}) == 1
    assert pool.hits + pool.misses == 16


def test_a_failed_load_reaches_all_who_wait_and_is_tried_again() -> None:
    load = Loader(pause_s=0.1)
    load.broken = {"x"}
    pool = AdapterPool(100, load)
    errors: list[Exception] = []

    def ask() -> None:
        try:
            with leased(pool, ["a", "x"]):
                pass
        except Damaged as error:
            errors.append(error)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(errors) == 3
    assert load.loads.count("x") == 1
    assert pool.resident() == ["a"]
    load.broken = set()
    with leased(pool, ["x"]) as got:
        assert got == [["x"]]
    assert pool.bytes == 20


def test_what_cannot_be_loaded_takes_nothing_from_the_others() -> None:
    load = Loader()
    load.broken = {"x"}
    pool = AdapterPool(100, load)
    for _ in range(2):
        values, errors = pool.load(["x", "a", "x"])
        assert values == {"a": ["a"]}
        assert [(name, type(error)) for name, error in errors.items()] == [("x", Damaged)]
        pool.give_back(["x", "a", "x"])
    assert load.loads == ["x", "a", "x"], "only what failed is tried again"
    assert pool.resident() == ["a"]


def test_taking_without_waiting_gives_all_or_nothing() -> None:
    pool = AdapterPool(20, Loader())
    assert pool.take(["a"]) is None
    assert not pool.has("a")
    with leased(pool, ["a", "b"]):
        assert pool.take(["a", "x"]) is None
        assert pool.take(["a", "a"]) == {"a": ["a"]}
    with leased(pool, ["c", "d"]):
        assert pool.has("a"), "held"
        assert not pool.has("b")
    pool.give_back(["a", "a"])
    assert pool.resident() == ["a", "d"]


def test_a_use_is_one_hit_or_one_miss_however_it_was_loaded() -> None:
    load = Loader()
    pool = AdapterPool(20, load)
    pool.prefetch("a")
    assert (pool.hits, pool.misses) == (0, 0), "not used yet"
    with leased(pool, ["a"]):
        assert (pool.hits, pool.misses) == (0, 1)
        assert pool.take(["a"]) is not None
    assert (pool.hits, pool.misses) == (1, 1)
    for name in ("b", "c", "d"):
        pool.prefetch(name)
    assert pool.take(["b"]) is None, "evicted before its use"
    with leased(pool, ["b"]):
        assert (pool.hits, pool.misses) == (1, 2)
    assert pool.take(["b"], count=False) is not None
    assert pool.load(["b"], count=False)[1] == {}
    assert (pool.hits, pool.misses) == (1, 2)
    load.broken = {"x"}
    with pytest.raises(Damaged):
        pool.prefetch("x")
    assert "x" not in pool._cached


def test_an_interrupt_during_a_load_leaves_no_one_waiting() -> None:
    waiting = threading.Event()
    errors: list[str] = []

    def load(name: str) -> tuple[list[str], int]:
        waiting.wait()
        raise KeyboardInterrupt

    pool = AdapterPool(100, load)

    def wait_for_b() -> None:
        while pool.misses < 2:
            time.sleep(0.001)
        threading.Timer(0.05, waiting.set).start()
        try:
            with leased(pool, ["b"]):
                pass
        except RuntimeError as error:
            errors.append(str(error))

    thread = threading.Thread(target=wait_for_b)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        with leased(pool, ["a", "b"]):
            pass
    thread.join(5)
    assert errors == ["the load of b was interrupted: ask again"]
    assert pool.resident() == []
    pool._load = Loader()  # the next attempt, as after a handled Ctrl-C
    with leased(pool, ["a", "b"]) as got:
        assert got == [["a"], ["b"]]


def test_under_a_crowd_nothing_leased_is_evicted_and_the_count_of_bytes_is_right() -> None:
    live: dict[int, int] = {}
    guard = threading.Lock()

    def load(name: str) -> tuple[list[str], int]:
        time.sleep(0.0005)
        return [name], 5 + len(name)

    pool = AdapterPool(60, load)

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            names = rng.choices([f"n{i}" for i in range(20)], k=rng.randint(1, 5))
            with leased(pool, names) as got:
                with guard:
                    for value in got:
                        live[id(value)] = live.get(id(value), 0) + 1
                assert [v[0] for v in got] == names
                assert set(names) <= set(pool.resident())
                with guard:
                    for value in got:
                        live[id(value)] -= 1

    threads = [threading.Thread(target=ask, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not any(live.values())
    assert pool.bytes == sum(5 + len(n) for n in pool.resident())
    assert pool.bytes <= 60
    assert pool.evictions > 100
