"""All refs at once: which have moved, which fall back on one, and deleting one beside other processes."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import plotlab as lab
import pytest

from plot_store import Closed, Forked, InUse, Invalid, NotFound, PlotStoreError, Store, VersionMeta
from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import Catalogue, CatalogueTxn
from plot_store.face.store import DELETE_TRIES, POLL_S

LONG_S = 60.0


def applied(seen: dict[str, str], answer: dict[str, str | None]) -> dict[str, str]:
    """What a follower believes after an answer of `moved`."""
    return {ref: version for ref, version in {**seen, **answer}.items() if version is not None}


def current(store: Store) -> dict[str, str]:
    """The slow way to `heads`."""
    return {ref: version.id for ref, version in store.refs().items()}


def dependants(store: Store, ref: str) -> list[str]:
    """The slow way to `children`."""
    return sorted(
        other
        for other in store.refs()
        if other != ref and any(version.ref == ref for version in store.chain(other)[1:])
    )


def may_go(store: Store, ref: str) -> bool:
    """Whether `delete` must succeed, from nothing but whole manifests."""
    below, waiting = set[str](), [ref]
    while waiting:
        name = waiting.pop()
        chain = store.chain(name)[1:] if name in store.refs() else []
        waiting += {version.ref for version in chain} - below
        below |= {version.ref for version in chain}
    return not set(dependants(store, ref)) - below and not store.tags(ref)


def some_change(store: Store, draw: random.Random, number: int) -> None:
    """Publish, append, roll back, delete, tag or collect. What is impossible is refused, and `delete` is just
    then."""
    names = ["a", "b", "c", "d", "a/x", "b/z"]
    there = sorted(store.heads())
    ref, parents = draw.choice(there or ["none"]), [None, *there, *there]
    with suppress(PlotStoreError):
        match draw.randrange(12):
            case 0 | 1 | 2 | 3 | 9 | 10 | 11:
                lab.put(store, draw.choice(names), {}, build=f"b{number}", parent=draw.choice(parents))
            case 4:
                store.append(ref, lab.content(number, (3, 2, 1)))
            case 5 | 6:
                store.rollback(ref, draw.choice(store.history(ref)).id)
            case 7:
                may = ref != "none" and may_go(store, ref)
                try:
                    store.delete(ref)
                except (InUse, NotFound):
                    assert not may
                else:
                    assert may
            case 8:
                store.tag(ref, "t") if draw.random() < 0.3 else store.untag(ref, "t")
                store.gc(keep_versions=draw.randint(1, 3), orphan_age_s=-60)


@pytest.mark.parametrize("seed", range(6))
def test_random_histories_give_what_whole_manifests_give(store: Store, seed: int) -> None:
    draw, seen = random.Random(seed), dict[str, str]()
    for number in range(60):
        some_change(store, draw, number)
        now = current(store)
        assert store.heads() == now
        assert store.heads("a/") == {ref: head for ref, head in now.items() if ref.startswith("a/")}
        if draw.random() < 0.4:
            answer = store.moved(seen)
            assert all(seen.get(ref) != version for ref, version in answer.items())
            seen = applied(seen, answer)
            assert seen == now
            assert store.moved(seen) == {}
        for ref in now:
            assert store.children(ref) == dependants(store, ref)
        metas = {meta.id: meta for meta in store.metas()}
        assert len(metas) == store.info().versions
        kept = {v.id: v for ref in now for one in store.history(ref) for v in store.chain(one.id)}
        assert kept.keys() <= metas.keys()
        assert all(metas[v.id] == VersionMeta(v.id, v.ref, v.meta) for v in kept.values())


def test_ids_and_metas_come_without_manifests(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for ref in ("r", "r/a", "r/a/x", "r/b"):
        lab.put(store, ref, lab.content(1))
    entries: dict[int, int] = {}
    for version in store.refs().values():
        entries = {order: entries.get(order, 0) + count for order, count in version.entries.items()}
    heads, snapshot = store.heads(), store.path.parent / "copy"

    def refused(raw: object) -> None:
        raise AssertionError("a manifest was parsed")

    monkeypatch.setattr(version_tree.records, "parse_version", refused)
    assert store.heads() == heads
    assert store.moved({}) == heads
    assert {version.id for version in store.metas()} == set(heads.values())
    assert store.info().entries == entries
    assert store.info().versions == 4
    assert set(store.snapshot(snapshot).versions) == set(heads.values())
    store.delete("r/a/x")
    assert store.children("r") == ["r/a", "r/b"]


def test_looking_again_parses_only_what_has_moved(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for ref in ("r", "r/a", "r/b"):
        lab.put(store, ref, {})
    seen = store.heads()
    store.tag("r", "t")
    old = lab.put(store, "r/b", {}).previous
    parsed: list[object] = []
    real = version_tree.records.parse_ref
    monkeypatch.setattr(version_tree.records, "parse_ref", lambda raw: parsed.append(raw) or real(raw))
    answer = store.moved(seen)
    assert set(answer) == {"r/b"}
    assert len(parsed) == 1
    assert old is not None
    store.rollback("r/b", old)
    parsed.clear()
    assert store.moved(seen) == {}
    assert store.moved(applied(seen, answer)) == {"r/b": old}


def test_impossible_arguments_are_named(store: Store) -> None:
    for call, name in (
        (lambda: store.moved(["r"]), "seen"),
        (lambda: store.moved({}, -1), "timeout_s"),
        (lambda: store.moved({}, float("nan")), "timeout_s"),
        (lambda: store.heads("A"), "prefix"),
        (lambda: store.heads("a" * 600), "prefix"),
        (lambda: store.heads(None), "prefix"),
    ):
        with pytest.raises(Invalid, match=name):
            call()  # type: ignore[no-untyped-call]
    assert store.heads("nobody") == store.moved({}) == {}
    lab.put(store, "r", {})
    assert store.moved({"r": 'x","versions":[', "gone": ""}) == {"r": store.version("r").id, "gone": None}


@contextmanager
def following(store: Store, seen: dict[str, str]) -> Iterator[list[Any]]:
    """Call `moved` in a thread; the block's end waits for its answer or error, which the list gets."""
    found: list[Any] = []

    def follow() -> None:
        try:
            found.append(store.moved(seen, LONG_S))
        except PlotStoreError as error:
            found.append(error)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        time.sleep(3 * POLL_S)
        assert not found
        yield found
    finally:
        thread.join(LONG_S)
    assert not thread.is_alive()


PUBLISH = """
import sys
import plotlab as lab
from plot_store import Store
with Store.open(sys.argv[1]) as store:
    print(lab.put(store, sys.argv[2], {}).id)
"""


def test_a_publication_of_another_process_ends_the_wait(store: Store) -> None:
    lab.put(store, "r", {})
    seen = store.heads()
    begun = time.monotonic()
    assert store.moved(seen, 3 * POLL_S) == {}
    assert time.monotonic() - begun >= 3 * POLL_S
    with following(store, seen) as found:
        store.pin("r", "me")  # something is committed, and no ref moves
        time.sleep(2 * POLL_S)
        assert not found
        done = lab.child(PUBLISH, store.path, "r/a")
    assert found == [{"r/a": done.stdout.strip()}], done.stderr


def test_a_store_that_is_closed_meanwhile_says_so(store: Store) -> None:
    lab.put(store, "r", {})
    with Store.open(store.path) as other, following(other, other.heads()) as found:
        other.close()  # the environment stays open for `store`
    assert isinstance(found[0], Closed)
    with Store.open(store.path) as other, following(store, store.heads()) as found:
        store.close()
        other.close()
    assert isinstance(found[0], Closed)


def _follow_in_child(store: Store, queue: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    try:
        store.moved({}, LONG_S)
    except Forked:
        queue.put("forked")


def test_a_forked_child_is_refused_and_its_parent_goes_on(store: Store) -> None:
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    with following(store, {}) as found:
        process = context.Process(target=_follow_in_child, args=(store, queue))
        process.start()
        assert queue.get(timeout=LONG_S) == "forked"
        process.join(LONG_S)
        head = lab.put(store, "r", {}).id
    assert found == [{"r": head}]


def test_a_snapshot_that_takes_the_stores_place_is_noticed(store: Store) -> None:
    """Its commits are counted anew, so their numbers say nothing."""
    first = lab.put(store, "r", lab.content(1)).id
    lab.put(store, "gone", {})
    store.delete("gone")
    store.snapshot(store.path.parent / "copy")
    second = lab.put(store, "r", lab.content(2)).id
    branch = lab.put(store, "r/a", {}).id
    seen = store.heads()
    assert seen == {"r": second, "r/a": branch}
    with following(store, seen) as found:
        store.path.rename(store.path.parent / "old")
        (store.path.parent / "copy").rename(store.path)
    assert isinstance(found[0], Closed)
    assert "restored" in str(found[0])
    path = store.path
    store.close()
    with Store.open(path) as again:
        for number in range(12):  # on the way, its commits get the numbers that the first store's had
            again.pin("r", f"p{number}")
            assert again.moved(seen, LONG_S) == {"r": first, "r/a": None}
        assert again.moved(applied(seen, again.moved(seen))) == {}


RECORD = """
import struct, sys
was, becomes = (struct.pack("<Q", int(number)) for number in sys.argv[2:])
with open(sys.argv[1], "r+b") as file:
    head = file.read(64)  # magic and format, a mutex, the last commit, the number of readers
    (at,) = [at for at in range(8, 64, 8) if head[at : at + 8] == was]
    file.seek(at)
    file.write(becomes)
"""


def test_a_commit_whose_process_was_killed_before_it_told_is_not_missed(store: Store) -> None:
    """LMDB writes a commit to the file, and then its number to the table of readers. If its process is killed
    in between, nobody sees it until another one takes the write lock, even if that commits nothing."""
    old = lab.put(store, "r", lab.content(1)).id
    catalogue = store._env().catalogue
    new = lab.put(store, "r", lab.content(2)).id
    store.rollback("r", old)
    seen = store.heads()
    store.rollback("r", new)
    table, seen_at = store.path / "catalogue" / "lock.mdb", catalogue.read(lambda txn: txn.commit)
    assert lab.child(RECORD, table, seen_at, seen_at - 1).returncode == 0
    assert store.heads() == seen
    assert catalogue._database._env.info()["last_txnid"] == seen_at, "so this is not what to go by"
    assert catalogue._database.generation() == catalogue.read(lambda txn: txn.commit) == seen_at - 1
    with following(store, seen) as found:
        assert (
            lab.child(RECORD, table, seen_at - 1, seen_at).returncode == 0
        )  # as the next one that takes the lock does
    assert found == [{"r": new}]
    assert catalogue._database.generation() == seen_at
    lab.check(store)


PUBLISH_ALL_THE_TIME = """
import sys
import plotlab as lab
from plot_store import Store
with Store.open(sys.argv[1]) as store:
    for number in range(10**6):
        ref = "r/" + "abc"[number % 3]
        lab.put(store, ref, {})
        if number % 5 == 4:
            store.rollback(ref, store.history(ref)[-1].id)
        if number % 7 == 6:
            store.delete(ref)
"""


def test_what_a_follower_believes_is_true_however_publishers_die(store: Store) -> None:
    lab.put(store, "r", {})
    seen, draw = store.heads(), random.Random(1)
    for _ in range(6):
        process = subprocess.Popen(
            [sys.executable, "-c", PUBLISH_ALL_THE_TIME, str(store.path)], env=lab.child_env()
        )
        until = time.monotonic() + LONG_S
        for _ in range(draw.randint(1, 8)):
            answer = store.moved(seen, until - time.monotonic())
            assert answer
            seen = applied(seen, answer)
        process.send_signal(signal.SIGKILL)
        process.wait(LONG_S)
        lab.put(store, "r/mine", {})
        seen = applied(seen, store.moved(seen, LONG_S))
        assert seen == current(store)
    lab.check(store)


@contextmanager
def before_the_lock(monkeypatch: pytest.MonkeyPatch, act: Callable[[int], None]) -> Iterator[list[int]]:
    """Call act(number) before each write transaction of `delete`, with the lock free. Yields the numbers."""
    real, turns = Catalogue.write, list[int]()
    inside = False

    def write(self: Catalogue, body: Callable[[CatalogueTxn], Any]) -> Any:
        nonlocal inside
        if not inside:
            inside = True
            turns.append(len(turns))
            act(turns[-1])
            inside = False
        return real(self, body)

    with monkeypatch.context() as patch:
        patch.setattr(Catalogue, "write", write)
        yield turns


def child_of(store: Store, parent: str) -> str:
    return lab.put(store, "late", {}, parent=parent).id


RACES: dict[str, Callable[[Store, Path], object]] = {
    "a branch is published": lambda store, folder: child_of(store, "r"),
    "a branch of a branch": lambda store, folder: child_of(
        store, next(pin.version for pin in store.pins() if pin.owner == "me")
    ),
    "a ref is rolled back onto it": lambda store, folder: store.rollback("s", "s@old"),
    "a branch is imported": lambda store, folder: store.import_archive(folder / "x.plot"),
    "a version is tagged": lambda store, folder: store.tag("r", "kept"),
}


@pytest.mark.parametrize("turn", [0, 1, DELETE_TRIES - 1])
@pytest.mark.parametrize("race", RACES)
def test_what_comes_between_the_look_and_the_lock_holds_the_ref(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, race: str, turn: int
) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", {})
    lab.put(store, "s", {}, parent="r")
    store.tag("s", "old")
    lab.put(store, "other", {})
    lab.put(store, "s", {}, parent="other")
    lab.put(store, "moved", {}, parent="r")
    store.export("moved", tmp_path / "x.plot")
    store.delete("moved")
    store.pin("r/a", "me")
    store.delete("r/a")
    head = store.version("r").id

    def act(number: int) -> None:
        if number < turn:
            store.pin("r", f"owner-{number}")  # something else is committed
        elif number == turn:
            RACES[race](store, tmp_path)

    with (
        before_the_lock(monkeypatch, act) as turns,
        pytest.raises(InUse, match=r"of (late|moved|s): delete|r@kept"),
    ):
        store.delete("r")
    assert turns == list(range(turn + 1))
    assert store.version("r").id == head
    store.gc(keep_versions=1, orphan_age_s=-60)
    lab.check(store)


def test_a_ref_goes_though_others_commit_all_the_time(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    for ref in ("r", "r/a", "r/b"):
        lab.put(store, ref, {})
    with before_the_lock(monkeypatch, lambda number: store.pin("r", f"owner-{number}")) as turns:
        store.delete("r/a")
    assert turns == list(range(DELETE_TRIES)), "the last one looks with the lock"
    with before_the_lock(monkeypatch, lambda number: None) as turns:
        store.delete("r/b")
    assert turns == [0]
    with (
        before_the_lock(monkeypatch, lambda number: Store.open(store.path).delete("r")),
        pytest.raises(NotFound),
    ):
        store.delete("r")
    assert store.heads() == {}


def test_a_dependant_that_goes_meanwhile_frees_the_ref(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refs that fall back on each other: one of them is deleted while the other is."""
    lab.put(store, "w", {})
    first = {ref: lab.put(store, ref, {}, parent="w").id for ref in "xy"}
    second = {ref: lab.put(store, ref, {}, parent=first[of]).id for ref, of in (("x", "y"), ("y", "x"))}
    for ref in "xy":
        assert store.version(ref).id == second[ref]
    assert (store.children("x"), store.children("y")) == (["y"], ["x"])
    with before_the_lock(monkeypatch, lambda number: number == 0 and Store.open(store.path).delete("y")):
        store.delete("x")
    assert set(store.heads()) == {"w"}
    lab.check(store)


def test_the_lock_is_held_for_the_ref_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No records but the ref's own are touched with the lock, however many there are."""
    for ref in ("r", *(f"r/b{number}" for number in range(30))):
        lab.put(store, ref, {})
    touched: list[str] = []
    for name in ("get", "raw", "has", "keys", "raw_keys", "raw_items", "delete", "put"):
        real = getattr(CatalogueTxn, name)

        def call(self: CatalogueTxn, key: str, *rest: Any, _real: Any = real, _name: str = name) -> Any:
            if self._writes:
                touched.append(f"{_name} {key}")
            return _real(self, key, *rest)

        monkeypatch.setattr(CatalogueTxn, name, call)
    store.delete("r/b7")
    assert touched == ["keys agreed/r/b7@", "raw_keys agreed/r/b7@", "delete ref/r/b7"]
    touched.clear()
    with pytest.raises(InUse, match=r"r/b0, .* and 9 more"):
        store.delete("r")
    assert touched == [], "what is in use is refused without the lock"


def test_following_does_not_hold_up_a_fork_or_a_growing_map(store: Store) -> None:
    """A follower is outside of any transaction while it waits."""
    with following(store, {}) as found:
        pid = os.fork()
        if not pid:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        catalogue = store._env().catalogue
        catalogue._database._resize(2 * catalogue._database._env.info()["map_size"])
        lab.put(store, "r", {})
    assert found == [store.heads()]
