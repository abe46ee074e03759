"""Each call of a push, a pull or a collection fails, is repeated or comes late: both sides stay whole."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import plotlab as lab
import pytest
from remotelab import Place, Shelf, files, pull, push, whole

from plot_store import Conflict, NotFound, Remote, Store, StoreIO
from plot_store.remote import collect, format
from plot_store.remote.objects import open_objects

WAYS = ("before", "after", "late", "twice")


def faults(url: str, run: Callable[[Place], object], how: str) -> Iterator[Place]:
    """Yield a place for each call of `run` after it went wrong there. On a server, some of the calls do."""
    for at in range(1, 200, 7 if url.startswith("s3") else 1):
        place = Place(open_objects(url), at, how)
        failed = None
        try:
            run(place)
        except StoreIO as error:
            failed = error
        assert failed is None or "failed" in str(failed)
        assert (failed is None) == (how == "twice" or len(place.calls) < at)
        yield place
        if len(place.calls) < at:
            return
    raise AssertionError("it makes too many calls")


@pytest.mark.parametrize("how", WAYS)
def test_a_first_push(store: Store, other: Store, url: str, how: str, tmp_path: Path) -> None:
    """Each round pushes another ref, with a root of its own."""
    rounds = iter(range(200))

    def run(place: Place) -> None:
        ref = f"r{next(rounds)}"
        lab.put(store, ref, lab.content(1))
        version = lab.put(store, f"{ref}/a", lab.content(2))
        wanted[f"{ref}/a"] = version.id
        push(store, place, f"{ref}/a", files(tmp_path, len(wanted), 0))

    wanted: dict[str, str] = {}
    shelf = Shelf()
    for place in faults(url, run, how):
        there = whole(place.inner)
        ref = list(wanted)[-1]
        assert there.items() <= wanted.items()
        store.push(ref, url, attached=files(tmp_path, len(wanted), 0))
        place.arrive()
        assert whole(place.inner) == wanted
        assert other.pull(ref, url, accept=shelf).version.id == wanted[ref]
        assert f"file-{len(wanted)}" in shelf
    assert shelf.sound()
    lab.check(other)
    Remote(url).collect(age_s=0)
    assert whole(open_objects(url)) == wanted


@pytest.mark.parametrize("how", WAYS)
@pytest.mark.parametrize("arrives", ["before the next", "after the next"])
def test_a_push_of_an_append(store: Store, other: Store, url: str, how: str, arrives: str) -> None:
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    seeds = iter(range(10, 300))

    def run(place: Place) -> None:
        store.append("r", lab.content(next(seeds), (9, 3, 1)))
        push(store, place, "r")

    old = store.version("r").id
    for place in faults(url, run, how):
        new = store.version("r").id
        assert whole(place.inner)["r"] in (old, new)
        if arrives == "before the next":
            place.arrive()
            assert whole(place.inner)["r"] in (old, new)
        store.push("r", url)
        place.arrive()
        assert whole(place.inner) == {"r": new}
        assert other.pull("r", url).version.id == new
        lab.check(other)
        old = new
    Remote(url).collect(age_s=0)
    assert whole(open_objects(url)) == {"r": old}


@pytest.mark.parametrize("how", ["before", "twice"])
def test_a_pull(store: Store, other: Store, url: str, how: str, tmp_path: Path) -> None:
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    seeds = iter(range(10, 300))

    def run(place: Place) -> None:
        seed = next(seeds)
        lab.put(store, "r/a", lab.content(seed, (9, 3, 1)))
        store.push("r/a", url, attached=files(tmp_path, seed))
        pull(other, place, "r/a", shelf)

    shelf = Shelf()

    old = None
    for place in faults(url, run, how):
        new = store.version("r/a")
        found = other.refs().get("r/a")
        assert found in (old, new)
        assert shelf.sound()
        lab.check(other)
        assert other.pull("r/a", url).version == new == other.version("r/a")
        lab.check(other)
        old = new
        with Store.open(tmp_path / "first", create=True) as first:
            with contextlib.suppress(StoreIO):
                pull(first, Place(open_objects(url), place.at, "before"), "r/a", early := Shelf())
            assert first.refs().keys() in ({"r", "r/a"}, set())
            assert early or not first.refs()  # attachments first
            lab.check(first)
            first.pull("r/a", url)
            lab.check(first)
            for ref in ("r/a", "r"):
                first.delete(ref)
            first.gc(orphan_age_s=0)


@pytest.mark.parametrize("how", ["before", "after", "late", "half"])
def test_a_collection(store: Store, url: str, how: str, tmp_path: Path) -> None:
    lab.put(store, "r", lab.content(1))
    seeds = iter(range(10, 3000))

    def push(times: int) -> None:
        for seed in islice(seeds, times):
            lab.put(store, "r", lab.content(seed, (9, 3, 1)))
            store.push("r", url, attached=files(tmp_path, seed))

    push(format.KEPT_VERSIONS)

    def run(place: Place) -> None:
        push(2)  # as many leave the list
        place.calls.clear()
        collect.collect(place, 0.0, False, False)

    for place in faults(url, run, how):
        wanted = {"r": store.version("r").id}
        assert whole(place.inner) == wanted
        place.arrive()
        assert whole(place.inner) == wanted
        store.append("r", lab.content(next(seeds), (9, 3, 1)))
        if place.inner.size(format.COLLECTING) is not None:
            assert place.at <= 2 or place.calls[-1] == "remove"
            with pytest.raises(Conflict, match="take_over"):
                store.push("r", url)
            Remote(url).collect(age_s=0, take_over=True)
        store.push("r", url)
        assert whole(place.inner) == {"r": store.version("r").id}


@pytest.mark.parametrize("how", WAYS)
def test_a_removal(store: Store, url: str, how: str) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))
    store.push("r", url)
    remote, kept = Remote(url), {"r": store.version("r").id}

    def run(place: Place) -> None:
        remote._objects = open_objects(url)
        store.push("r/a", url)
        remote._objects = place
        remote.delete("r/a")

    for place in faults(url, run, how):
        both = kept | {"r/a": store.version("r/a").id}
        assert whole(place.inner) in (kept, both)
        place.arrive()
        assert whole(place.inner) in (kept, both)
        with contextlib.suppress(NotFound):
            Remote(url).delete("r/a")
        Remote(url).collect(age_s=0)
        assert whole(place.inner) == kept
        store.push("r/a", url)
        assert whole(place.inner) == both
        place.arrive()  # once more, when the ref has been made anew
        assert whole(place.inner) == both


PUSHER = """
import json, sys
import plotlab as lab
from plot_store import Conflict, Store

folder, url, seed, turns = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
with Store.open(folder, create=True) as store:
    store.pull("r", url)
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(turns):
        base = store.pull("r", url).version.id
        made = store.append("r", lab.content(seed + turn, (9, 3, 1)))
        assert made.previous == base
        try:
            store.push("r", url)
            print(json.dumps([made.id, base]), flush=True)
        except Conflict as error:
            assert "pull first" in str(error), error
            store.rollback("r", base)
            print(json.dumps([None, base]), flush=True)
    lab.check(store)
"""


@pytest.mark.parametrize("url", ["folder", "s3"], indirect=True)
def test_pushers_that_race_lose_nothing(store: Store, url: str, tmp_path: Path) -> None:
    turns = 12
    first = lab.put(store, "r", lab.content(1))
    store.push("r", url)
    pushers = [
        subprocess.Popen(
            [sys.executable, "-c", PUSHER, str(tmp_path / f"s{n}"), url, str(1000 * n), str(turns)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=lab.child_env(),
        )
        for n in (1, 2, 3)
    ]
    for pusher in pushers:
        assert pusher.stdout is not None
        assert pusher.stdout.readline() == "ready\n"
    for pusher in pushers:
        assert pusher.stdin is not None
        pusher.stdin.write("go\n")
        pusher.stdin.flush()
    told = [json.loads(line) for pusher in pushers for line in pusher.communicate()[0].splitlines()]
    assert [pusher.returncode for pusher in pushers] == [0, 0, 0]
    assert len(told) == 3 * turns
    pushed = {made: base for made, base in told if made is not None}
    at, lineage = Remote(url).refs()["r"], set()
    while at != first.id:
        lineage.add(at)
        at = pushed[at]
    assert lineage == pushed.keys()  # each one that was told to have been pushed lies under the last one
    assert len(pushed) >= turns
    assert whole(open_objects(url)) == {"r": store.pull("r", url).version.id}
    lab.check(store)
