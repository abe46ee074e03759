"""Erasures at remotes: a push brings one there, a pull brings it to other stores, and nothing undoes it."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import plotlab as lab
import pytest
from eraselab import BASE, GONE, MORE, OTHERS, contains, expect, keys_of, rows_of, traces, without
from remotelab import Place, pull, push, whole
from test_store_remote_faults import WAYS, faults

from plot_store import Conflict, Damaged, Remote, Store
from plot_store.remote import format, refs
from plot_store.remote.objects import Objects, open_objects

LEFT = [lab.entries(without(MORE, GONE)), lab.entries(without(BASE, GONE))]


def filled(store: Store) -> set[bytes]:
    """Publish a chain. Returns the bytes of what is to be erased: keys and rows."""
    lab.put(store, "r", BASE)
    lab.put(store, "r/a", MORE)
    return keys_of(GONE) | rows_of(store, [v.id for v in store.chain("r/a")], GONE)


def erased(store: Store) -> None:
    store.erase(["r", "r/a"], GONE)


def traces_at(objects: Objects, wanted: set[bytes]) -> int:
    """How many of these byte strings any object holds."""
    raw = []
    for below in ("refs", "versions", "segments", "erased", "attached"):
        for found in objects.listed(below):
            data = objects.get(found.name)
            assert data is not None
            raw.append(data[0])
    return sum(any(one in data for data in raw) for one in wanted)


def collected(url: str) -> None:
    Remote(url).collect(age_s=0)


def test_an_erasure_goes_there_with_the_next_push(store: Store, other: Store, url: str) -> None:
    wanted = filled(store)
    ids = [version.id for version in store.chain("r/a")]
    store.push("r/a", url)
    other.pull("r/a", url)
    objects = open_objects(url)
    assert traces_at(objects, wanted) == traces(other.path, wanted) == len(wanted)
    erased(store)
    sent = store.push("r/a", url)
    new = {now for version in store.chain("r/a") for was, now in version.erased if now not in (was, None)}
    assert sent.bytes == sum(segment.bytes for segment in new) > 0
    assert whole(objects) == {"r/a": ids[0]}
    place = Place(objects)
    assert push(store, place, "r/a").bytes == 0
    collected(url)
    assert traces_at(objects, wanted) == 0
    assert whole(objects) == {"r/a": ids[0]}

    assert other.pull("r/a", url).version == store.version("r/a")  # it has the versions as they were
    assert traces(other.path, wanted) == 0
    with Store.open(other.path.parent / "fresh", create=True) as fresh:
        fresh.pull("r/a", url)
        for one in (other, fresh):
            assert one.chain("r/a") == store.chain("r/a")
            assert [version.id for version in one.chain("r/a")] == ids
            assert contains(one, "r/a", GONE) == {False}
            expect(one, "r/a", LEFT)
            lab.check(one)
        assert fresh.push("r/a", url).bytes == 0
        fresh.append("r/a", {3: OTHERS[3]})
        fresh.push("r/a", url)
    other.pull("r/a", url)
    assert contains(other, "r/a", GONE) == {False}
    assert traces_at(objects, wanted) == 0


def test_older_versions_lose_it_too(store: Store, url: str) -> None:
    """It is erased from those that this store has. The others leave the list, and a collection takes them."""
    wanted = filled(store)
    store.push("r", url)
    first = store.version("r").id
    lab.put(store, "r", {**BASE, 3: OTHERS[3]})  # without a segment of the first
    store.push("r", url)
    store.gc(keep_versions=1, orphan_age_s=-60)
    assert first in {v.id for v in store.chain("r/a")}
    store.delete("r/a")
    store.gc(keep_versions=1, orphan_age_s=-60)
    second = store.append("r", {3: MORE[3]})
    store.push("r", url)
    store.append("r", {2: OTHERS[2]})
    assert traces_at(open_objects(url), wanted)
    erased_at = store.erase(["r"], GONE)
    assert second.id in erased_at.versions
    store.push("r", url)
    collected(url)
    assert traces_at(open_objects(url), wanted) == 0
    assert whole(open_objects(url)) == {"r": store.version("r").id}
    state = refs.need_ref(open_objects(url), "r")
    assert first not in state.versions
    assert second.id in state.versions
    Remote(url).delete("r")
    collected(url)
    objects = open_objects(url)
    assert not [one for below in ("versions", "segments", "erased") for one in objects.listed(below)]


def test_a_store_that_still_has_it_brings_nothing_back(store: Store, other: Store, url: str) -> None:
    wanted = filled(store)
    store.push("r/a", url)
    other.pull("r/a", url)
    before = other.version("r/a").id
    other.append("r/a", {3: MORE[3]})
    erased(store)
    store.push("r/a", url)
    collected(url)
    with pytest.raises(Conflict, match="this store has them, or had them: delete r here"):
        other.push("r/a", url)
    assert traces_at(open_objects(url), wanted) == 0
    other.rollback("r/a", before)
    with pytest.raises(Conflict, match=r"another version of this store has segment .* collect it"):
        other.pull("r/a", url)
    for ref in ("r/a", "r"):
        other.delete(ref)
    other.gc(keep_versions=1, orphan_age_s=-60)
    other.pull("r/a", url)
    other.append("r/a", {3: OTHERS[3]})
    other.push("r/a", url)
    assert traces_at(open_objects(url), wanted) == traces(other.path, wanted) == 0


def test_a_store_that_collected_what_it_had_brings_nothing_back(store: Store, other: Store, url: str) -> None:
    """Its compaction has other segments, and it lacks the version that the remote erased from."""
    wanted = filled(store)
    store.push("r", url)
    other.pull("r", url)
    other.append("r", MORE)
    other.compact("r", max_segments=1)
    other.gc(keep_versions=1, orphan_age_s=-60)
    erased(store)
    store.push("r", url)
    with pytest.raises(Conflict, match="this store has them, or had them: delete r"):
        other.push("r", url)
    collected(url)
    assert traces_at(open_objects(url), wanted) == 0
    store.append("r", {2: OTHERS[2]})
    store.compact("r", max_segments=1)
    store.delete("r/a")
    store.gc(keep_versions=1, orphan_age_s=-60)  # the store that erased lacks that version, too
    assert store.push("r", url).version == store.version("r")


def test_an_erasure_comes_to_each_ref_with_its_own_pull(store: Store, other: Store, url: str) -> None:
    """Nothing is left of a segment of each. Neither pull waits for the other."""
    gone = {3: BASE[3][0][:5]}
    for ref, seed in (("r", 5), ("s", 6)):
        lab.put(store, ref, without(lab.content(seed), gone))
        store.append(ref, {3: (gone[3], BASE[3][1][:5] * seed)})
        store.push(ref, url)
        other.pull(ref, url)
    store.erase(["r", "s"], gone)
    for ref in ("r", "s"):
        store.push(ref, url)
    for ref in ("r", "s"):
        assert other.pull(ref, url).version == store.version(ref)
        lab.check(other)
    assert traces(other.path, keys_of(gone)) == 0


def test_an_erasure_beside_a_push_leaves_the_remote_whole(store: Store, url: str) -> None:
    """The store erases at a call of the push, which tells of an earlier erasure."""
    more, wanted = {3: BASE[3][0][30:40]}, dict[str, str]()
    for at in range(200):
        ref = f"r{at}"
        lab.put(store, ref, BASE)
        store.push(ref, url)
        store.erase([ref], GONE)
        place = Place(open_objects(url))
        call = place._call

        def calling(kind: str, *given: Any, place=place, call=call, ref=ref, at=at) -> Any:  # type: ignore[no-untyped-def]
            if len(place.calls) == at:
                store.erase([ref], more)
            return call(kind, *given)

        place._call = calling  # type: ignore[method-assign]
        with contextlib.suppress(Conflict):
            push(store, place, ref)
        wanted[ref] = store.version(ref).id
        assert whole(place.inner) == wanted
        store.erase([ref], more)
        store.push(ref, url)
        if len(place.calls) <= at:
            break
    assert at > 10
    collected(url)
    assert traces_at(open_objects(url), keys_of({3: GONE[3]}) | keys_of(more)) == 0


def test_two_stores_that_erase_apart_do_not_mix(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    other.pull("r/a", url)
    erased(store)
    other.erase(["r"], {3: BASE[3][0][30:40]})
    store.push("r/a", url)
    with pytest.raises(Conflict, match="n-grams were erased from version"):
        other.push("r/a", url)
    assert whole(open_objects(url)) == {"r/a": store.version("r/a").id}


def test_a_second_erasure_follows_the_first(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    erased(store)
    store.push("r/a", url)
    other.pull("r/a", url)
    more = {3: BASE[3][0][30:40]}
    other.erase(["r"], more)
    other.push("r/a", url)
    collected(url)
    store.pull("r/a", url)
    assert store.chain("r/a") == other.chain("r/a")
    assert contains(store, "r/a", more) == {False}
    assert traces_at(open_objects(url), keys_of(more)) == traces(store.path, keys_of(more)) == 0
    lab.check(store)
    store.push("r/a", url)
    with Store.open(store.path.parent / "fresh", create=True) as fresh:
        fresh.pull("r/a", url)
        assert fresh.chain("r/a") == store.chain("r/a")


@pytest.mark.parametrize("how", WAYS)
def test_each_call_of_an_erasing_push_may_fail(store: Store, url: str, how: str, tmp_path: Path) -> None:
    rounds = iter(range(200))

    def run(place: Place) -> None:
        ref = f"r{next(rounds)}"
        lab.put(store, ref, BASE)
        store.push(ref, url)
        store.erase([ref], GONE)
        wanted[ref] = store.version(ref).id
        push(store, place, ref)

    wanted: dict[str, str] = {}
    for place in faults(url, run, how):
        ref = list(wanted)[-1]
        assert whole(place.inner) == wanted
        with Store.open(tmp_path / f"{ref}-before", create=True) as between:
            assert between.pull(ref, url).version.id == wanted[ref]
            lab.check(between)
        store.push(ref, url)
        place.arrive()
        assert whole(place.inner) == wanted
        with Store.open(tmp_path / f"{ref}-after", create=True) as after:
            assert after.pull(ref, url).version == store.version(ref)
            assert contains(after, ref, GONE) == {False}
    collected(url)
    assert whole(open_objects(url)) == wanted
    assert traces_at(open_objects(url), keys_of(GONE)) == 0


@pytest.mark.parametrize("how", WAYS)
def test_each_call_of_a_pull_that_erases_may_fail(store: Store, url: str, how: str, tmp_path: Path) -> None:
    wanted = filled(store)
    store.push("r/a", url)
    erased(store)
    with Store.open(tmp_path / "stale", create=True) as stale:
        stale.pull("r/a", url)
    store.push("r/a", url)
    copies: list[Store] = []

    def run(place: Place) -> None:
        copy = shutil.copytree(tmp_path / "stale", tmp_path / f"copy{len(copies)}")
        copies.append(Store.open(copy))
        pull(copies[-1], place, "r/a")

    for _ in faults(url, run, how):
        with copies[-1] as copy:
            lab.check(copy)
            assert copy.pull("r/a", url).version == store.version("r/a")
            assert traces(copy.path, wanted) == 0


def test_a_damaged_list_of_erased_segments_is_named(store: Store, other: Store, url: str) -> None:
    filled(store)
    erased(store)
    store.push("r/a", url)
    name = format.erased_name(store.version("r/a").id)
    for wrong in (b"{}", b'{"format":1,"erased":{"x":null}}', b'{"format":1,"erased":[]}'):
        open_objects(url).put(name, memoryview(wrong))
        with pytest.raises(Damaged, match=f"the object {name} is damaged"):
            other.pull("r/a", url)
    assert other.refs() == {}
