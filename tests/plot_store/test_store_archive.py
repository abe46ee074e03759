"""Exports: one file, complete and repeatable; a bad file is refused and leaves nothing behind."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest
import xxhash
import zstandard

from plot_store import Collected, Conflict, Damaged, FormatTooNew, Invalid, NotFound, Store, StoreFull
from plot_store.care import attachments, incoming
from plot_store.care.archive_format import Packer
from plot_store.segments import drafts

CONTENTS = {"r": lab.content(1), "r/a": lab.content(2), "r/a/x": lab.content(3, (100, 0, 3))}
DTYPES = {"r": "int8", "r/a": "fp16", "r/a/x": "int8"}


def exported(folder: Path, ref: str = "r/a/x") -> Path:
    with Store.open(folder / "from", create=True) as store:
        if not store.refs():
            for name, made in CONTENTS.items():
                lab.put(store, name, made, dtype=DTYPES[name], meta={"name": name})
        store.export(ref, folder / "x.plot")
    return folder / "x.plot"


def is_empty(store: Store) -> bool:
    return not store.refs() and not list((store.path / "segments").iterdir()) and store.info().versions == 0


def test_round_trip_is_idempotent(store: Store, tmp_path: Path) -> None:
    file = exported(tmp_path)
    version = store.import_archive(file)
    with Store.open(tmp_path / "from") as origin:
        assert version == origin.version("r/a/x")
        assert store.chain("r/a/x") == origin.chain("r/a/x")
        assert store.refs() == origin.refs()
    chain = [lab.entries(CONTENTS[ref], DTYPES[ref]) for ref in ("r/a/x", "r/a", "r")]
    with store.reader("r/a/x") as reader:
        lab.same_as(reader, chain, lab.texts(1))
    before = sorted((p.name, p.stat().st_ino) for p in (store.path / "segments").iterdir())
    assert store.import_archive(file) == version
    assert sorted((p.name, p.stat().st_ino) for p in (store.path / "segments").iterdir()) == before
    assert len(store.history("r/a/x")) == 1
    lab.check(store)


def test_attachments_travel_and_are_checked(store: Store, tmp_path: Path) -> None:
    exported(tmp_path)
    files = {"a.bin": tmp_path / "a", "b": tmp_path / "b"}
    files["a.bin"].write_bytes(bytes(range(256)) * 9000)
    files["b"].write_bytes(b"")
    with Store.open(tmp_path / "from") as origin:
        origin.export("r/a", tmp_path / "y.plot", attached=files)
        with pytest.raises(Invalid, match="name"):
            origin.export("r/a", tmp_path / "z.plot", attached={"../a": files["b"]})
        os.truncate(files["b"], (1 << 31) + 1)
        with pytest.raises(Invalid, match="leave it out"):
            origin.export("r/a", tmp_path / "z.plot", attached={"b": files["b"]})
        os.truncate(files["b"], 0)
    with pytest.raises(ValueError, match="impossible"):
        attachments.parse([{"name": "a", "bytes": 1 << 40, "sha256": "0" * 64}])
    assert dict(Store.attached(tmp_path / "y.plot")) == {n: p.read_bytes() for n, p in files.items()}
    assert dict(Store.attached(tmp_path / "x.plot")) == {}
    store.import_archive(tmp_path / "y.plot")
    lab.check(store)
    raw = (tmp_path / "y.plot").read_bytes()
    start = 24 + struct.unpack_from("<Q", raw, 16)[0] + 8
    for at in range(start, start + 400, 40):  # in the first attachment's first chunk
        (tmp_path / "bad.plot").write_bytes(raw[:at] + bytes([raw[at] ^ 16]) + raw[at + 1 :])
        with pytest.raises(Damaged):
            list(Store.attached(tmp_path / "bad.plot"))
        with pytest.raises(Damaged):
            Store.open(tmp_path / "new", create=True).import_archive(tmp_path / "bad.plot")


def test_an_import_under_another_name(store: Store, tmp_path: Path) -> None:
    file = exported(tmp_path)
    one = store.import_archive(file, ref="mine")
    assert store.import_archive(file, ref="mine") == one
    assert (one.ref, set(store.refs())) == ("mine", {"r", "r/a", "mine"})
    store.import_archive(file)
    assert set(store.refs()) == {"r", "r/a", "r/a/x", "mine"}
    with pytest.raises(Invalid, match="ancestor"):
        store.import_archive(file, ref="r/a")
    lab.check(store)


def test_a_ref_that_moved_on_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    file = exported(tmp_path)
    store.import_archive(file)
    ours = lab.put(store, "r/a/x", lab.content(9))
    store.import_archive(file)  # already there: nothing changes
    assert store.version("r/a/x") == ours
    with Store.open(tmp_path / "from") as origin:
        lab.put(origin, "r/a/x", lab.content(10))
    with pytest.raises(Conflict, match="another name"):
        store.import_archive(exported(tmp_path))
    assert store.version("r/a/x") == ours


def test_an_export_that_follows_is_a_step_forward(store: Store, tmp_path: Path) -> None:
    store.import_archive(exported(tmp_path))
    with Store.open(tmp_path / "from") as origin:
        newer = lab.put(origin, "r/a/x", lab.content(10))
    assert store.import_archive(exported(tmp_path)) == newer == store.version("r/a/x")
    assert len(store.history("r/a/x")) == 2
    lab.check(store)


def test_flipped_or_cut_archives_leave_nothing(store: Store, tmp_path: Path) -> None:
    good = exported(tmp_path, "r").read_bytes()
    rng = np.random.default_rng(0)
    bad = tmp_path / "bad.plot"
    for turn in range(150):
        if turn % 3:
            data = bytearray(good)
            data[int(rng.integers(0, 6000 if turn % 2 else len(good)))] ^= 1 << int(rng.integers(0, 8))
        else:
            data = bytearray(good[: int(rng.integers(0, len(good)))])
        bad.write_bytes(data)
        with pytest.raises((Damaged, FormatTooNew)):
            store.import_archive(bad)
        assert is_empty(store)
    bad.write_bytes(good + b"x")
    with pytest.raises(Damaged, match="end"):
        store.import_archive(bad)
    assert is_empty(store)
    store.import_archive(tmp_path / "x.plot")
    lab.check(store)


def forged(manifest: object, tail: bytes = b"") -> bytes:
    body = json.dumps(manifest).encode()
    return struct.pack("<8sH6xQQ", b"PLOTARC\0", 1, len(body), xxhash.xxh3_64_intdigest(body)) + body + tail


def test_hostile_manifests(store: Store, tmp_path: Path) -> None:
    segment = {"name": "0" * 32 + ".rows", "kind": "rows", "order": 3, "count": 1, "bytes": 5000}
    version = {
        "id": "v" + "0" * 32,
        "ref": "r",
        "parent": None,
        "previous": None,
        "created": "now",
        "build": "",
        "schema": {"n": 3, "dim": 4, "dtype": "int8", "vocab": 9},
        "segments": [segment],
        "meta": {},
    }
    path = {**segment, "name": "../../etc/passwd"}
    bombs: list[object] = [
        [],
        {},
        {"versions": []},
        {"versions": [1]},
        {"versions": [version]},
        {"versions": [version] * 1000},
        {"versions": [{**version, "segments": [path]}]},
        {"versions": [{**version, "schema": {"dim": 1 << 60}}]},
        {"versions": [{**version, "segments": [{**segment, "bytes": -1}]}]},
        {"versions": [{**version, "surprise": 1}]},
        {"versions": [{**version, "ref": "../r"}]},
        "[" * 100_000,
    ]
    bad = tmp_path / "bad.plot"
    for bomb in bombs:
        bad.write_bytes(forged(bomb))
        with pytest.raises(Damaged):
            store.import_archive(bad)
        assert is_empty(store)
    bad.write_bytes(b"[" * 100)
    with pytest.raises(Damaged, match="not an export"):
        store.import_archive(bad)
    bad.write_bytes(struct.pack("<8sH6xQQ", b"PLOTARC\0", 1, 1 << 60, 0))
    with pytest.raises(Damaged, match="claims"):
        store.import_archive(bad)
    bad.write_bytes(struct.pack("<8sH6xQQ", b"PLOTARC\0", 9, 10, 0))
    with pytest.raises(FormatTooNew, match="format 9"):
        store.import_archive(bad)
    with pytest.raises(NotFound, match="no file"):
        store.import_archive(tmp_path / "none")


def test_a_frame_that_claims_more_than_its_chunk_is_not_expanded(store: Store, tmp_path: Path) -> None:
    exported(tmp_path, "r")
    with Store.open(tmp_path / "from") as origin:
        version = origin.version("r")
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    raw = version.segments[0].bytes
    chunk = struct.pack("<IIQ", len(bomb), raw, 0) + bomb
    (tmp_path / "bad.plot").write_bytes(Packer().head([version]) + chunk)
    with pytest.raises(Damaged, match="another size"):
        store.import_archive(tmp_path / "bad.plot")
    assert is_empty(store)


def test_an_archive_that_cannot_fit_is_refused_first(store: Store, tmp_path: Path) -> None:
    from dataclasses import replace

    from plot_store.catalogue.records import version_id

    exported(tmp_path, "r")
    with Store.open(tmp_path / "from") as origin:
        version = origin.version("r")
    huge = replace(version, segments=(replace(version.segments[0], bytes=1 << 49),))
    huge = replace(huge, id=version_id(huge))
    (tmp_path / "bad.plot").write_bytes(Packer().head([huge]))
    with pytest.raises(StoreFull, match="free disk space"):
        store.import_archive(tmp_path / "bad.plot")
    assert is_empty(store)


def test_a_segment_is_refused_by_its_first_bytes(store: Store, tmp_path: Path) -> None:
    """A segment's header must agree with the manifest before the rest is read or written."""
    from dataclasses import replace

    from plot_store.care.archive_format import CHUNK
    from plot_store.catalogue.records import version_id

    exported(tmp_path, "r")
    with Store.open(tmp_path / "from") as origin:
        version = origin.version("r")
        raw = lab.piece(origin, version.segments[0].name).read_bytes()
    big = 50 * CHUNK
    huge = replace(version, segments=(replace(version.segments[0], bytes=big),))
    huge = replace(huge, id=version_id(huge))
    packer = Packer()
    written: list[int] = []
    with open(tmp_path / "bad.plot", "wb") as file:
        file.write(packer.head([huge]) + packer.chunk(raw.ljust(CHUNK, b"\0")))
        for _ in range(49):
            file.write(packer.chunk(bytes(CHUNK)))
        file.write(packer.tail())
    with pytest.raises(Damaged, match="differs from its manifest"):
        store.import_archive(tmp_path / "bad.plot", progress=lambda done, total: written.append(done))
    assert written == []
    assert is_empty(store)


def test_a_manifest_is_read_no_further_than_the_file_goes(store: Store, tmp_path: Path) -> None:
    import tracemalloc

    (tmp_path / "bad.plot").write_bytes(struct.pack("<8sH6xQQ", b"PLOTARC\0", 2, 1 << 27, 0) + b"[" * 1000)
    tracemalloc.start()
    with pytest.raises(Damaged, match="ends too early"):
        store.import_archive(tmp_path / "bad.plot")
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


def test_progress_counts_every_byte_and_may_stop_it(store: Store, tmp_path: Path) -> None:
    exported(tmp_path)
    steps: list[tuple[int, int]] = []
    with Store.open(tmp_path / "from") as origin:
        total = sum(v.bytes for v in origin.chain("r/a/x"))
        origin.export("r/a/x", tmp_path / "x.plot", progress=lambda *step: steps.append(step))
        assert steps[-1] == (total, total)

        def stop(done: int, total: int) -> None:
            if done > total // 2:
                raise KeyboardInterrupt

        (tmp_path / "out").mkdir()
        with pytest.raises(KeyboardInterrupt):
            origin.export("r/a/x", tmp_path / "out" / "y.plot", progress=stop)
        assert not list((tmp_path / "out").iterdir())
    with pytest.raises(KeyboardInterrupt):
        store.import_archive(tmp_path / "x.plot", progress=stop)
    assert is_empty(store)
    steps.clear()
    store.import_archive(tmp_path / "x.plot", progress=lambda *step: steps.append(step))
    assert steps[-1] == (total, total)


def test_a_collected_version_comes_back_by_an_import(store: Store, tmp_path: Path) -> None:
    file = exported(tmp_path, "r")
    version = store.import_archive(file)
    store.delete("r")
    assert store.gc().versions == (version.id,)
    with pytest.raises(Collected):
        store.version(version.id)
    assert store.import_archive(file) == version == store.version(version.id)
    lab.check(store)


def test_a_damaged_store_is_not_exported(store: Store, tmp_path: Path) -> None:
    version = lab.put(store, "r", lab.content(1))
    lab.piece(store, version.segments[0].name).flip(5000)
    (tmp_path / "out").mkdir()
    with pytest.raises(Damaged, match="nothing was exported"):
        store.export("r", tmp_path / "out" / "x.plot")
    assert not list((tmp_path / "out").iterdir())


def test_an_import_heals_what_is_damaged_or_missing(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", create=True) as store:
        version = lab.put(store, "base", lab.content(3))
        store.export("base", tmp_path / "a.plot")
        lab.piece(store, version.segments[0].name).flip(-1)
        assert not store.verify().ok
        assert store.import_archive(tmp_path / "a.plot").ref == "base"
        assert store.verify().ok
        (name,) = lab.files(store, [version.segments[1].name])
        (tmp_path / "s" / "segments" / name).unlink()
        assert not store.verify().ok
        assert store.import_archive(tmp_path / "a.plot").ref == "base"
        assert store.verify().ok


def test_a_long_import_survives_collections(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files that are finished wait for the others of their version, here for two hours a segment."""
    file = exported(tmp_path)
    monkeypatch.setattr(drafts, "OWN_BYTES", 1 << 14)  # some segments get files of their own
    monkeypatch.setattr(incoming, "_TOUCH_EVERY_S", -1.0)
    waited = []

    def wait(done: int, total: int) -> None:
        assert not store.gc().orphans
        for path in (store.path / "segments").glob("*.tmp"):
            os.utime(path, (time.time() - 7200,) * 2)
            waited.append(path)

    store.import_archive(file, progress=wait)
    assert len(set(waited)) > 3
    lab.check(store)


def test_an_export_of_what_another_process_collects_meanwhile_ends(store: Store, tmp_path: Path) -> None:
    made = lab.content(1)
    old = lab.put(store, "r", made)
    collect = "import sys; from plot_store import Store; Store.open(sys.argv[1]).gc(keep_versions=1)"

    def go_on(done: int, total: int) -> None:
        if store.version("r").id == old.id:
            lab.put(store, "r", lab.content(2))
            ran = lab.child(collect, store.path)
            assert ran.returncode == 0, ran.stderr

    store.export("r", tmp_path / "r.plot", progress=go_on)
    with pytest.raises(Collected):
        store.version(old.id)
    with Store.open(tmp_path / "to", create=True) as to:
        assert to.import_archive(tmp_path / "r.plot") == old
