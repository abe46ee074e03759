"""The adapter pool: leased modules stay, each name is loaded once, and the budget holds."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from hmi.errors import Damaged, TooLarge
from hmi.stores.tensors.adapter_pool import FAILED_S, MOST_FAILED, AdapterPool, NoRoom, Size


class Loader:
    """Loads names as objects of 10 bytes, and counts the loads."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.loads: list[str] = []
        self.pause_s = pause_s
        self.broken: set[str] = set()

    def __call__(self, name: str) -> list[str]:
        self.loads.append(name)
        time.sleep(self.pause_s)
        if name in self.broken:
            raise Damaged(f"artefact {name} is missing")
        return [name]


def ten(_: object) -> Size:
    return Size(10, 3)


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
    pool = AdapterPool(100, load, ten)
    with leased(pool, ["b", "a", "b"]) as got:
        assert got == [["b"], ["a"], ["b"]]
        assert got[0] is got[2]
    with leased(pool, ["a"]):
        pass
    assert load.loads == ["b", "a"]
    assert (pool.hits, pool.misses, pool.evictions, pool.bytes) == (1, 2, 0, 20)


def test_the_least_recently_used_goes_first() -> None:
    pool = AdapterPool(30, Loader(), ten)
    for name in ("a", "b", "c", "a", "d"):
        with leased(pool, [name]):
            pass
    assert pool.resident() == ["c", "a", "d"]
    assert (pool.evictions, pool.bytes) == (1, 30)


def test_what_is_held_stays_and_what_does_not_fit_beside_it_is_refused() -> None:
    pool = AdapterPool(30, Loader(), ten)
    with leased(pool, ["a", "b"]) as held:
        values, errors = pool.load(["c", "d"])
        assert (list(values), list(errors)) == (["c"], ["d"])
        assert isinstance(errors["d"], NoRoom)
        assert (pool.bytes, pool.mapped_bytes, pool.evictions) == (30, 9, 0)
        pool.give_back(["c", "d"])
        assert held == [["a"], ["b"]]
        with leased(pool, ["d"]):
            assert pool.resident() == ["a", "b", "d"], "c made room"
    assert pool.bytes == 30


def test_an_object_larger_than_the_budget_fails_and_evicts_nothing() -> None:
    load = Loader()
    pool = AdapterPool(1500, load, lambda value: Size(2000 if value == ["large"] else 500))
    with leased(pool, ["a"]):
        for _ in range(2):
            values, errors = pool.load(["large", "b"])
            assert values == {"b": ["b"]}
            assert isinstance(errors["large"], TooLarge)
            pool.give_back(["large", "b"])
    with pytest.raises(TooLarge, match=r"2,000 bytes .* \(1,500\): the server needs a larger HMI_POOL_BYTES"):
        pool.prefetch("large")
    assert load.loads.count("large") == 1, "the failure is remembered"
    assert (pool.resident(), pool.bytes, pool.evictions) == (["b", "a"], 1000, 0)


def test_what_queued_texts_need_is_evicted_last_and_only_for_a_batch() -> None:
    load = Loader()
    pool = AdapterPool(30, load, ten)
    for name in ("a", "b", "c"):
        pool.prefetch(name)
    pool.need(["a", "b"])
    pool.need(["b"])
    pool.prefetch("d")
    assert set(pool.resident()) == {"a", "b", "d"}, "c was needed by nobody"
    pool.need(["d"])
    pool.prefetch("e")
    assert load.loads.count("e") == 0, "a prefetch takes nothing that is needed"
    with leased(pool, ["e"]):
        assert set(pool.resident()) == {"a", "b", "e"}, "a batch takes what is needed latest"
    pool.need_no_more(["a", "b"])
    with leased(pool, ["f"]):
        assert set(pool.resident()) == {"a", "b", "f"}, "e went first; b is needed still"
    for names in (["b"], ["d"]):
        pool.need_no_more(names)
    assert not pool._needed
    assert pool.bytes == 30


def test_an_object_that_grew_while_it_was_held_is_counted() -> None:
    sizes = {"a": 10, "b": 10}
    pool = AdapterPool(30, Loader(), lambda value: Size(sizes[value[0]]))
    pool.prefetch("b")
    with leased(pool, ["a"]):
        sizes["a"] = 25
    assert (pool.resident(), pool.bytes, pool.evictions) == (["a"], 25, 1)


def test_what_is_forgotten_goes_when_nobody_uses_it() -> None:
    load = Loader()
    pool = AdapterPool(100, load, ten)
    for name in ("idle", "held", "needed"):
        pool.prefetch(name)
    pool.need(["needed"])
    with leased(pool, ["held"]):
        pool.forget(["idle", "held", "needed", "unknown"])
        assert set(pool.resident()) == {"held", "needed"}
    assert pool.resident() == ["needed"]
    with leased(pool, ["needed"]):
        pool.need_no_more(["needed"])
        assert pool.has("needed")
    assert (pool.resident(), pool.bytes, pool.evictions) == ([], 0, 0)
    with leased(pool, ["unknown"]):
        assert pool.has("unknown"), "a text in flight may still load it"
    assert pool.resident() == []
    pool.prefetch("idle")
    assert pool.resident() == [], "a text in flight may still prefetch it"
    pool.remember("idle")
    pool.prefetch("idle")
    assert pool.resident() == ["idle"], "a live model has the same artefact"


def test_a_failed_load_is_repeated_after_a_while_or_when_the_file_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now, marks, load = 0.0, {"x": 1}, Loader()
    monkeypatch.setattr("hmi.stores.tensors.adapter_pool.time.monotonic", lambda: now)
    load.broken = {"x", *(f"n{i}" for i in range(2000))}
    pool = AdapterPool(100, load, ten, marks.get)

    def fails() -> int:
        with pytest.raises(Damaged):
            pool.prefetch("x")
        return load.loads.count("x")

    assert [fails(), fails()] == [1, 1]
    now += FAILED_S
    assert [fails(), fails()] == [2, 2]
    marks["x"] += 1
    assert [fails(), fails()] == [3, 3]
    pool.forget(["x"])
    assert fails() == 4
    for i in range(2000):
        with pytest.raises(Damaged):
            pool.prefetch(f"n{i}")
    assert len(pool._failed) == MOST_FAILED
    assert not pool._cached


def test_many_at_once_load_once() -> None:
    load = Loader(pause_s=0.05)
    pool = AdapterPool(1000, load, ten)
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
    pool = AdapterPool(100, load, ten)
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
    pool._failed.clear()
    with leased(pool, ["x"]) as got:
        assert got == [["x"]]
    assert pool.bytes == 20


def test_what_cannot_be_loaded_takes_nothing_from_the_others() -> None:
    load = Loader()
    load.broken = {"x"}
    pool = AdapterPool(100, load, ten)
    for _ in range(2):
        values, errors = pool.load(["x", "a", "x"])
        assert values == {"a": ["a"]}
        assert [(name, type(error)) for name, error in errors.items()] == [("x", Damaged)]
        pool.give_back(["x", "a", "x"])
        pool._failed.clear()
    assert load.loads == ["x", "a", "x"], "only what failed is tried again"
    assert pool.resident() == ["a"]


def test_taking_without_waiting_gives_all_or_nothing() -> None:
    pool = AdapterPool(20, Loader(), ten)
    assert pool.take(["a"]) is None
    assert not pool.has("a")
    with leased(pool, ["a", "b"]):
        assert pool.take(["a", "x"]) is None
        assert pool.take(["a", "a"]) == {"a": ["a"]}
    with leased(pool, ["c"]):
        assert pool.has("a"), "held"
        assert not pool.has("b")
    pool.give_back(["a", "a"])
    assert pool.resident() == ["c", "a"]


def test_a_use_is_one_hit_or_one_miss_however_it_was_loaded() -> None:
    load = Loader()
    pool = AdapterPool(20, load, ten)
    pool.prefetch("a")
    assert (pool.hits, pool.misses) == (0, 0), "not used yet"
    with leased(pool, ["a"]):
        assert (pool.hits, pool.misses) == (0, 1)
        assert pool.take(["a"]) is not None
    pool.give_back(["a"])
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

    def load(name: str) -> list[str]:
        waiting.wait()
        raise KeyboardInterrupt

    pool = AdapterPool(100, load, ten)

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


def test_under_a_crowd_nothing_held_is_evicted_and_the_limit_holds() -> None:
    refused = []

    def load(name: str) -> list[str]:
        time.sleep(0.0005)
        return [name]

    pool = AdapterPool(60, load, lambda value: Size(5 + len(value[0])))

    def ask(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(60):
            names = rng.choices([f"n{i}" for i in range(20)], k=rng.randint(1, 5))
            pool.need(names)
            values, errors = pool.load(names)
            assert all(values[name] == [name] for name in values)
            assert set(values) <= set(pool.resident())
            assert pool.bytes <= 60
            refused.extend(isinstance(error, NoRoom) for error in errors.values())
            pool.give_back(names)
            pool.need_no_more(names)

    threads = [threading.Thread(target=ask, args=(s,)) for s in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert all(refused)
    assert pool.bytes == sum(5 + len(n) for n in pool.resident())
    assert pool.evictions > 100
    assert not pool._needed


def test_a_remembered_failure_keeps_nothing_of_what_was_loaded() -> None:
    class Large: ...

    loaded: list[weakref.ref[Large]] = []

    def load(name: str) -> Large:
        found = Large()
        loaded.append(weakref.ref(found))
        raise Damaged(f"artefact {name} is damaged")

    pool = AdapterPool(100, load, ten)
    with pytest.raises(Damaged):
        pool.prefetch("x")
    gc.collect()
    assert pool._failed
    assert loaded[0]() is None
