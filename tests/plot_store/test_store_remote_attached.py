"""Attachments go to a remote with the version that needs them, and refs of a remote are removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import plotlab as lab
import pytest
from remotelab import Place, Shelf, content, files, pull, push, whole

from plot_store import Conflict, Damaged, Invalid, NotFound, Remote, Store, VersionInfo
from plot_store.remote import format, refs
from plot_store.remote.objects import Objects, open_objects


def filled(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))


def attached(objects: Objects) -> list[int]:
    return sorted(found.bytes for found in objects.listed(format.ATTACHED))


def test_attachments_travel_once(store: Store, other: Store, url: str, tmp_path: Path) -> None:
    filled(store)
    total = sum(version.bytes for version in store.chain("r/a"))
    steps: list[tuple[int, int]] = []
    sent = store.push("r/a", url, attached=files(tmp_path, 1, 2), progress=lambda *step: steps.append(step))
    assert (sent.attachments, sent.bytes) == (("file-1", "file-2"), total + 6000)
    assert steps[-1] == (total + 6000, total + 6000)
    shelf = Shelf({"file-2": content(2)})
    steps.clear()
    came = other.pull("r/a", url, accept=shelf, progress=lambda *step: steps.append(step))
    assert (came.attachments, came.bytes) == (("file-1",), total + 3000)
    assert steps[-1] == (total + 6000, total + 6000)
    assert shelf.keys() == {"file-1", "file-2"}
    assert shelf.sound()
    place = Place(open_objects(url))
    assert push(store, place, "r/a", files(tmp_path, 1, 2)).attachments == ()
    assert len(place.calls) <= 6
    lab.put(store, "r/a", lab.content(3))
    place = Place(open_objects(url))
    assert push(store, place, "r/a", files(tmp_path, 1, 2, 3)).attachments == ("file-3",)
    assert pull(other, Place(open_objects(url)), "r/a", shelf).attachments == ("file-3",)
    assert whole(place).keys() == {"r/a"}
    assert other.pull("r/a", url).attachments == ()  # nobody takes them


def test_they_come_before_the_version_and_may_refuse_it(
    store: Store, other: Store, url: str, tmp_path: Path
) -> None:
    filled(store)
    store.push("r/a", url, attached=files(tmp_path, 1))

    def refuses(versions: list[VersionInfo], attached: Mapping[str, Callable[[], bytes]]) -> None:
        assert versions == store.chain("r/a")
        assert attached["file-1"]() == content(1)
        assert other.refs() == {}
        raise KeyError("no such root")

    with pytest.raises(KeyError, match="no such root"):
        other.pull("r/a", url, accept=refuses)
    assert other.refs() == {}
    lab.check(other)


def test_a_version_that_is_there_gets_attachments_later(store: Store, url: str, tmp_path: Path) -> None:
    filled(store)
    store.push("r/a", url)
    assert store.push("r/a", url, attached=files(tmp_path, 1)).attachments == ("file-1",)
    assert store.push("r/a", url, attached=files(tmp_path, 2)).attachments == ("file-2",)
    store.push("r/a", url, again=True)
    shelf = Shelf()
    store.pull("r/a", url, accept=shelf)
    assert shelf.keys() == {"file-1", "file-2"}
    assert shelf.sound()


def test_a_collection_keeps_those_of_kept_versions(store: Store, url: str, tmp_path: Path) -> None:
    filled(store)
    for seed in range(10):
        lab.put(store, "r/a", lab.content(30 + seed, (20, 5, 2)))
        store.push("r/a", url, attached=files(tmp_path, seed, seed // 5 + 100))
    objects, remote = open_objects(url), Remote(url)
    objects.put(f"attached/{'0' * 64}", memoryview(b"of a push that was killed"))
    objects.put("attached/notes.txt", memoryview(b"mine"))
    assert len(attached(objects)) == 14
    assert remote.collect(age_s=3600).objects == ()
    done = remote.collect(age_s=0)
    assert sum(name.startswith("attached/") for name in done.objects) == 3  # 0, 1 and the stray one
    assert len(attached(objects)) == 11
    assert whole(objects).keys() == {"r/a"}


@pytest.mark.parametrize("how", ["missing", "torn", "wrong"])
def test_a_spoilt_attachment_is_named_and_can_be_repaired(
    store: Store, other: Store, url: str, tmp_path: Path, how: str
) -> None:
    filled(store)
    store.push("r/a", url, attached=files(tmp_path, 1))
    objects = open_objects(url)
    (name,) = [found.name for found in objects.listed(format.ATTACHED)]
    objects.put(name, memoryview(b"x" * 3000 if how == "wrong" else b"x" * 1500))
    if how == "missing":
        objects.remove([name])
    with pytest.raises(Damaged, match=rf"{name}.*again=True"):
        other.pull("r/a", url, accept=Shelf())
    assert other.refs() == {}
    store.push("r/a", url, attached=files(tmp_path, 1), again=True)
    shelf = Shelf()
    other.pull("r/a", url, accept=shelf)
    assert shelf == {"file-1": content(1)}


def test_what_cannot_be_attached(store: Store, url: str, tmp_path: Path) -> None:
    filled(store)
    with pytest.raises(Invalid, match="name"):
        store.push("r/a", url, attached={"../a": files(tmp_path, 1)["file-1"]})
    with pytest.raises(NotFound, match="not a remote"):
        Remote(url).refs()
    store.push("r/a", url, attached=files(tmp_path, 1))
    objects = open_objects(url)
    found = objects.get("refs/r/a.json")
    assert found is not None
    for bad in (found[0].replace(b'"file-1"', b'"../f"'), found[0].replace(b"3000", b"-1")):
        assert bad != found[0]
        objects.put("refs/r/a.json", memoryview(bad))
        with pytest.raises(Damaged, match=r"refs/r/a\.json"):
            store.pull("r/a", url)


def test_a_removed_ref_is_gone_until_it_is_pushed_again(
    store: Store, other: Store, url: str, tmp_path: Path
) -> None:
    filled(store)
    store.push("r/a", url, attached=files(tmp_path, 1))
    other.pull("r/a", url)
    remote, at = Remote(url), store.version("r/a").id
    with pytest.raises(Conflict, match=f"at version {at}, not at v0"):
        remote.delete("r/a", expect="v0")
    assert remote.delete("r/a", expect=at) == at
    assert remote.refs() == {}
    for call in (lambda: remote.delete("r/a"), lambda: other.pull("r/a", url)):
        with pytest.raises(NotFound, match="no ref 'r/a'"):
            call()
    assert other.version("r/a").id == at  # nothing changes here
    other.append("r/a", lab.content(7))
    assert other.push("r/a", url).segments == 6  # what was there is still there
    assert remote.refs() == whole(open_objects(url)) == {"r/a": other.version("r/a").id}
    lab.put(store, "r/a", lab.content(8))
    with pytest.raises(Conflict, match="pull first"):
        store.push("r/a", url)
    remote.delete("r/a")
    done, folders = remote.collect(age_s=0), ("refs", "versions", "segments", "attached")
    assert {name.partition("/")[0] for name in done.objects} == set(folders)
    objects = open_objects(url)
    assert not [found.name for below in folders for found in objects.listed(below)]
    store.push("r/a", url)
    assert whole(objects) == {"r/a": store.version("r/a").id}


def test_a_push_under_way_makes_a_removed_ref_anew(store: Store, url: str) -> None:
    filled(store)
    store.push("r/a", url)
    new = lab.put(store, "r/a", lab.content(5))
    remote = Remote(url)

    class Late(Place):
        def put(self, name: str, data: memoryview) -> None:
            super().put(name, data)
            if name == format.version_name(new.id):
                remote.delete("r/a")
                with pytest.raises(Conflict, match="a push of r/a"):
                    remote.collect()
                assert remote.refs() == {}

    push(store, Late(open_objects(url)), "r/a")
    assert whole(open_objects(url)) == {"r/a": new.id}


def test_a_ref_of_a_killed_first_push_is_collected(store: Store, url: str) -> None:
    filled(store)
    store.push("r", url)
    objects = open_objects(url)
    refs.change(objects, "r/a", lambda found: format.RemoteRef("r/a").begun(format.Push("p", 10.0)))
    with pytest.raises(NotFound, match="no ref 'r/a'"):
        Remote(url).delete("r/a")
    assert Remote(url).collect(age_s=0).pushes == 1
    Remote(url).collect(age_s=0)
    assert objects.get("refs/r/a.json") is None
    assert whole(objects) == {"r": store.version("r").id}
