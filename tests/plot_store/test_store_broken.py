"""A broken part is named, and nothing sound is lost with it."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import plotlab as lab
import pytest
import xxhash

from plot_store import Conflict, Damaged, NotFound, Store
from plot_store.care import incoming
from plot_store.catalogue.probe import has_segments
from plot_store.writing.merging import MAX_RUNS

FORMAT_1 = Path(__file__).parent / "formats" / "format-1.plot"


def damage_key(store: Store, ref: str, row: int = 2) -> str:
    """Change the key of one trigram in the ref's oldest rows, as a failing disk
    may; return the file's name."""
    name = next(s.name for s in store.version(ref).segments if s.kind == "rows" and s.order == 3)
    stride = store.reader(ref)._open().table.runs[0].segments[0].rows.shape[1]
    lab.piece(store, name).flip(4096 + row * stride)
    return name


def test_a_damaged_key_is_no_other_ngram(store: Store) -> None:
    """Without the checks, `own` would name an n-gram that nobody stored."""
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))
    name = damage_key(store, "r/a")
    with store.reader("r/a") as reader:
        with pytest.raises(Damaged, match=f"rows of segment {name} are damaged: restore"):
            reader.ngrams(3)
        assert len(reader.ngrams(2)) == len(lab.content(2)[2][0])
    with store.reader("r") as reader:
        assert np.array_equal(reader.ngrams(3), np.unique(lab.content(1)[3][0], axis=0))


def test_a_row_with_a_damaged_key_is_not_left_out_of_a_compaction(store: Store) -> None:
    """The index does not find the row under its damaged key, so the row would
    look as if replaced long ago."""
    lab.put(store, "r", lab.content(1, (60, 10, 2)))
    store.append("r", lab.content(2, (60, 10, 2)))
    before = store.version("r")
    name = damage_key(store, "r")
    with pytest.raises(Damaged, match=name):
        store.compact("r", max_segments=1, target_bytes=1 << 15)
    with pytest.raises(Damaged, match=name):
        store.diff("r", "r")
    assert store.version("r") == before


def test_a_row_of_format_1_with_a_damaged_key_is_not_left_out_of_a_compaction(store: Store) -> None:
    old = store.import_archive(FORMAT_1)
    vocab = old.schema.vocab
    store.append(old.ref, lab.content(1, (20, 5, 1), dim=old.schema.dim, vocab=vocab))
    with store.reader(old.ref) as reader:
        known = set(map(tuple, reader.ngrams(3).tolist()))
    name = damage_key(store, old.ref, 0)
    with store.reader(old.ref) as reader:
        assert set(map(tuple, reader.ngrams(3).tolist())) != known  # nothing shows the damage here
    with pytest.raises(Damaged, match=f"{name} is damaged"):
        store.compact(old.ref, max_segments=1, target_bytes=1 << 15)


def test_a_row_with_a_damaged_key_is_not_left_out_of_a_merged_index(store: Store) -> None:
    lab.put(store, "r", lab.content(1, (60, 10, 2)))
    name = damage_key(store, "r")
    for seed in range(2, 1 + MAX_RUNS):
        store.append("r", lab.content(seed, (60, 10, 2)))
    with pytest.raises(Damaged, match=name):
        store.append("r", lab.content(9, (60, 10, 2)))  # merges the oldest index, too
    assert len(store.history("r")) == MAX_RUNS


def write_record(path: Path, key: str, value: bytes, checksum: bool = True) -> None:
    with lmdb.open(str(path / "catalogue")) as env, env.begin(write=True) as txn:
        right = xxhash.xxh3_64_digest(key.encode() + value)
        txn.put(key.encode(), (right if checksum else bytes(8)) + value)


@pytest.mark.parametrize("kind", ["malformed", "no JSON", "bad checksum"])
def test_a_build_that_cannot_be_read_can_be_abandoned(tmp_path: Path, kind: str) -> None:
    with Store.open(tmp_path / "s", create=True) as store:
        lab.put(store, "r", lab.content(1))
        with store.writer("r", schema=lab.schema(), build="b", segment_bytes=1 << 15) as writer:
            writer.add(3, *lab.content(2, (1500, 0, 0))[3])
        assert writer.resume_point(3) > 0
    value = b"{]" if kind == "no JSON" else json.dumps({"ref": "r"}).encode()
    write_record(tmp_path / "s", "build/b", value, checksum=kind != "bad checksum")
    with Store.open(tmp_path / "s") as store:
        with pytest.raises(Damaged, match=r"abandon\('b'\)"):
            store.writer("r", schema=lab.schema(), build="b")
        with pytest.raises(Damaged):
            store.gc()
        assert store.abandon("b")
        assert not store.abandon("b")
        assert store.gc(orphan_age_s=-60).orphans
        lab.put(store, "r", lab.content(2), build="b")
        lab.check(store)


@pytest.mark.parametrize("left", ["nothing", "an empty folder"])
def test_segments_without_a_catalogue_are_not_taken_for_a_new_store(tmp_path: Path, left: str) -> None:
    """A new, empty catalogue would name none of them, and the first collection would remove them all."""
    path = tmp_path / "s"
    with Store.open(path, create=True) as store:
        lab.put(store, "r", lab.content(1))
    shutil.copytree(path / "catalogue", tmp_path / "kept")
    shutil.rmtree(path / "catalogue")
    if left == "an empty folder":
        (path / "catalogue").mkdir()
    before = sorted(p.name for p in path.rglob("*"))
    options: list[dict[str, Any]] = [{"create": True}, {}, {"read_only": True}]
    for given in options:
        with pytest.raises(Damaged, match="segments but no catalogue: restore"):
            Store.open(path, **given)
    assert sorted(p.name for p in path.rglob("*")) == before
    shutil.rmtree(path / "catalogue", ignore_errors=True)
    shutil.copytree(tmp_path / "kept", path / "catalogue")
    with Store.open(path) as store, store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))


def test_a_folder_without_segments_may_become_a_store(tmp_path: Path) -> None:
    (tmp_path / "s" / "segments").mkdir(parents=True)
    (tmp_path / "s" / "segments" / "x.tmp").write_bytes(b"x")
    assert not has_segments(tmp_path / "s")
    with pytest.raises(NotFound):
        Store.open(tmp_path / "s")
    with Store.open(tmp_path / "s", create=True) as store:
        lab.put(store, "r", {})


def exported(tmp_path: Path) -> Path:
    with Store.open(tmp_path / "from", create=True) as origin:
        lab.put(origin, "r", lab.content(1))
        origin.export("r", tmp_path / "x.plot")
    return tmp_path / "x.plot"


def test_an_import_whose_files_a_collection_took_publishes_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The import is verified, then its build is collected as abandoned: no version
    without files may follow."""
    file, real = exported(tmp_path), incoming.check.check_version

    def then_collect(*given: Any) -> Any:
        found = real(*given)
        assert store.gc(orphan_age_s=-60, build_age_s=-60).builds
        return found

    monkeypatch.setattr(incoming.check, "check_version", then_collect)
    with pytest.raises(Conflict, match="has ended"):
        store.import_archive(file)
    assert store.refs() == {}
    monkeypatch.undo()
    store.import_archive(file)
    lab.check(store)


def test_an_import_that_is_long_verified_is_not_taken_for_a_dead_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, begun, real = exported(tmp_path), time.time(), incoming.check.check_version
    monkeypatch.setattr(incoming, "_TOUCH_EVERY_S", -1.0)

    def then_collect(environment: Any, version: Any, seen: Any, watch: Any) -> Any:
        # the import is still reading two hours later
        monkeypatch.setattr(incoming.time, "time", lambda: begun + 7200)
        found = real(environment, version, seen, watch)
        assert store.gc().builds == ()
        return found

    monkeypatch.setattr(incoming.check, "check_version", then_collect)
    store.import_archive(file)
    monkeypatch.undo()
    lab.check(store)
