"""On a full or failing disk: a clean error, nothing half-visible, a build that can be resumed."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import plotlab as lab
import pytest

from plot_store import Store, StoreFull, StoreIO
from tests.disks import small_disk

OLD, NEW = lab.content(1, (60, 10, 4)), lab.content(2, (1500, 60, 8))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MiB."""
    with small_disk(tmp_path / "disk", 3 << 20) as folder:
        yield folder


def build(store: Store) -> None:
    with store.writer("r", schema=lab.schema(), build="new", segment_bytes=1 << 15) as writer:
        for order, (ngrams, rows) in NEW.items():
            at = writer.resume_point(order)
            writer.add(order, ngrams[at:], rows[at:])
        writer.publish()


def still_old(store: Store) -> None:
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(OLD)], lab.texts(1))
    assert not [p for p in (store.path / "segments").iterdir() if p.suffix == ".tmp"]


def test_a_really_full_disk(disk: Path) -> None:
    ballast = disk / "ballast"
    with Store.open(disk / "s", create=True) as store:
        lab.put(store, "r", OLD)
        failures: list[str] = []
        for free in range(0, 300_000, 20_000):
            with contextlib.suppress(FileNotFoundError):
                ballast.unlink()
            status = os.statvfs(disk)
            ballast.write_bytes(b"x" * max(0, status.f_bavail * status.f_frsize - free))
            if store.version("r").build == "new":
                break
            try:
                build(store)
            except StoreFull as error:
                failures.append(str(error))
                still_old(store)
        assert len(failures) > 3
        assert all("free disk space" in message for message in failures)
        ballast.unlink(missing_ok=True)
        if store.version("r").build != "new":
            build(store)
        with store.reader("r") as reader:
            lab.same_as(reader, [lab.entries(NEW)], lab.texts(1))
        store.gc(orphan_age_s=-60)
        lab.check(store)


def test_a_collection_works_on_a_disk_without_a_byte(disk: Path) -> None:
    """The collection gives up the reserve and takes it again; so do other calls that free space."""
    with Store.open(disk / "s", create=True) as store:
        lab.put(store, "r", OLD)
        with contextlib.suppress(StoreFull):
            for seed in range(1000):
                lab.put(store, "r", lab.content(seed, (60, 10, 4)))
        reserve = store.path / "catalogue" / "reserve"
        fill(disk)
        grown = (store.path / "catalogue" / "data.mdb").stat().st_size
        assert reserve.stat().st_size > 0.8 * grown, (
            "as large as the catalogue was at the opening, or 256 KiB"
        )
        freed = store.gc(keep_versions=1, orphan_age_s=-60)
        assert len(freed.versions) > 10
        assert freed.bytes > 1 << 20
        assert reserve.exists()
        fill(disk)
        store.delete("r")
        store.gc(orphan_age_s=-60)
        assert reserve.exists()
        lab.check(store)


def fill(disk: Path) -> None:
    fd = os.open(disk / "ballast", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(1 << 12))
    os.close(fd)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("operation", ["write", "fsync", "replace", "open"])
def test_each_operation_failing_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, operation: str, code: int
) -> None:
    lab.put(store, "r", OLD)
    real = getattr(os, operation)
    nth = 0
    kinds: set[str] = set()
    left = [0]
    while left[0] <= 0:
        nth += 1
        left = [nth]

        def failing(*arguments: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(code, os.strerror(code))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, operation, failing)
            try:
                build(store)
            except StoreIO as error:
                kinds.add(error.kind)
        if store.version("r").build == "new":  # what failed was not needed, or nothing failed any more
            lab.put(store, "r", OLD)
        else:
            still_old(store)
            with store.writer("r", schema=lab.schema(), build="new", segment_bytes=1 << 15) as writer:
                writer.abort()  # the next turn fails one operation later
    assert nth > 3
    assert kinds == {"store_full" if code == errno.ENOSPC else "store_io"}
    store.gc(orphan_age_s=-60)
    lab.check(store)


@pytest.mark.parametrize("said", ["Input/output error", "MDB_CORRUPTED: Located page was wrong type"])
def test_what_lmdb_says_on_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """LMDB reports a short write as an I/O error and may then distrust its own pages;
    once there is room, it works."""
    import lmdb

    from plot_store import Damaged
    from plot_store.catalogue import catalogue
    from plot_store.database import lmdb_errors

    lab.put(store, "r", OLD)
    error = lmdb.CorruptedError(said) if "MDB" in said else lmdb.Error(said)

    def failing(*_: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(catalogue.CatalogueTxn, "put", failing)
        with pytest.raises(Damaged if "MDB" in said else StoreIO) as caught:
            store.tag("r", "x")
        assert caught.value.kind in ("damaged", "store_io")
        patch.setattr(lmdb_errors.files, "free_bytes", lambda folder: 1000)
        with pytest.raises(StoreFull, match="free disk space"):
            store.tag("r", "x")
    lab.check(store)


def test_short_writes_are_completed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[: max(1, len(data) // 3)]))
    lab.put(store, "r", NEW)
    monkeypatch.undo()
    lab.check(store)


def test_the_catalogue_grows_when_it_is_full(tmp_path: Path) -> None:
    from plot_store.catalogue.catalogue import Catalogue

    (tmp_path / "catalogue").mkdir()
    catalogue = Catalogue(tmp_path / "catalogue", create=True, read_only=False, first_map=1 << 16)
    for i in range(200):
        catalogue.write(lambda txn, i=i: txn.put(f"x/{i}", "y" * 3000))  # type: ignore[misc]
    assert len(catalogue.read(lambda txn: txn.keys("x/"))) == 200
    catalogue.close()


@pytest.mark.parametrize("operation", ["fsync", "replace", "mkdir", "open"])
def test_a_creation_that_fails_leaves_a_place_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    real, failed = getattr(os, operation), 0
    for nth in range(1, 30):
        left = [nth]

        def failing(*arguments: Any, left: list[int] = left, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **options)

        with monkeypatch.context() as patch:
            patch.setattr(os, operation, failing)
            with contextlib.suppress(StoreFull):
                Store.open(tmp_path / str(nth), create=True).close()
        if left[0] > 0:
            break
        failed += 1
        with Store.open(tmp_path / str(nth), create=True) as store:
            lab.put(store, "r", {})
            assert sorted(p.name for p in store.path.iterdir()) == ["catalogue", "segments"]
    assert 0 < failed < 20


def test_processes_may_create_one_store_at_once(tmp_path: Path) -> None:
    from plot_store.catalogue import creation

    other = tmp_path / "other" / "catalogue"
    other.parent.mkdir()
    creation.make(other)
    before = (other / "data.mdb").stat().st_ino
    draft = tmp_path / "draft"
    creation.make(draft)
    creation._rename_folder(draft, other)  # the later one finds the first one's file and leaves it alone
    creation.make(other)
    assert (other / "data.mdb").stat().st_ino == before
    (tmp_path / "stray").mkdir()
    (tmp_path / "stray" / "notes").touch()
    with pytest.raises(StoreIO, match="not a catalogue"):
        creation.make(tmp_path / "stray")


GROW = """
import sys, os
from pathlib import Path
from plot_store.catalogue.catalogue import Catalogue
catalogue = Catalogue(Path(sys.argv[1]), create=False, read_only=False, first_map=1 << 16)
for i in range(400):
    catalogue.write(lambda txn: txn.put(f"c/{i}", "y" * 3000))
catalogue.close()
"""


def test_another_process_may_grow_the_catalogue(tmp_path: Path) -> None:
    from plot_store.catalogue.catalogue import Catalogue

    folder = tmp_path / "catalogue"
    folder.mkdir()
    catalogue = Catalogue(folder, create=True, read_only=False, first_map=1 << 16)
    done = lab.child(GROW, folder)
    assert done.returncode == 0, done.stderr
    assert len(catalogue.read(lambda txn: txn.keys("c/"))) == 400
    catalogue.write(lambda txn: txn.put("mine", 1))
    assert catalogue.read(lambda txn: txn.get("mine")) == 1
    catalogue.close()
