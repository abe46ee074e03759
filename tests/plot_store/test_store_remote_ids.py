"""Versions by their ids: pushed and pulled beside what refs are at, kept, removed, and erased from."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest
from eraselab import BASE, GONE, MORE, OTHERS, contains, expect, keys_of, rows_of, traces, without
from remotelab import Place, pull, push, whole
from test_store_fetching import at_once, through
from test_store_remote_erased import traces_at
from test_store_remote_faults import WAYS, faults

from plot_store import Conflict, Invalid, Limits, NotFound, Remote, Store, StoreIO
from plot_store.ground.files import folder_bytes
from plot_store.remote import format, refs
from plot_store.remote.objects import open_objects

LEFT = [lab.entries(without(MORE, GONE)), lab.entries(without(BASE, GONE))]


def rebuilt(store: Store, url: str, times: int) -> list[str]:
    """Publish a domain anew and push it, again and again. Returns its versions, the oldest first."""
    lab.put(store, "r", lab.content(0))
    ids = []
    for seed in range(times):
        ids.append(lab.put(store, "r/a", lab.content(10 + seed)).id)
        store.push("r/a", url)
    return ids


def same_rows(store: Store, other: Store, version: str) -> None:
    """Assert that two stores look up the same bits in a version."""
    with store.reader(version) as mine, other.reader(version) as theirs:
        rows, hits = lab.look(theirs, lab.texts(1))
        wanted, wanted_hits = lab.look(mine, lab.texts(1))
    assert np.array_equal(rows.view(np.uint32), wanted.view(np.uint32))
    assert hits.counts() == wanted_hits.counts()


def test_an_older_version_is_read_where_nothing_is(store: Store, other: Store, url: str) -> None:
    """A model stays on a version of a domain that was built anew since."""
    ids = rebuilt(store, url, 4)
    place = Place(open_objects(url))
    reads = through(other, place)
    reads.reader(ids[0]).close()
    assert other.refs() == {}
    same_rows(store, other, ids[0])
    assert [version.id for version in other.chain(ids[0])] == [version.id for version in store.chain(ids[0])]
    calls = len(place.calls)
    reads.reader(ids[0]).close()
    assert len(place.calls) == calls  # it needs no network
    other.gc(keep_versions=1, orphan_age_s=-60)
    for version in ids[1:]:
        reads.reader(version).close()
        same_rows(store, other, version)
    with pytest.raises(NotFound, match="there is no version v0000"):
        reads.reader("v" + "0" * 32)
    lab.check(other)
    reads.release(keep=[ids[1]])
    other.gc(keep_versions=1, orphan_age_s=-60)
    assert {meta.id for meta in other.metas()} == {version.id for version in store.chain(ids[1])}
    reads.reader(ids[0]).close()
    same_rows(store, other, ids[0])


def test_a_version_beside_its_ref(store: Store, other: Store, url: str) -> None:
    ids = rebuilt(store, url, 2)
    other.pull("r/a", url)
    other.pull(ids[0], url)
    assert other.version("r/a").id == ids[1]
    assert [version.id for version in other.history("r/a")] == [ids[1]]
    assert other.pull(ids[0], url).bytes == 0
    other.rollback("r/a", ids[0])
    assert other.push("r/a", url).version.id == ids[0]
    assert Remote(url).refs() == {"r/a": ids[0]}
    lab.check(other)


def test_many_ask_for_versions_and_each_comes_once(store: Store, other: Store, url: str) -> None:
    ids = rebuilt(store, url, 4)
    place = Place(open_objects(url))
    reads = through(other, place)
    assert at_once(16, lambda number: reads.reader(ids[number % 4]).close()) == [None] * 16
    names = {info.name for one in ids for version in store.chain(one) for info in version.segments}
    assert place.calls.count("read") == len(names)
    lab.check(other)


@pytest.mark.parametrize("url", ["folder", "s3"], indirect=True)
def test_the_bound_holds(store: Store, other: Store, url: str) -> None:
    """Those used longest ago go, if the remote has them. What many fall back on stays."""
    ids = rebuilt(store, url, 6)
    own = store.version(ids[0]).bytes
    most = folder_bytes(other.path) + store.version("r").bytes + int(3.9 * own) + (1 << 17)
    Store.open(other.path, limits=Limits(max_bytes=most)).close()
    reads = other.fetching(url)
    for version in [*ids, *ids[::-1]]:
        reads.reader(version).close()
        same_rows(store, other, version)
        assert folder_bytes(other.path) <= most
    assert 3 <= len(other.metas()) < 7
    used = other.fetching(url)
    used.reader(ids[0]).close()
    Remote(url).delete("r/a")
    Remote(url).collect(age_s=0, keep=[ids[5]])
    lab.check(other)


def test_a_version_goes_there_without_its_ref(store: Store, other: Store, url: str) -> None:
    """A crash came between the publication and the push, and the ref has moved since."""
    lab.put(store, "r", lab.content(0))
    lost = lab.put(store, "r/a", lab.content(1))
    store.push("r", url)
    sent = store.push(lost.id, url)
    assert (sent.version, sent.bytes) == (lost, lost.bytes)
    assert Remote(url).refs().keys() == {"r"}
    assert store.push(lost.id, url).bytes == 0
    now = lab.put(store, "r/a", lab.content(2))
    store.push("r/a", url)
    store.push(lost.id, url)
    assert whole(open_objects(url)) == {"r": store.version("r").id, "r/a": now.id}
    other.fetching(url).reader(lost.id).close()
    same_rows(store, other, lost.id)
    with pytest.raises(Invalid, match="attached"):
        store.push(lost.id, url, attached={"x": store.path})
    with pytest.raises(NotFound):
        store.push("v" + "0" * 32, url)


def test_a_collection_keeps_what_it_is_told(store: Store, other: Store, url: str) -> None:
    ids = rebuilt(store, url, 11)
    remote = Remote(url)
    absent = "v" + "0" * 32
    told = remote.collect(age_s=0, dry_run=True, keep=[ids[1], absent])
    done = remote.collect(age_s=0, keep=[ids[1], absent])
    assert done.objects == told.objects
    gone = {name for name in done.objects if name.startswith(format.VERSIONS)}
    assert gone == {format.version_name(ids[0]), format.version_name(ids[2])}
    other.pull(ids[1], url)
    same_rows(store, other, ids[1])
    with pytest.raises(NotFound):
        other.pull(ids[0], url)
    remote.delete("r/a")
    remote.collect(age_s=0, keep=[ids[1]])  # its root stays, too
    with Store.open(other.path.parent / "third", create=True) as third:
        third.pull(ids[1], url)
        same_rows(store, third, ids[1])
    remote.collect(age_s=0)
    assert list(open_objects(url).listed(format.SEGMENTS)) == []
    with pytest.raises(Invalid, match="keep holds 'r/a'"):
        remote.collect(keep=["r/a"])


def test_a_push_by_id_that_a_collection_took_for_dead(store: Store, url: str) -> None:
    rebuilt(store, url, 1)
    lost = lab.put(store, "r/a", lab.content(50))
    lab.put(store, "r/a", lab.content(51))

    class Paused(Place):
        def put(self, name: str, data: memoryview) -> None:
            super().put(name, data)
            if name == format.version_name(lost.id) and not self.at:
                self.at = 10_000
                Remote(url).collect(age_s=0)

    place = Paused(open_objects(url))
    push(store, place, lost.id)
    assert place.at
    assert refs.read_version(place.inner, lost.id) == lost
    assert refs.need_ref(place.inner, "r/a").pushing == ()
    whole(place.inner)


@pytest.mark.parametrize("how", WAYS)
def test_each_call_of_a_push_by_id_may_fail(store: Store, url: str, how: str) -> None:
    ids = rebuilt(store, url, 1)
    seeds = iter(range(100, 300))

    def run(place: Place) -> None:
        pushed.append(lab.put(store, "r/a", lab.content(next(seeds), (9, 3, 1))).id)
        push(store, place, pushed[-1])

    pushed: list[str] = []
    for place in faults(url, run, how):
        assert whole(place.inner) == {"r/a": ids[0]}
        store.push(pushed[-1], url)
        place.arrive()
        assert whole(place.inner) == {"r/a": ids[0]}
        assert refs.read_version(place.inner, pushed[-1]).id == pushed[-1]
    Remote(url).collect(age_s=0, keep=pushed)
    for version in pushed:
        assert refs.read_version(open_objects(url), version).id == version


@pytest.mark.parametrize("how", ["before", "twice"])
def test_each_call_of_a_pull_by_id_may_fail(store: Store, url: str, how: str, tmp_path: Path) -> None:
    ids = rebuilt(store, url, 3)
    rounds = iter(range(200))

    def run(place: Place) -> None:
        others.append(Store.open(tmp_path / f"to{next(rounds)}", create=True))
        pull(others[-1], place, ids[0])

    others: list[Store] = []
    for _ in faults(url, run, how):
        with others[-1] as other:
            lab.check(other)
            assert other.refs() == {}
            assert len(other.metas()) in (0, 2)
            other.pull(ids[0], url)
            same_rows(store, other, ids[0])


def filled(store: Store, url: str) -> tuple[set[bytes], list[str]]:
    """Push three versions: two of a domain, which share segments, and one on the older of them. Returns the
    bytes of what is to be erased, and their ids."""
    lab.put(store, "r", BASE)
    first = lab.put(store, "r/a", MORE).id
    store.push("r/a", url)
    child = lab.put(store, "r/a/x", {3: OTHERS[3]}, parent="r/a").id
    store.push("r/a/x", url)
    second = store.append("r/a", {2: OTHERS[2]}).id
    store.push("r/a", url)
    ids = [first, second, child]
    return keys_of(GONE) | rows_of(store, [v.id for v in store.chain("r/a")], GONE), ids


def test_an_erasure_comes_to_fetched_versions(store: Store, other: Store, url: str) -> None:
    wanted, (first, second, child) = filled(store, url)
    root = store.version("r").id
    place = Place(open_objects(url))
    reads = through(other, place)
    for version in (first, second, child):
        reads.reader(version).close()
    assert traces(other.path, wanted) == len(wanted)
    assert reads.follow_erasures() == set()
    store.erase(["r", "r/a"], GONE)
    store.push("r", url)
    store.push("r/a", url)
    with reads.reader(first):
        assert reads.follow_erasures() == {root, first, second, child}
    assert traces(other.path, wanted) == 0
    for version in (first, second, child):
        assert contains(other, version, GONE) == {False}
        same_rows(store, other, version)
    expect(other, first, LEFT)
    lab.check(other)
    place.calls.clear()
    assert reads.follow_erasures() == set()
    assert place.calls == ["get", "listed"]
    report = store.erase(["r/a"], {2: OTHERS[2][0][:2]})
    store.push("r/a", url)
    assert reads.follow_erasures() == {*report.versions, child}
    same_rows(store, other, second)
    lab.check(other)


def test_a_version_that_comes_after_an_erasure(store: Store, other: Store, url: str) -> None:
    """It shares segments with one that came before it. Both lose the n-grams, and the caller hears of it."""
    wanted, (first, second, _) = filled(store, url)
    reads = other.fetching(url)
    reads.reader(first).close()
    store.erase(["r", "r/a"], GONE)
    store.push("r", url)
    store.push("r/a", url)
    reads.reader(second).close()
    assert traces(other.path, wanted) == 0
    assert first in reads.follow_erasures()
    for version in (first, second):
        same_rows(store, other, version)
    lab.check(other)


def test_versions_that_no_list_names_lose_it_too(store: Store, other: Store, url: str) -> None:
    """A model may keep a version that left the remote's list long ago."""
    lab.put(store, "r", BASE)
    first = store.version("r").id
    store.push("r", url)
    store.pin(first, "model")
    for seed in range(9):
        lab.put(store, "r", {**OTHERS, 1: lab.content(60 + seed)[1]})
        store.push("r", url)
    assert first not in refs.need_ref(open_objects(url), "r").versions
    wanted = keys_of(GONE) | rows_of(store, [first], GONE)
    reads = other.fetching(url)
    reads.reader(first).close()
    store.erase(["r"], GONE)
    store.push("r", url)
    assert reads.follow_erasures() == {first}
    assert traces(other.path, wanted) == 0
    Remote(url).collect(age_s=0, keep=[first])
    assert traces_at(open_objects(url), wanted) == 0
    whole(open_objects(url))
    same_rows(store, other, first)


def test_another_version_that_has_it_is_named(store: Store, other: Store, url: str) -> None:
    _, (first, second, _) = filled(store, url)
    reads = other.fetching(url)
    reads.reader(first).close()
    with Store.open(other.path.parent / "apart", create=True) as apart:
        apart.pull(second, url)
        apart.export(second, apart.path.parent / "file")
    other.import_archive(other.path.parent / "file", ref="mine")
    store.erase(["r", "r/a"], GONE)
    store.push("r", url)
    store.push("r/a", url)
    with pytest.raises(Conflict, match="another version of this store has segment"):
        reads.follow_erasures()
    other.delete("mine")
    other.gc(keep_versions=1, orphan_age_s=-60)
    assert first in reads.follow_erasures()


@pytest.mark.parametrize("how", ["before", "twice"])
def test_each_call_of_following_may_fail(store: Store, url: str, how: str, tmp_path: Path) -> None:
    wanted, ids = filled(store, url)
    with Store.open(tmp_path / "stale", create=True) as stale:
        for version in ids:
            stale.pull(version, url)
    store.erase(["r", "r/a"], GONE)
    store.push("r", url)
    store.push("r/a", url)
    copies: list[Store] = []

    def run(place: Place) -> None:
        copies.append(Store.open(shutil.copytree(tmp_path / "stale", tmp_path / f"copy{len(copies)}")))
        through(copies[-1], place).follow_erasures()

    for _ in faults(url, run, how):
        with copies[-1] as copy:
            lab.check(copy)
            with contextlib.suppress(StoreIO):
                copy.fetching(url).follow_erasures()
            assert traces(copy.path, wanted) == 0
            lab.check(copy)
