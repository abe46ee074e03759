"""Changed bytes are found when a file is opened or verified; they neither crash a
reader nor give an answer."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import lmdb
import numpy as np
import plotlab as lab
import pytest
import xxhash
from hmi_kernels.lookup import layout
from hmi_kernels.lookup.layout import DTYPES, header_bytes

from plot_store import Damaged, FormatTooNew, Store, StoreIO
from plot_store.care import check
from plot_store.catalogue import places
from plot_store.catalogue.catalogue import ERASING_CATALOGUE_FORMAT
from plot_store.environment.environment import Environment
from plot_store.ground.nouns import Place, SegmentInfo
from plot_store.segments import format as fmt
from plot_store.segments.segment import MappedSegment, open_segment
from plot_store.writing import writer


def stored(made: lab.Content) -> list[list[int]]:
    """Texts that use every entry: each n-gram as a text."""
    return [ngram.tolist() for ngrams, _ in made.values() for ngram in ngrams]


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("counts", [(60, 20, 5), (40, 9), (60, 30, 20, 9, 4)], ids=["n3", "n2", "n5"])
def test_every_bit_flip_is_found_and_no_wrong_vector_is_given(
    store: Store, counts: tuple[int, ...], window: layout.Window
) -> None:
    made = lab.content(1, counts, window=window)
    version = lab.put(store, "r", made, n=len(counts), window=window)
    batch = stored(made) + lab.texts(7)
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(made)], batch)
        right, hits = lab.look(reader, batch)
    rng = np.random.default_rng(0)
    refused = 0
    for turn in range(150):
        info = version.segments[turn % len(version.segments)]
        piece = lab.piece(store, info.name)
        good = piece.read_bytes()
        everywhere = (0, 256), (4096, len(good)), (len(good) - 32, len(good))
        at = int(rng.integers(*everywhere[turn % 3]))
        piece.flip(at, int(rng.integers(0, 8)))
        report = store.verify("r")
        assert not report.ok, (info, at)
        assert info.name in {damage.segment for damage in report.damages}
        try:
            with store.reader("r") as reader:
                out, found = lab.look(reader, batch)
                assert np.array_equal(out, right), (info, at)
                assert np.array_equal(found.order, hits.order)
        except (Damaged, FormatTooNew):
            refused += 1
        piece.write_bytes(good)
    assert refused > 50
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(made)], batch)
    lab.check(store)


@pytest.mark.parametrize("dtype", ["int8", "fp16", "fp32"])
def test_every_byte_of_a_row_is_guarded(store: Store, dtype: str) -> None:
    """Key, scales, check, vectors and padding: a look-up that uses the row names the row and the file."""
    made = lab.content(1, (3, 0, 0), dim=6)
    version = lab.put(store, "r", made, dtype=dtype)
    piece = lab.piece(store, next(s.name for s in version.segments if s.kind == "rows"))
    good, rng = piece.read_bytes(), np.random.default_rng(0)
    row = layout.stride(3, 3, 6, DTYPES[dtype])
    for at in range(row):
        piece.flip(4096 + row + at, int(rng.integers(0, 8)))
        with store.reader("r") as reader:
            # Look-ups of other rows still work.
            assert reader.lookup(*lab.ragged([made[3][0][0].tolist()]))[1].order[1] == 3
            for _ in range(2):
                with pytest.raises(Damaged, match=f"row 1 of segment {piece.name} is damaged: restore"):
                    reader.lookup(*lab.ragged([made[3][0][1].tolist()]))
            with pytest.raises(Damaged, match="row 1 of segment"):
                reader.get(3, made[3][0])
        piece.write_bytes(good)


def test_a_damaged_index_is_refused_when_opened(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    for info in [s for s in version.segments if s.kind == "index"]:
        piece = lab.piece(store, info.name)
        good = piece.read_bytes()
        for at in (
            300,
            4096 + 8 * info.order,
            len(good) - 1,
        ):  # padding before the slots, a slot, the last checksum
            piece.flip(at, 3)
            with pytest.raises(Damaged, match=f"{info.name} is damaged"):
                store.reader("r")
            piece.write_bytes(good)
    lab.check(store)


@pytest.mark.parametrize("window", ["centred", "causal"])
def test_an_index_that_is_changed_while_it_is_mapped_only_hides_rows(
    store: Store, window: layout.Window
) -> None:
    """Its n-grams count as absent, so shorter ones answer. No row is given for another n-gram."""
    made = lab.content(1, window=window)
    version = lab.put(store, "r", made, window=window)
    batch, rng, hidden, refused = stored(made) + lab.texts(7), np.random.default_rng(0), 0, 0
    indexes = [s for s in version.segments if s.kind == "index"]
    for turn in range(60):
        piece = lab.piece(store, indexes[turn % len(indexes)].name)
        good = piece.read_bytes()
        with store.reader("r") as reader:
            lab.same_as(reader, [lab.entries(made)], batch)
            with piece.file.open("r+b") as file:  # the same file, which is mapped
                for at in rng.integers(4096, len(good), 1 + turn // 4):
                    file.seek(piece.at + at)
                    file.write(bytes([good[at] ^ 1 << int(rng.integers(8))]))
            found = {order: reader.contains(order, ngrams) for order, (ngrams, _) in made.items()}
            left = {
                order: (ngrams[found[order]], rows[found[order]]) for order, (ngrams, rows) in made.items()
            }
            hidden += not all(map(np.all, found.values()))
            try:
                lab.same_as(reader, [lab.entries(left)], batch)
            except Damaged:
                refused += 1
            assert not store.verify("r").ok
        with pytest.raises(Damaged, match="is damaged"):
            store.reader("r")  # nothing has it open any more
        piece.write_bytes(good)
    assert hidden > 10
    assert refused > 10
    lab.check(store)


def test_every_truncation_is_refused_when_opened(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (60, 20, 5)))
    for info in version.segments:
        piece = lab.piece(store, info.name)
        good, whole = piece.read_bytes(), piece.file.read_bytes()
        for size in (0, 100, 256, 4096, len(good) // 2, len(good) - 1):
            piece.write_bytes(good[:size])
            with pytest.raises(Damaged, match=f"has {piece.at + size} bytes"):
                store.reader("r")
            assert info.name in {damage.segment for damage in store.verify("r").damages}
            lab.replace(piece.file, whole)
        piece.file.unlink()
        with pytest.raises(Damaged, match="missing"):
            store.reader("r")
        assert "missing" in store.verify("r").damages[0].what
        lab.replace(piece.file, whole)
    lab.check(store)


def test_a_file_of_one_segment_is_not_longer(store: Store) -> None:
    made = lab.content(1, (400, 20, 5))
    with store.writer("r", schema=lab.schema(), build="b", segment_bytes=1 << 14) as writer:
        writer.add(3, *made[3])
        version = writer.publish()
    alone = [piece for s in version.segments if (piece := lab.piece(store, s.name)).file.name == s.name]
    assert alone
    for piece in alone:
        good = piece.read_bytes()
        piece.write_bytes(good + b"x")
        with pytest.raises(Damaged, match=f"has {len(good) + 1} bytes"):
            store.reader("r")
        assert not store.verify("r").ok
        lab.replace(piece.file, good)
    lab.check(store)


def test_verify_lists_every_damage(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))
    rows = [s for s in version.segments if s.kind == "rows"]
    lab.piece(store, rows[0].name).flip(5000)
    lab.piece(store, rows[1].name).flip(5000)
    found = {damage.segment for damage in store.verify("r/a").damages}
    assert {rows[0].name, rows[1].name} <= found


def test_a_rebuild_heals_a_damaged_segment_even_while_it_is_read(store: Store) -> None:
    made = lab.content(1)
    version = lab.put(store, "r", made)
    lab.piece(store, version.segments[0].name).flip(5000)
    assert not store.verify().ok
    with store.reader("r") as old:
        with pytest.raises(Damaged):
            lab.look(old, stored(made))
        lab.put(store, "r", made)
        with store.reader("r") as healed:
            lab.same_as(healed, [lab.entries(made)], stored(made))
        with pytest.raises(Damaged):
            lab.look(old, stored(made))
    lab.check(store)


HEADER_FIELDS = """
magic format kind order roles dtype n dim stride vocab shift count cap covers
data_at data_bytes checks_at block pad file_bytes salt
"""


def resealed(raw: bytes, **fields: int) -> bytes:
    """A hostile header: with some fields changed, and a checksum that matches them."""
    values = dict(zip(HEADER_FIELDS.split(), fmt._HEADER.unpack_from(raw), strict=True)) | fields
    body = fmt._HEADER.pack(*values.values()).ljust(248, b"\0")
    return body + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + raw[256:]


def test_a_header_that_lies_is_refused(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (60, 20, 5)))
    lies = [
        {"count": 1 << 39},
        {"count": 1},
        {"stride": 16},
        {"dim": 1},
        {"data_at": 0},
        {"data_bytes": 1 << 60},
        {"checks_at": 0},
        {"file_bytes": 1 << 62},
        {"kind": 2},
        {"kind": 3},
        {"kind": 4},
        {"order": 9},
        {"order": 0},
        {"roles": 9},
        {"dtype": 7},
        {"n": 5},
        {"n": 0},
        {"covers": 1 << 30},
        {"cap": 5},
        {"block": 1},
        {"shift": 60},
        {"vocab": 7},
        {"format": 0},
        {"format": 4},
        {"salt": 2},
        {"salt": 1 << 63},
    ]
    for info in (version.segments[0], version.segments[-1]):
        piece = lab.piece(store, info.name)
        good = piece.read_bytes()
        refused = 0
        for lie in lies:
            bad = resealed(good, **lie)
            piece.write_bytes(bad)
            if bad != good:
                with pytest.raises(Damaged):
                    store.reader("r")
                refused += 1
        assert refused >= len(lies) - 2
        piece.write_bytes(resealed(good, format=5))
        with pytest.raises(FormatTooNew, match="format 5, this release reads up to 4: upgrade"):
            store.reader("r")
        piece.write_bytes(good)


def test_only_a_hash_index_of_format_3_has_a_salt(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (60, 20, 5)))
    salts = {}
    for info in version.segments:
        layout = fmt.parse(lab.piece(store, info.name).read_bytes(), info.name)
        salts[layout.kind, layout.order] = layout.salt
        for lie in ({"format": 2}, {"salt": 0}) if layout.salt else ({"salt": 1},):
            raw = resealed(lab.piece(store, info.name).read_bytes(), **lie)
            with pytest.raises(Damaged, match="impossible header"):
                fmt.parse(raw, info.name)
    assert {key for key, salt in salts.items() if salt & 1} == {(fmt.INDEX, 3), (fmt.INDEX, 2)}
    assert (len(set(salts.values())), salts[fmt.DIRECT, 1]) == (3, 0)
    cap = {"cap": (1 << 32) + 1, "data_bytes": ((1 << 32) + 1) * 8}  # more than 32 bits of a hash can number
    index = next(s for s in version.segments if s.kind == "index")
    raw = resealed(lab.piece(store, index.name).read_bytes(), **cap)
    with pytest.raises(Damaged, match="impossible header"):
        fmt.parse(raw, index.name)


def test_any_bytes_can_be_opened(store: Store, tmp_path: Path) -> None:
    """Mutated files with matching header checksums are refused, or opened as what the manifest says."""
    version = lab.put(store, "r", lab.content(1, (9, 5, 3)))
    rng, opened = np.random.default_rng(0), 0
    for turn in range(600):
        info = version.segments[turn % len(version.segments)]
        good = lab.piece(store, info.name).read_bytes()
        data = bytearray(good)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(0, 256 if turn % 2 else len(data)))] = int(rng.integers(0, 256))
        whole = resealed(bytes(data))[: int(rng.integers(0, len(data))) if turn % 5 == 0 else None]
        (tmp_path / "x").write_bytes(whole)
        try:
            segment = open_segment(
                tmp_path / "x", dataclasses.replace(info, bytes=len(whole)), version.schema
            )
        except (Damaged, FormatTooNew):
            continue
        opened += 1
        assert segment.layout.file_bytes == len(whole) == info.bytes
        if info.kind == "index":
            assert whole == good  # not one byte may differ
        else:
            assert segment.rows.shape[0] == info.count
    assert opened > 30


def record(path: Path, key: str, value: object) -> None:
    body = json.dumps(value).encode()
    with lmdb.open(str(path / "catalogue")) as env, env.begin(write=True) as txn:
        txn.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + body) + body)


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    Store.open(tmp_path / "s", create=True).close()
    record(tmp_path / "s", "format", {"format": 7})
    for options in ({}, {"create": True}, {"read_only": True}):
        with pytest.raises(
            FormatTooNew, match=f"format 7, this release reads up to {ERASING_CATALOGUE_FORMAT}: upgrade"
        ):
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
        assert store.version("r").ref == "s"  # a consistent record is believed


def store_version_of(path: Path, ref: str) -> str:
    with Store.open(path) as store:
        return store.version(ref).id


def test_a_catalogue_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s"
    Store.open(path, create=True).close()
    (path / "catalogue" / "data.mdb").write_bytes(b"\x55" * 8192)
    with pytest.raises((Damaged, StoreIO)):
        Store.open(path)


@pytest.mark.parametrize("kept", [0.5, 0.1])
def test_a_shorter_catalogue_is_refused_and_kills_nobody(tmp_path: Path, kept: float) -> None:
    path = tmp_path / "s"
    with Store.open(path, create=True) as made:
        for seed in range(3):
            lab.put(made, "r", lab.content(seed), meta={"note": "x" * 6000})
    data = path / "catalogue" / "data.mdb"
    os.truncate(data, int(data.stat().st_size * kept) // 4096 * 4096)
    code = (
        "import sys, plot_store\ntry: plot_store.Store.open(sys.argv[1]).refs()\n"
        "except plot_store.Damaged as error: print(error); sys.exit(7)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 7, ran
    assert "restore the store" in ran.stdout


def test_verify_looks_at_rows_own_checks_too(store: Store) -> None:
    """A row that was wrong before the file's checksum was taken: only the row's own check shows it."""
    made = lab.content(1, (30, 9, 3))
    version = lab.put(store, "r", made)
    for info in [s for s in version.segments if s.kind == "rows"]:
        piece = lab.piece(store, info.name)
        sound = open_segment(piece.file, info, version.schema, piece.at)
        check._check_rows(sound, version.schema)
        raw = sound.raw.copy()
        raw[4096 + 2 * sound.layout.stride + 40] ^= 1
        damaged = MappedSegment(dataclasses.replace(sound.file, raw=raw), 0, info, sound.layout)
        with pytest.raises(Damaged, match="rows 2 do not match their checks"):
            check._check_rows(damaged, version.schema)


def test_the_highest_bits_of_two_words_are_damage(store: Store) -> None:
    """The check of format 2 did not see this: look-ups returned wrong numbers without an error."""
    made = lab.content(1, (60, 20, 5))
    version = lab.put(store, "r", made)
    for info in [s for s in version.segments if s.kind == "rows"]:
        piece = lab.piece(store, info.name)
        good = piece.read_bytes()
        layout = fmt.parse(good, info.name)
        vectors = layout.data_at + header_bytes(layout.n, layout.order)
        bad = bytearray(good)
        for word in (0, 1):
            bad[vectors + 8 * word + 7] ^= 0x80
        piece.write_bytes(bytes(bad))
        with store.reader("r") as reader, pytest.raises(Damaged, match=f"row 0 of segment {info.name}"):
            reader.get(info.order, made[info.order][0][:1])
        piece.write_bytes(good)
    lab.check(store)


def test_verify_can_be_watched(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1))
    seen: dict[str, list[int]] = {}
    report = check.verify(store._env(), None, lambda name, read: seen.setdefault(name, []).append(read))
    assert report.ok
    assert {name: reads[0] for name, reads in seen.items()} == dict.fromkeys(
        (s.name for s in version.segments), 0
    )
    for info in version.segments:
        assert 0 <= info.bytes - sum(seen[info.name]) <= 32  # all but the table of checksums at the end


@pytest.mark.parametrize("what", ["verify", "reader", "so_far"])
def test_segments_that_move_while_they_are_looked_for_are_found(
    store: Store, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """They move, and a collection removes their file, after their places were read."""
    made = lab.content(1)
    version = lab.put(store, "r", made)
    real = Environment.places

    def before_they_move(environment: Environment, infos: Iterable[SegmentInfo]) -> dict[str, Place]:
        found = real(environment, infos)
        monkeypatch.setattr(Environment, "places", real)
        for info in version.segments:
            (environment.folder / info.name).write_bytes(lab.piece(store, info.name).read_bytes())
        environment.catalogue.write(
            lambda txn: [places.put(txn, info.name, [(info.name, 0)]) for info in version.segments]
        )
        store.gc()
        return found

    with store.writer("r/x", schema=version.schema, build="x") as writer:
        writer.seal()
        monkeypatch.setattr(Environment, "places", before_they_move)
        if what == "verify":
            assert store.verify().ok
        else:
            with store.reader("r") if what == "reader" else writer.so_far() as reader:
                lab.same_as(reader, [*([{}] * (what == "so_far")), lab.entries(made)], lab.texts(3))
    names = {info.name for info in version.segments}
    assert lab.files(store, names) == names, "they did move"


def test_a_version_that_another_process_collects_meanwhile_is_no_damage(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are also in its successor, its index is not."""
    monkeypatch.setattr(writer, "MAX_RUNS", 1)
    old = lab.put(store, "r", lab.content(1))
    with store.writer("r", schema=old.schema, build="more", extend=True) as more:
        for order, (ngrams, rows) in lab.content(2).items():
            more.add(order, ngrams, rows)
        more.seal()  # then the rows of the old version are not copied
        new = more.publish()
    kept = {info.name for info in old.segments} & {info.name for info in new.segments}
    assert kept == {info.name for info in old.segments if info.kind == "rows"}
    collect = "import sys; from plot_store import Store; Store.open(sys.argv[1]).gc(keep_versions=1)"
    calls: list[str] = []

    def watch(segment: str, read: int) -> None:
        if not calls:
            calls.append(segment)
            ran = lab.child(collect, store.path)
            assert ran.returncode == 0, ran.stderr

    assert check.verify(store._env(), None, watch).ok
    assert [version.id for version in store.history("r")] == [new.id]
