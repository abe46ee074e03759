"""Bytes that are not what was written: found by opening or verifying, never a crash, never believed."""

from __future__ import annotations

import json
from pathlib import Path

import lmdb
import numpy as np
import plotlab as lab
import pytest
import xxhash

from plot_store import Damaged, FormatTooNew, Store, StoreIO
from plot_store import format as fmt


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.write_bytes(data)


def test_every_bit_flip_is_found(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (60, 20, 5)))
    rng = np.random.default_rng(0)
    expected = [lab.entries(lab.content(1, (60, 20, 5)))]
    refused = 0
    for turn in range(150):
        info = version.segments[turn % len(version.segments)]
        path = store.path / "segments" / info.name
        good = path.read_bytes()
        everywhere = (0, 256), (4096, len(good)), (len(good) - 32, len(good))
        at = int(rng.integers(*everywhere[turn % 3]))
        flip(path, at, int(rng.integers(0, 8)))
        report = store.verify("r")
        assert not report.ok, (info, at)
        assert info.name in {damage.segment for damage in report.damages}
        try:
            with store.reader("r") as reader:
                lab.look(reader, lab.texts(turn))  # may be wrong, must not crash
        except (Damaged, FormatTooNew):
            refused += 1
        path.write_bytes(good)
    assert refused > 50
    with store.reader("r") as reader:
        lab.same_as(reader, expected, lab.texts(1))
    lab.check(store)


def test_every_truncation_is_refused_when_opened(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (60, 20, 5)))
    for info in version.segments:
        path = store.path / "segments" / info.name
        good = path.read_bytes()
        for size in (0, 100, 256, 4096, len(good) // 2, len(good) - 1, len(good) + 1):
            path.write_bytes((good + b"x")[:size])
            with pytest.raises(Damaged, match=f"has {size} bytes"):
                store.reader("r")
            assert not store.verify("r").ok
        path.unlink()
        with pytest.raises(Damaged, match="missing"):
            store.reader("r")
        assert "missing" in store.verify("r").damages[0].what
        path.write_bytes(good)
    lab.check(store)


def test_verify_lists_every_damage(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))
    rows = [s for s in version.segments if s.kind == "rows"]
    flip(store.path / "segments" / rows[0].name, 5000, 1)
    (store.path / "segments" / rows[1].name).unlink()
    found = {damage.segment for damage in store.verify("r/a").damages}
    assert {rows[0].name, rows[1].name} <= found


def test_a_rebuild_heals_a_damaged_segment(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    flip(store.path / "segments" / version.segments[0].name, 5000, 1)
    assert not store.verify().ok
    lab.put(store, "r", lab.content(1))
    lab.check(store)


def resealed(raw: bytes, **fields: int) -> bytes:
    """A header with some fields changed and its checksum made right again: a hostile one."""
    names = ("magic", "format", "kind", "order", "roles", "dtype", "n", "dim", "stride", "vocab", "shift", "count",
             "cap", "covers", "data_at", "data_bytes", "checks_at", "block", "pad", "file_bytes")  # fmt: skip
    values = dict(zip(names, fmt._HEADER.unpack_from(raw), strict=True)) | fields
    body = fmt._HEADER.pack(*values.values()).ljust(248, b"\0")
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + raw[256:]


def test_a_header_that_lies_is_refused(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (60, 20, 5)))
    lies = [
        {"count": 1 << 39}, {"count": 1}, {"stride": 16}, {"dim": 1}, {"data_at": 0}, {"data_bytes": 1 << 60},
        {"checks_at": 0}, {"file_bytes": 1 << 62}, {"kind": 2}, {"kind": 3}, {"order": 9}, {"roles": 9}, {"dtype": 7},
        {"n": 5}, {"covers": 1 << 30}, {"cap": 5}, {"block": 1}, {"shift": 60}, {"vocab": 7},
    ]  # fmt: skip
    for info in (version.segments[0], version.segments[-1]):
        path = store.path / "segments" / info.name
        good = path.read_bytes()
        refused = 0
        for lie in lies:
            bad = resealed(good, **lie)
            path.write_bytes(bad)
            if bad != good:
                with pytest.raises(Damaged):
                    store.reader("r")
                refused += 1
        assert refused >= len(lies) - 2
        path.write_bytes(resealed(good, format=2))
        with pytest.raises(FormatTooNew, match="format 2, this release reads up to 1: upgrade"):
            store.reader("r")
        path.write_bytes(good)


def record(path: Path, key: str, value: object) -> None:
    body = json.dumps(value).encode()
    with lmdb.open(str(path / "catalogue")) as env, env.begin(write=True) as txn:
        txn.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + body) + body)


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "s", create=True).close()
    record(tmp_path / "s", "format", {"format": 7})
    for options in ({}, {"create": True}, {"read_only": True}):
        with pytest.raises(FormatTooNew, match="format 7, this release reads up to 1: upgrade"):
            Store.open(tmp_path / "s", **options)


def test_damaged_records_are_found(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with Store.open(path, create=True) as store:
        version = lab.put(store, "r", lab.content(1))
        lab.put(store, "s", lab.content(2))
    with lmdb.open(str(path / "catalogue")) as env, env.begin(write=True) as txn:
        value = bytearray(txn.get(b"version/" + version.id.encode()))
        value[40] ^= 1
        txn.put(b"version/" + version.id.encode(), bytes(value))
    with Store.open(path) as store:
        with pytest.raises(Damaged, match="damaged"):
            store.version("r")
        with store.reader("s") as reader:
            lab.same_as(reader, [lab.entries(lab.content(2))], lab.texts(1))
        assert any("version/" in damage.what for damage in store.verify().damages)
    record(path, f"version/{version.id}", {"id": version.id})
    with Store.open(path) as store, pytest.raises(Damaged, match="malformed"):
        store.reader("r")
    record(path, "ref/r", {"current": store_version_of(path, "s"), "versions": []})
    with Store.open(path) as store:
        assert store.version("r").ref == "s"  # a consistent record is taken at its word


def store_version_of(path: Path, ref: str) -> str:
    with Store.open(path) as store:
        return store.version(ref).id


def test_a_catalogue_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.open(path, create=True).close()
    (path / "catalogue" / "data.mdb").write_bytes(b"\x55" * 8192)
    with pytest.raises((Damaged, StoreIO)):
        Store.open(path)
