"""A registry that nodes share by a journal in object storage."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import zstandard

from hmi.errors import Conflict, Damaged, HmiError, InvalidInput, NotFound, Unavailable
from hmi.stores.journal import format as fmt
from hmi.stores.journal import journal as journals
from hmi.stores.journal.format import Entry
from hmi.stores.journal.journal import Journal
from hmi.stores.records import journaled, nodes
from hmi.stores.records.registry import Registry
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import RegistryTxn, records
from plot_store.remote.objects import open_objects
from tests.bucket import credentials
from tests.hmi.labs.registry_lab import add_tenant, job
from tests.plot_store.remotelab import Place

FAULTS = ("before", "after", "late", "twice")


class Died(BaseException):
    """The end of a process, as its own code sees it."""


class Mortal(Place):
    """A place at which the process dies before the call `at`, or after it."""

    def _call(self, kind: str, body: Callable[..., Any], *given: Any) -> Any:
        self.calls.append(kind)
        if len(self.calls) == self.at and self.how == "before":
            raise Died
        found = body(*given)
        if len(self.calls) == self.at:
            raise Died
        return found


class Node:
    """A node's database, and the place of its journal."""

    def __init__(self, folder: Path, bucket: Path, *, wait: bool = False) -> None:
        folder.mkdir(exist_ok=True)
        self.database = RegistryDatabase.open(folder)
        self.journal = Journal(str(bucket))
        if not wait:
            self.database.follow(self.journal)

    def at(self, place: Place | None) -> None:
        """Let the journal use another place; None: one that works."""
        self.journal._objects = open_objects(self.journal.place) if place is None else place

    def add(self, key: str, by: int = 1) -> int:
        """Read a number, write the sum, and return it."""

        def body(txn: RegistryTxn) -> int:
            found = int(txn.get(key) or b"0") + by
            txn.put(key, str(found).encode())
            return found

        return self.database.write(body)

    def drop(self, key: str) -> bool:
        return self.database.write(lambda txn: txn.delete(key))

    def all(self) -> dict[str, str]:
        found = self.database._database.read(lambda raw: dict(records(raw)))
        own = (journaled.POSITION, nodes.NODE)
        return {key: body.decode() for key, body in found.items() if key not in own}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Callable[[str], Node]]:
    with ExitStack() as stack:

        def make(name: str, *, wait: bool = False) -> Node:
            made = Node(tmp_path / name, tmp_path / "bucket", wait=wait)
            stack.callback(made.database.release)
            return made

        yield make


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts begin, and all records are written anew, after few changes."""
    monkeypatch.setattr(fmt, "_INLINE", 500)
    monkeypatch.setattr(journals, "_LEAST", 1000)
    monkeypatch.setattr(journals, "_PIECE", 300)
    monkeypatch.setattr(journals, "_AGE_S", 0.0)


def test_nodes_have_each_others_records(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "bucket"))
    with ExitStack() as stack:

        def opened(name: str) -> Registry:
            found = Registry.open(tmp_path / name / "registry", journal=journal)
            stack.callback(found.close)
            return found

        first = opened("a")
        add_tenant(first, "beta")
        first.put_job(job("j1", tenant="beta"))
        second = opened("b")
        assert second.tenants() == first.tenants()
        assert second.jobs() == first.jobs()
        add_tenant(second, "gamma")
        with pytest.raises(NotFound):
            first.tenant("gamma")
        generation = first.generation()
        assert first.catch_up()
        assert first.generation() > generation, "what is cached by generation is read again"
        assert not first.catch_up()
        assert first.tenant("gamma") == second.tenant("gamma")
        first.delete_tenant("gamma")
        with pytest.raises(Conflict, match="beta"):
            add_tenant(second, "beta")
        second.catch_up()
        assert [t.tenant for t in second.tenants()] == ["beta"]


def test_a_writer_sees_all_changes_before_its_own(node: Callable[[str], Node]) -> None:
    a, b = node("a"), node("b")
    assert [n.add("n") for n in (a, b, b, a, b)] == [1, 2, 3, 4, 5]
    assert a.add("m") == 1
    assert b.drop("m")
    assert not a.drop("m")
    assert a.all() == {"n": "5"}


def test_an_existing_registry_begins_the_journal(node: Callable[..., Node]) -> None:
    a = node("a", wait=True)
    for i in range(50):
        a.add(f"key{i}", i)
    a.database.follow(a.journal)
    b = node("b")
    assert b.all() == a.all()
    assert b.add("key7") == 8


def test_a_node_that_was_away_follows_over_new_wholes(node: Callable[[str], Node], short: None) -> None:
    a, late = node("a"), node("late")
    late.add("n")
    for i in range(200):
        a.add(f"key{i % 30}", i)
        if i % 7 == 0:
            a.drop(f"key{i % 11}")
    head, _ = a.journal.need_head()
    assert head.whole.at > 100
    assert late.database.catch_up()
    assert late.all() == a.all() == node("new").all()
    listed = [one.name for below in ("parts", "whole") for one in a.journal._objects.listed(below)]
    assert len(listed) < 60, "what no head needs is removed"


def test_a_paused_writer_changes_nothing(node: Callable[[str], Node], short: None) -> None:
    a, b = node("a"), node("b")
    a.add("n")
    head, tag = a.journal.need_head()
    for _ in range(100):  # the parts that the paused writer knows are gone
        b.add("n")
    entry = Entry(head.at + 1, "0" * 32, head.by, {"n": "1000"})
    assert not a.journal.append(head, tag, entry)
    assert a.add("n") == b.add("n") - 1 == 102


def test_changes_of_many_threads_follow_each_other(node: Callable[[str], Node]) -> None:
    nodes = [node("a"), node("b"), node("c")]
    got: list[int] = []

    def work(n: Node) -> None:
        for _ in range(15):
            got.append(n.add("n"))

    threads = [threading.Thread(target=work, args=(n,)) for n in nodes for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(1, 91))


@pytest.mark.parametrize("seed", range(5))
def test_histories_with_faults_have_one_order(
    node: Callable[[str], Node], short: None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change that was acknowledged is there once; one of unknown outcome once, or not at all."""
    monkeypatch.setattr(journaled, "_AWAY_S", 0.0)
    rng = random.Random(seed)
    names, nodes, late = list("abc"), {}, list[Place]()
    for name in names:
        nodes[name] = node(name)
    sure, unsure, seen = 0, 0, list[int]()
    for step in range(150):
        name = rng.choice(names)
        one = nodes[name]
        place = None
        if rng.random() < 0.4:
            kind = rng.choice((*FAULTS, "dies", "died"))
            at, inner = rng.randrange(1, 6), open_objects(one.journal.place)
            if kind in FAULTS:
                place = Place(inner, at, kind)
            else:
                place = Mortal(inner, at, "before" if kind == "dies" else "")
            late.append(place)
        one.at(place)
        try:
            if rng.random() < 0.2:
                one.database.catch_up()
            else:
                one.add(f"pad{step % 5}", step)
                seen.append(one.add("n"))
                sure += 1
        except (HmiError, Died):
            unsure += 1
        if late and rng.random() < 0.3:
            late.pop(rng.randrange(len(late))).arrive()
    assert seen == sorted(set(seen)), "each change saw those before it"
    for one in nodes.values():
        one.at(None)
        one.database.catch_up()
    alls = [one.all() for one in nodes.values()] + [node("new").all()]
    assert all(found == alls[0] for found in alls)
    assert sure <= int(alls[0]["n"]) <= sure + unsure
    assert unsure, "no fault struck"


@pytest.mark.parametrize("how", [*FAULTS, "dies", "died"])
def test_any_call_may_fail_while_a_node_joins_or_changes(
    node: Callable[..., Node], short: None, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journaled, "_AWAY_S", 0.0)
    for at in range(1, 30):
        one = node(f"n{at}", wait=True)
        inner = open_objects(one.journal.place)
        place = (
            Place(inner, at, how) if how in FAULTS else Mortal(inner, at, "before" if how == "dies" else "")
        )
        one.at(place)
        try:
            one.database.follow(one.journal)
            one.add("n")
        except (HmiError, Died):
            pass
        struck = len(place.calls) >= at
        place.arrive()
        one.at(None)
        one.database.follow(one.journal)
        before = one.all().get("n", "0")
        assert one.add("n") == int(before) + 1
        if not struck:
            break
    assert at > 4
    assert node("new").all() == one.all()


def test_a_killed_process_leaves_its_change_whole_or_not_at_all(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from plot_store.remote.objects import open_objects
from tests.hmi.stores.test_journal import Node, Place
node = Node(Path(sys.argv[1]) / "a", Path(sys.argv[1]) / "bucket")
print(node.all().get("n", "0"), flush=True)
node.at(Place(open_objects(node.journal.place), int(sys.argv[2]), sys.argv[3]))
print(node.add("n"), flush=True)
"""
    last = 0
    for how in ("kill", "killed"):  # before the swap of the head, and after it
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path), "2", how], capture_output=True, text=True
        )
        found = int(done.stdout.split()[0])
        assert done.returncode == -9, done.stderr
        assert found == last
        last += how == "killed"  # the change is there though nobody heard of it
    other = Node(tmp_path / "b", tmp_path / "bucket")
    try:
        assert other.add("n") == last + 1
    finally:
        other.database.release()


def test_a_large_change_makes_the_map_grow_after_it_was_published(tmp_path: Path) -> None:
    """The change is made once, although its transaction runs again."""
    nodes = [RegistryDatabase.open(_made(tmp_path / name), first_map=1 << 16) for name in "ab"]
    try:
        for database in nodes:
            database.follow(Journal(str(tmp_path / "bucket")))

        def body(txn: RegistryTxn) -> int:
            count = int(txn.get("n") or b"0") + 1
            txn.put("n", str(count).encode())
            txn.put(f"big{count}", b"x" * 9000)
            return count

        assert [nodes[i % 2].write(body) for i in range(40)] == list(range(1, 41))
    finally:
        for database in nodes:
            database.release()


def test_while_the_place_is_away_nothing_changes_and_all_is_read(
    node: Callable[..., Node], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = node("a")
    a.add("n", 5)
    a.at(Place(a.journal._objects, 1, "before"))
    with pytest.raises(Unavailable, match="try again"):
        a.add("n")
    with pytest.raises(Unavailable, match="did not answer a moment ago") as refused:
        a.add("n")
    assert refused.value.details["retry_after_s"] > 0
    assert a.all() == {"n": "5"}
    again = RegistryDatabase.open(tmp_path / "a")  # a restart
    away = Journal(str(tmp_path / "bucket"))
    away._objects = Place(away._objects, 1, "before")
    again.follow(away)
    again.release()
    new = node("new", wait=True)
    new.at(Place(new.journal._objects, 1, "before"))
    with pytest.raises(Unavailable):
        new.database.follow(new.journal)


def test_a_foreign_registry_is_refused(node: Callable[..., Node], tmp_path: Path) -> None:
    a = node("a")
    a.add("n")
    other = node("other", wait=True)
    other.add("mine")
    with pytest.raises(InvalidInput, match="of its own") as refused:
        other.database.follow(other.journal)
    assert refused.value.details["field"] == "bucket"
    assert other.all() == {"mine": "1"}
    elsewhere = Journal(str(tmp_path / "elsewhere"))
    with pytest.raises(InvalidInput, match="of its own"):
        a.database.follow(elsewhere)


def test_a_shared_registry_is_not_changed_by_who_does_not_know_its_bucket(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path / "bucket"))
    registry = Registry.open(tmp_path / "a" / "registry", journal=journal)
    add_tenant(registry, "beta")
    registry.close()
    alone = Registry.open(tmp_path / "a" / "registry")
    assert [t.tenant for t in alone.tenants()] == ["beta"]
    with pytest.raises(InvalidInput, match="HMI_BUCKET"):
        add_tenant(alone, "gamma")
    alone.leave_journal()
    add_tenant(alone, "gamma")
    alone.close()


@pytest.mark.parametrize("fresh", [True, False])
def test_a_place_that_ignores_conditions_is_refused(node: Callable[..., Node], fresh: bool) -> None:
    """fresh: it ignores that there must be no object; else that the object must be the one with the tag."""

    class Careless(Place):
        def swap(self, name: str, data: bytes, tag: str | None) -> bool:
            if (tag is None) != fresh:
                return super().swap(name, data, tag)
            self.put(name, memoryview(data))
            return True

    one = node("a", wait=True)
    one.at(Careless(one.journal._objects))
    with pytest.raises(Damaged, match="ignores the condition"):
        one.database.follow(one.journal)


def test_an_older_head_is_refused(node: Callable[[str], Node]) -> None:
    """As after the bucket's older version of the head was restored."""
    a, b = node("a"), node("b")
    a.add("n")
    old = a.journal._objects.get(fmt.HEAD)
    assert old is not None
    a.add("n")
    a.journal._objects.put(fmt.HEAD, memoryview(old[0]))
    for change in (lambda: a.add("n"), a.database.catch_up):
        with pytest.raises(Damaged, match="lacks changes"):
            change()
    for _ in range(3):  # another history goes on from there
        b.add("n", 7)
        with pytest.raises(Damaged, match="lacks changes"):
            a.database.catch_up()


def test_damage_and_newer_formats_are_named(node: Callable[[str], Node], short: None) -> None:
    a = node("a")
    for i in range(30):
        a.add(f"n{i}")
    head, _ = a.journal.need_head()
    objects = a.journal._objects
    b = node("b")
    for i in range(3):
        a.add(f"n{i}", 100)
    later, _ = a.journal.need_head()
    (name, *_) = sorted(later.names - head.names) or sorted(later.names)
    found = objects.get(name)
    assert found is not None
    for bad in (found[0][:-1] + b"x", b"", b"x" * 100):
        objects.put(name, memoryview(bad))
        with pytest.raises(Damaged, match="does not match the hash"):
            node(f"new{len(bad)}")
    objects.remove([name])
    with pytest.raises(Damaged, match="is missing"):
        node("newest")
    raw = json.dumps({"format": 2, "value": {}}).encode()
    objects.put(fmt.HEAD, memoryview(zstandard.compress(raw)))
    with pytest.raises(Damaged, match="format 2, and this release reads up to 1: upgrade"):
        b.add("n")
    objects.remove([fmt.HEAD])
    with pytest.raises(Unavailable, match="is gone"):
        b.add("n")


def test_a_journal_lies_in_s3(bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in credentials(bucket).items():
        monkeypatch.setenv(name, value)
    nodes = []
    for name in "ab":
        database = RegistryDatabase.open(_made(tmp_path / name))
        database.follow(Journal("s3://plots/hmi/registry"))
        nodes.append(database)

    def body(txn: RegistryTxn) -> int:
        count = int(txn.get("n") or b"0") + 1
        txn.put("n", str(count).encode())
        return count

    assert [nodes[i % 2].write(body) for i in range(6)] == [1, 2, 3, 4, 5, 6]
    for database in nodes:
        database.release()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_only_the_primary_changes_records(node: Callable[[str], Node]) -> None:
    a, b = node("a"), node("b")
    assert a.add("n") == b.add("n") - 1 == 1, "before there is a primary, all may"
    assert a.database.write(lambda txn: nodes.lead(txn, "http://a"))
    assert not a.database.write(lambda txn: nodes.lead(txn, "http://a"))
    assert a.add("n") == 3
    with pytest.raises(Unavailable, match="another server is the primary"):
        b.add("n")
    b.add("keyused/k")  # a record of the node's own
    assert "keyused/k" not in a.all()
    assert b.database.write(lambda txn: nodes.lead(txn, "http://b"))
    assert a.database.read(nodes.is_primary), "it has not heard of it yet"
    with pytest.raises(Unavailable, match="another server is the primary"):
        a.add("n")
    a.database.catch_up()
    assert not a.database.read(nodes.is_primary)
    assert b.add("n") == 4
