"""`Store.fetching`: refs come when they are first read, and the oldest go when room runs out."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import plotlab as lab
import pytest
from remotelab import Place

from plot_store import Closed, Invalid, Limits, NotFound, Remote, Store, StoreFull, StoreIO
from plot_store.face.fetching import Fetching
from plot_store.ground.files import folder_bytes
from plot_store.remote.objects import open_objects
from tests.bucket import credentials

SIZES, VOCAB = (2000, 200, 50), 60  # some 300 KB

ROOT = lab.entries(lab.content(0, vocab=VOCAB))


def domain(number: int) -> lab.Content:
    return lab.content(number, SIZES, vocab=VOCAB)


def filled(store: Store, url: str, count: int) -> list[str]:
    """Push a root and domains on it, each with its own content. Returns their names."""
    lab.put(store, "r", lab.content(0, vocab=VOCAB), vocab=VOCAB)
    refs = [f"r/{number}" for number in range(count)]
    for number, ref in enumerate(refs, 1):
        lab.put(store, ref, domain(number), vocab=VOCAB)
        store.push(ref, url)
    return refs


def right(reads: Fetching, ref: str) -> None:
    """Assert that a reader of a ref answers with the content that `filled` gave it."""
    own = domain(int(ref.removeprefix("r/")) + 1)
    with reads.reader(ref) as reader:
        lab.same_as(reader, [lab.entries(own), ROOT], lab.texts(1, vocab=VOCAB))


def through(store: Store, place: Place) -> Fetching:
    """As `Store.fetching`, by way of this place."""
    found = store.fetching(place.place)
    found._objects = place
    return found


def at_once(count: int, body: Callable[[int], object]) -> list[object]:
    """Run a body in threads that begin together. Returns what each returned or raised."""
    gate = threading.Barrier(count)

    def run(number: int) -> object:
        gate.wait()
        try:
            return body(number)
        except Exception as error:  # the test looks at it
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_a_ref_comes_when_it_is_first_read(store: Store, other: Store, url: str) -> None:
    refs = filled(store, url, 2)
    place = Place(open_objects(url))
    reads = through(other, place)
    right(reads, refs[0])
    assert other.refs().keys() == {"r", refs[0]}
    calls = len(place.calls)
    right(reads, refs[0])
    assert len(place.calls) == calls  # it needs no network
    right(reads, refs[1])
    for bad, error in (("r/none", NotFound), ("../r", Invalid), ("v" + "0" * 32, NotFound)):
        with pytest.raises(error):
            reads.reader(bad)
    lab.check(other)
    other.close()
    with pytest.raises(Closed):
        reads.reader(refs[0])


def test_many_threads_ask_for_one_ref_and_one_pulls(store: Store, other: Store, url: str) -> None:
    refs = filled(store, url, 1)
    alone = Place(open_objects(url))
    with Store.open(other.path.parent / "alone", create=True) as third:
        right(through(third, alone), refs[0])
    place = Place(open_objects(url))
    reads = through(other, place)
    assert at_once(16, lambda _: right(reads, refs[0])) == [None] * 16
    assert Counter(place.calls) == Counter(alone.calls)


def test_many_domains_of_a_root_bring_it_once(store: Store, other: Store, url: str) -> None:
    refs = filled(store, url, 8)
    place = Place(open_objects(url))
    reads = through(other, place)
    assert at_once(8, lambda number: right(reads, refs[number])) == [None] * 8
    names = {info.name for version in other.refs().values() for info in version.segments}
    assert place.calls.count("read") == len(names)


READER = """
import sys
import plotlab as lab
from remotelab import Place
from test_store_fetching import at_once, right, through
from plot_store import Store
from plot_store.remote.objects import open_objects

with Store.open(sys.argv[1], create=True) as store:
    place = Place(open_objects(sys.argv[2]))
    reads = through(store, place)
    print("ready", flush=True)
    sys.stdin.readline()
    assert at_once(4, lambda _: right(reads, "r/0")) == [None] * 4
    print(place.calls.count("read"), flush=True)
"""


@pytest.mark.parametrize("url", ["folder", "s3"], indirect=True)
def test_processes_ask_for_one_ref_and_one_pulls(store: Store, other: Store, url: str) -> None:
    filled(store, url, 1)
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", READER, str(other.path), url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=lab.child_env(),
        )
        for _ in range(2)
    ]
    for reader in readers:
        assert reader.stdout is not None
        assert reader.stdout.readline() == "ready\n"
    for reader in readers:
        assert reader.stdin is not None
        reader.stdin.write("go\n")
        reader.stdin.flush()
    pulled = sorted(int(reader.communicate()[0]) for reader in readers)
    assert pulled[0] == 0
    assert pulled[1] == len({info.name for v in other.chain("r/0") for info in v.segments})


def bounded(store: Store, other: Store, url: str, count: int, room: float) -> tuple[list[str], int]:
    """Fill a remote, and leave room for `room` domains and the root in the other store."""
    refs = filled(store, url, count)
    own = int(1.3 * store.version(refs[0]).bytes)  # and what files and records take besides
    most = folder_bytes(other.path) + store.version("r").bytes + int(room * own) + (1 << 16)
    Store.open(other.path, limits=Limits(max_bytes=most)).close()
    return refs, most


@pytest.mark.parametrize("url", ["folder", "s3"], indirect=True)
def test_the_bound_holds_and_the_oldest_goes(store: Store, other: Store, url: str) -> None:
    refs, most = bounded(store, other, url, 10, 5)
    reads = other.fetching(url)
    rng, recent = random.Random(1), list[str]()
    for _ in range(40):
        ref = rng.choice(refs)
        right(reads, ref)
        assert folder_bytes(other.path) <= most
        recent = [ref, *(one for one in recent if one != ref)]
        here = other.heads().keys() - {"r"}
        assert set(recent[: len(here)]) == here  # those used last
    assert 3 <= len(here) <= 6
    lab.check(other)
    for ref in here:
        assert other.pull(ref, url).bytes == 0


def test_what_must_stay_stays(store: Store, other: Store, url: str) -> None:
    refs, _ = bounded(store, other, url, 14, 9)
    reads = other.fetching(url)
    for ref in refs[:8]:
        right(reads, ref)
    pinned, tagged, leased, held, ahead, deleted, built, behind = refs[:8]
    other.pin(pinned, "me")
    other.tag(tagged, "good")
    lease = other.lease(leased, 60)
    reader = reads.reader(held)
    other.append(ahead, lab.content(70, (9, 3, 1), vocab=VOCAB))
    Remote(url).delete(deleted)
    other.writer(built, schema=lab.schema(vocab=VOCAB), build="b", extend=True)
    for number in range(8):  # the remote keeps the last eight
        store.append(behind, lab.content(80 + number, (9, 3, 1), vocab=VOCAB))
        store.push(behind, url)
    for ref in [*refs[8:], *refs[8:]]:
        right(reads, ref)
    assert set(refs[:8]) <= other.heads().keys()
    assert len(other.heads()) < 14
    lab.look(reader, lab.texts(1, vocab=VOCAB))
    reader.close()
    lease.release()

    other.untag(tagged, "good")
    for ref in [*refs[8:], *refs[8:]]:
        right(reads, ref)
    assert set(refs[:8]) & other.heads().keys() >= {pinned, ahead, deleted, built, behind}
    lab.check(other)


def test_without_room_nothing_is_lost(store: Store, other: Store, url: str) -> None:
    refs, most = bounded(store, other, url, 3, 0.5)
    reads = other.fetching(url)
    with pytest.raises(StoreFull, match=r"fetching r/0.*max_bytes"):
        reads.reader(refs[0])
    assert other.heads() == {}
    Store.open(other.path, limits=Limits(max_bytes=most + store.version(refs[0]).bytes)).close()
    right(reads, refs[0])
    with reads.reader(refs[0]), pytest.raises(StoreFull):
        reads.reader(refs[1])
    right(reads, refs[1])
    assert other.heads().keys() == {"r", refs[1]}
    lab.check(other)


def test_a_root_goes_after_its_domains_if_the_remote_has_it(store: Store, other: Store, url: str) -> None:
    for root in ("r", "q"):
        lab.put(store, root, domain(90) if root == "q" else domain(91), vocab=VOCAB)
        lab.put(store, f"{root}/0", domain(1), vocab=VOCAB)
        store.push(root, url)
        store.push(f"{root}/0", url)
    most = folder_bytes(other.path) + int(1.5 * sum(v.bytes for v in store.chain("r/0")))
    Store.open(other.path, limits=Limits(max_bytes=most)).close()
    reads = other.fetching(url)
    for root in ("r", "q", "r"):
        reads.reader(f"{root}/0").close()
        assert other.heads().keys() == {root, f"{root}/0"}


def test_without_the_remote_what_is_here_answers(store: Store, other: Store, url: str) -> None:
    refs = filled(store, url, 2)

    class Away(Place):
        def _call(self, kind: str, body: Callable[..., object], *given: object) -> object:
            if away:
                self.calls.append(kind)
                asked.wait(5)
                raise StoreIO("the place does not answer: check the connection, then try again")
            return super()._call(kind, body, *given)

    away, asked = False, threading.Event()
    place = Away(open_objects(url))
    reads = through(other, place)
    right(reads, refs[0])
    away = True
    place.calls.clear()
    threading.Timer(0.3, asked.set).start()
    failed = at_once(12, lambda _: reads.reader(refs[1]))
    assert all(isinstance(one, StoreIO) and "try again" in str(one) for one in failed)
    assert len(place.calls) == 1  # all that waited share one attempt
    right(reads, refs[0])
    away = False
    right(reads, refs[1])


def test_a_server_that_is_away(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    for variable, value in credentials(bucket).items():
        monkeypatch.setenv(variable, value)
    url = "s3://plots/away"
    refs = filled(store, url, 2)
    right(other.fetching(url), refs[0])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    reads = other.fetching(url)
    right(reads, refs[0])
    with pytest.raises(StoreIO, match=r"does not answer.*check the address"):
        reads.reader(refs[1])


@pytest.mark.parametrize("url", ["folder", "memory"], indirect=True)
def test_threads_that_crowd_a_small_store(store: Store, other: Store, url: str) -> None:
    """Refs come and go all the time, and every answer is right."""
    refs, _ = bounded(store, other, url, 12, 7)
    reads = [other.fetching(url) for _ in range(2)]

    def body(number: int) -> int:
        rng, full = random.Random(number), 0
        for _ in range(60):
            try:
                right(rng.choice(reads), rng.choice(refs))
            except StoreFull:  # the others hold too many
                full += 1
        return full

    done = at_once(4, body)
    assert all(isinstance(full, int) and full < 30 for full in done), done
    assert len(other.heads()) < 13
    lab.check(other)


def test_uses_outlive_the_process(store: Store, other: Store, url: str, tmp_path: Path) -> None:
    refs, _ = bounded(store, other, url, 4, 2.6)
    for ref in refs[:2]:
        other.fetching(url).reader(ref).close()
    other.fetching(url).reader(refs[0]).close()  # used last, as the first use of this object
    right(other.fetching(url), refs[2])
    assert other.heads().keys() == {"r", refs[0], refs[2]}
