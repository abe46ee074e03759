"""Push and pull of refs: what moves, what is refused, and what a remote needs. In a folder, memory and S3."""

from __future__ import annotations

import random
import time
from pathlib import Path

import plotlab as lab
import pytest
from remotelab import Place, pull, push, whole

from plot_store import Conflict, Damaged, FormatTooNew, Invalid, NotFound, ReadOnly, Remote, Store, StoreIO
from plot_store.remote import format, refs
from plot_store.remote.objects import open_objects
from tests.bucket import credentials


def filled(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))


def test_a_ref_goes_there_and_comes_back(store: Store, other: Store, url: str) -> None:
    filled(store)
    steps: list[tuple[int, int]] = []
    sent = store.push("r/a", url, progress=lambda *step: steps.append(step))
    total = sum(version.bytes for version in store.chain("r/a"))
    assert (sent.version, sent.bytes) == (store.version("r/a"), total)
    assert steps[-1] == (total, total)
    assert whole(open_objects(url)) == Remote(url).refs() == {"r/a": store.version("r/a").id}
    steps.clear()
    came = other.pull("r/a", url, progress=lambda *step: steps.append(step))
    assert came == sent
    assert steps[-1] == (total, total)
    assert other.chain("r/a") == store.chain("r/a")
    lab.check(other)
    chain = [lab.entries(lab.content(2)), lab.entries(lab.content(1))]
    with other.reader("r/a") as reader:
        lab.same_as(reader, chain, lab.texts(1))


def test_what_is_there_is_not_moved_again(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    place = Place(open_objects(url))
    assert push(store, place, "r/a").bytes == 0
    assert place.sent < 1000
    assert len(place.calls) <= 6
    lab.put(store, "r/b", lab.content(3))
    own = store.version("r/b").bytes
    assert push(store, place, "r/b").bytes == own  # its root is there
    other.pull("r/a", url)
    place = Place(open_objects(url))
    assert pull(other, place, "r/a").bytes == 0
    assert place.received < 1000
    assert pull(other, place, "r/b").bytes == own
    assert whole(place).keys() == {"r/a", "r/b"}
    lab.check(other)


def test_a_push_of_an_append_moves_what_is_new(store: Store, other: Store, url: str) -> None:
    lab.put(store, "r", lab.content(1, (20_000, 2000, 200), vocab=4000), vocab=4000)
    store.push("r", url)
    other.pull("r", url)
    for seed in range(3):
        before = {info.name for info in store.version("r").segments}
        store.append("r", lab.content(10 + seed, (2000, 200, 20), vocab=4000))
        new = sum(info.bytes for info in store.version("r").segments if info.name not in before)
        place = Place(open_objects(url))
        assert push(store, place, "r").bytes == new
        assert place.sent <= 1.05 * new
        assert place.received < 2000
        place = Place(open_objects(url))
        assert pull(other, place, "r").bytes == new
        assert place.received <= 1.05 * new
    lab.check(other)
    assert other.version("r") == store.version("r")


def test_two_stores_take_turns(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    for turn in range(4):
        here, there = (store, other) if turn % 2 else (other, store)
        here.pull("r/a", url)
        assert here.version("r/a") == there.version("r/a")
        made = here.append("r/a", lab.content(20 + turn))
        assert here.pull("r/a", url).bytes == 0  # it is ahead
        assert here.version("r/a") == made
        here.push("r/a", url)
    assert whole(open_objects(url)) == {"r/a": other.pull("r/a", url).version.id}
    lab.check(store)
    lab.check(other)


def test_a_push_that_is_behind_is_refused(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    other.pull("r/a", url)
    ours, theirs = store.append("r/a", lab.content(8)), other.append("r/a", lab.content(9))
    other.push("r/a", url)
    with pytest.raises(Conflict, match=f"{theirs.id}.*{ours.id}.*pull first"):
        store.push("r/a", url)
    with pytest.raises(Conflict, match=f"{ours.id} here.*{theirs.id}"):
        store.pull("r/a", url)
    with pytest.raises(Conflict):
        store.push("r/a", url, expect=ours.id)
    assert Remote(url).refs() == {"r/a": theirs.id}
    assert store.version("r/a") == ours
    store.push("r/a", url, expect=theirs.id)
    assert whole(open_objects(url)) == {"r/a": ours.id}
    assert all(Remote(url).has(version.id) for version in (ours, theirs))
    with pytest.raises(Conflict):
        other.push("r/a", url)
    assert other.pull("r/a", url).version == ours == other.version("r/a")


def test_a_rollback_goes_round_and_is_not_undone(store: Store, other: Store, url: str) -> None:
    first = lab.put(store, "r", lab.content(1))
    second = lab.put(store, "r", lab.content(2))
    store.push("r", url)
    other.pull("r", url)
    store.rollback("r", first.id)
    assert store.pull("r", url).version == first  # it is this store that has moved
    assert store.push("r", url).bytes == first.bytes  # the remote never had it
    with pytest.raises(Conflict, match="pull first"):
        other.push("r", url)
    assert other.pull("r", url).version == first == other.version("r")
    assert {version.id for version in other.history("r")} == {first.id, second.id}
    store.rollback("r", second.id)
    assert store.push("r", url).bytes == 0
    assert other.pull("r", url).version == second == other.version("r")
    lab.check(other)


def test_a_push_follows_one_whose_versions_are_collected(store: Store, url: str) -> None:
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    for seed in range(5):
        store.append("r", lab.content(seed, (9, 3, 1)))
    store.gc(keep_versions=1, orphan_age_s=0)
    store.push("r", url)
    assert whole(open_objects(url)) == {"r": store.version("r").id}


def test_a_deleted_ref_has_no_past(store: Store, url: str) -> None:
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    store.delete("r")
    lab.put(store, "r", lab.content(2))
    with pytest.raises(Conflict, match="expect="):
        store.push("r", url)
    with pytest.raises(Conflict, match="neither follows"):
        store.pull("r", url)


def test_an_imported_ref_takes_part(store: Store, other: Store, url: str, tmp_path: Path) -> None:
    filled(store)
    store.push("r/a", url)
    store.export("r/a", tmp_path / "x.plot")
    other.import_archive(tmp_path / "x.plot")
    store.append("r/a", lab.content(7))
    store.push("r/a", url)
    assert other.pull("r/a", url).version == store.version("r/a") == other.version("r/a")
    other.append("r/a", lab.content(8))
    other.push("r/a", url)
    assert store.pull("r/a", url).version == other.version("r/a")


def test_what_is_absent(store: Store, url: str) -> None:
    with pytest.raises(NotFound, match="not a remote"):
        store.pull("r", url)
    with pytest.raises(NotFound, match="not a remote"):
        Remote(url).refs()
    assert not Remote(url).has("v" + "0" * 32)
    with pytest.raises(Invalid, match="version id"):
        Remote(url).has("r")
    with pytest.raises(NotFound, match="no ref 'r'"):
        store.push("r", url)
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    with pytest.raises(NotFound, match="no ref 'r/b'"):
        store.pull("r/b", url)
    for call in (store.push, store.pull):
        with pytest.raises((Invalid, NotFound)):
            call("../r", url)
    with pytest.raises(Invalid, match="age_s"):
        Remote(url).collect(age_s=-1)


def spoilt(url: str, name: str, how: str) -> None:
    objects = open_objects(url)
    found = objects.get(name)
    assert found is not None
    data = found[0]
    if how == "missing":
        objects.remove([name])
    elif how == "torn":
        objects.put(name, memoryview(data[: len(data) // 2]))
    elif how == "empty":
        objects.put(name, memoryview(b""))
    else:
        middle = len(data) // 2
        objects.put(name, memoryview(data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]))


@pytest.mark.parametrize("how", ["missing", "torn", "empty", "wrong"])
def test_a_spoilt_object_is_named_and_refused_and_can_be_repaired(
    store: Store, other: Store, url: str, how: str
) -> None:
    filled(store)
    store.push("r/a", url)
    objects = open_objects(url)
    names = [found.name for below in (format.SEGMENTS, format.VERSIONS) for found in objects.listed(below)]
    assert len(names) == 14
    for name in names[:: 5 if url.startswith("s3") else 1]:  # a server takes longer
        spoilt(url, name, how)
        with pytest.raises(Damaged, match=name.split("/")[1][:30]) as refused:
            other.pull("r/a", url)
        assert "again=True" in str(refused.value)
        assert other.refs() == {}
        assert not other.gc(dry_run=True, orphan_age_s=-60).orphans
        assert store.push("r/a", url).bytes == 0  # it does not look
        assert store.push("r/a", url, again=True).bytes == sum(v.bytes for v in store.chain("r/a"))
        assert whole(objects) == {"r/a": store.version("r/a").id}
    other.pull("r/a", url)
    lab.check(other)


def test_a_pull_repairs_the_store(store: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    one = store.version("r").segments
    lab.piece(store, one[0].name).file.unlink()
    assert store.pull("r/a", url).segments == len(one)
    lab.check(store)
    lab.piece(store, one[1].name).flip(5000)
    assert store.pull("r/a", url).segments == 0
    assert store.pull("r/a", url, again=True).segments == 1
    lab.check(store)


def test_a_damaged_store_is_not_pushed(store: Store, url: str) -> None:
    version = lab.put(store, "r", lab.content(1))
    lab.piece(store, version.segments[0].name).flip(5000)
    with pytest.raises(Damaged, match=version.segments[0].name):
        store.push("r", url)
    assert whole(open_objects(url)) == {}


def test_small_objects_of_another_kind_are_refused(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    objects = open_objects(url)
    for name, error in (("plot-remote.json", "restore"), ("refs/r/a.json", "restore")):
        found = objects.get(name)
        assert found is not None
        bad = [b"", b"[]", b"{", b'{"format":1}', b"[" * 100_000, found[0].replace(b'"r/a"', b'"r/b"')]
        bad += [
            found[0].replace(b'"current":"v', b'"current":"../v'),
            found[0].replace(b'"id":"', b'"id":"/'),
        ]
        for data in bad:
            if data == found[0]:
                continue
            objects.put(name, memoryview(data))
            for call in (other.pull, store.push):
                with pytest.raises(Damaged, match=f"{name}.*{error}"):
                    call("r/a", url)
        objects.put(name, memoryview(found[0].replace(b'"format":1', b'"format":2')))
        for call in (other.pull, store.push):
            with pytest.raises(FormatTooNew, match="format 2"):
                call("r/a", url)
        objects.put(name, memoryview(found[0]))
    assert other.refs() == {}
    other.pull("r/a", url)


def test_a_place_that_ignores_conditions_is_refused(store: Store, url: str) -> None:
    class Careless(Place):
        def swap(self, name: str, data: bytes, tag: str | None) -> bool:
            self.inner.put(name, memoryview(data))
            return True

    lab.put(store, "r", lab.content(1))
    with pytest.raises(StoreIO, match="ignores the condition"):
        push(store, Careless(open_objects(url)), "r")


def test_urls_with_credentials_or_of_other_kinds_are_refused(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    secret = "swordfish"
    for bad in (
        f"s3://id:{secret}@plots/x",
        f"s3://{secret}@plots/x",
        f"s3://plots/x?secret={secret}",
        f"s3://plots/x#{secret}",
        f"memory://id:{secret}@plots",
        f"ftp://id:{secret}@host/x",
        "gs://plots/x",
        "s3://",
        "",
        "x\0",
        7,
    ):
        for call in (store.push, store.pull):
            with pytest.raises(Invalid) as refused:
                call("r", bad)  # type: ignore[arg-type]
            assert secret not in str(refused.value)


def test_no_message_shows_a_secret_or_a_query(
    store: Store, monkeypatch: pytest.MonkeyPatch, bucket: str
) -> None:
    import traceback

    lab.put(store, "r", lab.content(1))
    for variable, value in (credentials(bucket, "swordfish") | {"AWS_MAX_ATTEMPTS": "1"}).items():
        monkeypatch.setenv(variable, value)
    for address, where in ((bucket, "s3://no-such-bucket/x"), ("http://127.0.0.1:9", "s3://plots/x")):
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        for call in (lambda: store.push("r", where), lambda: list(open_objects(where).listed("refs"))):  # noqa: B023
            with pytest.raises(StoreIO, match="s3://") as refused:
                call()
            told = "".join(traceback.format_exception(refused.value))
            assert "swordfish" not in told
            assert "list-type" not in told


def test_the_store_needs_no_library_for_folders() -> None:
    done = lab.child(
        "import sys, plot_store; assert not {'fsspec', 's3fs', 'botocore'} & set(sys.modules), 'imported'"
    )
    assert done.returncode == 0, done.stderr


def test_a_collection_removes_what_no_ref_needs(store: Store, other: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    for seed in range(10):
        lab.put(store, "r/a", lab.content(30 + seed, (20, 5, 2)))
        store.push("r/a", url)
    objects, remote = open_objects(url), Remote(url)
    assert remote.collect(age_s=3600).objects == ()
    told = remote.collect(age_s=0, dry_run=True)
    done = remote.collect(age_s=0)
    assert (done.objects, done.bytes) == (told.objects, told.bytes)
    manifests = [name for name in done.objects if name.startswith("versions/")]
    assert len(manifests) == 3  # of 11 versions, 8 stay
    assert len(done.objects) == 3 + 3 * 6
    assert whole(objects) == {"r/a": store.version("r/a").id}
    assert remote.collect(age_s=0).objects == ()
    other.pull("r/a", url)
    lab.check(other)
    assert store.push("r/a", url).bytes == 0


def test_pushes_and_collections_keep_out_of_each_others_way(store: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    objects, remote = open_objects(url), Remote(url)
    mark = format.Push("p", 10.0)
    refs.change(objects, "r/a", lambda found: found.begun(mark) if found else None)
    assert remote.collect(age_s=60).pushes == 1
    assert refs.need_ref(objects, "r/a").pushing == ()
    refs.change(objects, "r/a", lambda found: found.begun(format.Push("p", 1e12)) if found else None)
    with pytest.raises(Conflict, match="a push of r/a"):
        remote.collect(age_s=60)
    refs.change(objects, "r/a", lambda found: found.without({"p"}) if found else None)
    refs.begin_collection(objects, "yesterday", False)
    store.append("r/a", lab.content(7))
    with pytest.raises(Conflict, match=r"yesterday.*take_over"):
        store.push("r/a", url)
    assert refs.need_ref(objects, "r/a").pushing == ()
    with pytest.raises(Conflict, match=r"yesterday.*take_over"):
        remote.collect()
    remote.collect(take_over=True)
    store.push("r/a", url)
    assert whole(objects) == {"r/a": store.version("r/a").id}


def test_a_push_taken_for_dead_publishes_nothing_stale(store: Store, url: str) -> None:
    """It is paused before its last step, and a collection removes all that it has put. Then it goes on."""
    filled(store)
    store.push("r/a", url)
    orphans = lab.put(store, "r/a", lab.content(5))
    remote, seen = Remote(url), []

    class Paused(Place):
        def put(self, name: str, data: memoryview) -> None:
            super().put(name, data)
            if name == format.version_name(orphans.id) and not seen:
                seen.append(remote.collect(age_s=0))

    push(store, Paused(open_objects(url)), "r/a")
    assert len(seen[0].objects) == 7
    assert seen[0].pushes == 1
    assert whole(open_objects(url)) == {"r/a": orphans.id}


def test_a_clock_that_jumps_loses_nothing(
    store: Store, other: Store, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every look at the clock shows another year. Pushes may then be taken for dead, or be refused."""
    rng = random.Random(1)
    now = time.time()
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    remote, refused = Remote(url), 0
    for seed in range(12):
        store.append("r", lab.content(20 + seed, (9, 3, 1)))
        with monkeypatch.context() as jumping:
            jumping.setattr(time, "time", lambda: now + rng.uniform(-1, 1) * 3e8)
            for call in (lambda: store.push("r", url), lambda: remote.collect(age_s=60)):
                try:
                    call()
                except Conflict:
                    refused += 1
        there = whole(open_objects(url))["r"]
        assert there in {version.id for version in store.history("r")}
        assert other.pull("r", url).version.id == there
    store.push("r", url)
    assert whole(open_objects(url)) == {"r": store.version("r").id}
    lab.check(other)


def test_a_store_that_is_read_only_or_foreign_objects(store: Store, url: str, tmp_path: Path) -> None:
    lab.put(store, "r", lab.content(1))
    store.push("r", url)
    objects = open_objects(url)
    strange = ["segments/x", "versions/readme.txt", "refs/UPPER.json", "refs/notes.txt"]
    for name in strange:
        objects.put(name, memoryview(b"mine"))
    Remote(url).collect(age_s=0)
    assert Remote(url).refs() == {"r": store.version("r").id}
    assert [objects.size(name) for name in strange] == [4] * 4  # left alone
    store.close()
    with Store.open(tmp_path / "plots", read_only=True) as opened:
        for call in (opened.push, opened.pull):
            with pytest.raises(ReadOnly):
                call("r", url)
