"""The format on disk is stable: stores of each released format can be read, and the same
content gives the same bytes."""

from __future__ import annotations

import re
import struct
from dataclasses import asdict, replace
from hashlib import blake2b
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest
from formats.make import WIDTHS, fixed
from hmi_kernels.lookup.layout import Window, header_bytes

from plot_store import Damaged, Invalid, Store
from plot_store.catalogue import version_tree
from plot_store.catalogue.records import dump, version_fields
from plot_store.segments import format as fmt
from plot_store.writing.merging import MAX_RUNS

OLD = Path(__file__).parent / "formats"
FILES = ["format-1", *(f"format-{number}{end}" for number in (2, 3, 4) for end in sorted(WIDTHS))]

DIGESTS: dict[Window, str] = {
    "centred": """
3 int8 547eebd1 f60cc671 b2b71692 9fc3cb94 599a5185 48396bff
3 fp16 45c354d3 13e6d375 7ee2ca6b 04e111ed 749999fa 2d05a5af
3 fp32 a914ade3 0c467011 0fd5e083 98ed4b22 1b88efea 5c9985e5
1 int8 b7c3736a 1fcd3f58
2 int8 ff66ca71 0f7dc2e3 eb4af154 b1c2bdb5
4 fp16 b35d3bb3 8dc9e055 3a1220a5 a42ec123 49d50596 fae6593b daf77c0b fd9cdae8
5 int8 9ff5ec68 076c08d6 f57ea861 dc3f63b0 f78bca50 163df313 2064a3bf f0feaee0 6bc67b6e 45c36dae
""",
    "causal": """
3 int8 c4b5b834 753661b3 f462df36 474418dd f0a8bae7 a8abc142
5 fp16 daf097ef 7c78a4f5 c02f32e2 8f5280fb 3a15ec4b c0db13ab 43d410ee 348b188f ca4d24f5 68ab9c5a
""",
}
"""n, dtype, and how the segments' names begin; a name is the digest of the segment's bytes."""
WRITTEN = {
    (int(n), dtype, window): names
    for window, lines in DIGESTS.items()
    for n, dtype, *names in map(str.split, lines.strip().splitlines())
}


@pytest.mark.parametrize("stem", FILES)
def test_can_read_old(store: Store, stem: str) -> None:
    found = re.fullmatch(r"format-(\d)(.*)", stem)
    assert found
    n = WIDTHS[found[2]]
    version = store.import_archive(OLD / f"{stem}.plot")
    assert (version.ref, version.meta) == ("r/a", {"written": f"by format {found[1]}"})
    assert version.schema.window == ("causal" if found[1] == "4" else "centred")
    made = fixed(n, version.schema.window)
    chain = [lab.entries(made, "fp16"), lab.entries(made, "int8")]
    with store.reader("r/a") as reader:
        assert {s.layout.format for s in reader._mapped.segments} == {int(found[1])}  # type: ignore[union-attr]
        lab.same_as(reader, chain, [[0, 7, 3], [10, 6, 2, 9], [5], [0, 7, 3, 10, 6, 2, 9, 5]])
        for order, (ngrams, _) in made.items():
            assert reader.contains(order, ngrams).all()
    lab.check(store)


def test_there_is_one_fixture_of_each_format() -> None:
    assert sorted(p.stem for p in OLD.glob("*.plot")) == sorted(FILES)
    assert sum(p.stat().st_size for p in OLD.glob("*.plot")) < 200_000


@pytest.mark.parametrize("turns", [MAX_RUNS - 1, MAX_RUNS + 3], ids=["compacted", "merged"])
@pytest.mark.parametrize("old", [1, 2])
def test_old_rows_and_new_ones_make_one_version(store: Store, old: int, turns: int) -> None:
    """A build that extends an older version: rows with different checks, or none, in one chain. Both
    compactions and the merges of extending builds give all rows checks of the current format."""
    store.import_archive(OLD / f"format-{old}.plot")
    known = lab.entries(fixed(), "fp16")
    first = store.version("r/a")
    for turn in range(turns):
        made = lab.content(turn, (20, 5, 2), dim=5)
        version = lab.put(store, "r/a", made, dtype="fp16", extend=True)
        known.update(lab.entries(made, "fp16"))
        with store.reader("r/a") as reader:
            assert {s.layout.format for s in reader._mapped.segments} == {old, fmt.FORMAT}  # type: ignore[union-attr]
            lab.same_as(reader, [known, lab.entries(fixed(), "int8")], lab.texts(turn))
    assert len(version.indexes(3)) <= MAX_RUNS
    lab.check(store)
    after = version
    if turns < MAX_RUNS:
        assert {s.name for s in first.segments} < {s.name for s in version.segments}
        compacted = store.compact("r/a", max_segments=1)
        assert compacted is not None
        after = compacted
        assert store.diff(version.id, after.id).equal  # whatever their checks
    with store.reader("r/a") as reader:
        assert {s.layout.format for s in reader._mapped.segments if s.info in after.segments} == {fmt.FORMAT}  # type: ignore[union-attr]
        lab.same_as(reader, [known, lab.entries(fixed(), "int8")], lab.texts(9))
    lab.check(store)


@pytest.mark.parametrize("words", [(1,), (0, 1)], ids=["one word", "two words"])
def test_damage_in_rows_of_format_2_is_found_as_far_as_their_check_goes(
    store: Store, words: tuple[int, ...]
) -> None:
    """One flipped highest bit is found. In two words at once, verify finds it, and so does
    any call that rewrites rows."""
    version = store.import_archive(OLD / "format-2-n5.plot")
    info = next(s for s in version.segments if s.kind == "rows" and s.order == 5)
    for word in words:
        lab.piece(store, info.name).flip(fmt.PAGE + header_bytes(5, 5) + 8 * word + 7, 7)
    gram = fixed(5)[5][0][:1]
    with store.reader("r/a") as reader:
        if len(words) == 1:
            with pytest.raises(Damaged, match=f"row 0 of segment {info.name}"):
                reader.get(5, gram)
        else:
            reader.get(5, gram)
    assert {d.segment for d in store.verify().damages} >= {info.name}
    with pytest.raises(Damaged, match=info.name):
        store.diff("r/a", "r/a")
    for seed in range(MAX_RUNS - 1):
        store.append("r/a", lab.content(seed, (9, 3, 3, 2, 1), dim=5))
    for merge in (store.compact, lambda ref, **_: store.append(ref, lab.content(9, (9, 3, 3, 2, 1), dim=5))):
        with pytest.raises(Damaged, match=info.name):
            merge("r/a", max_segments=1)


def test_a_damaged_vector_of_format_1_is_not_given_a_check(store: Store) -> None:
    version = store.import_archive(OLD / "format-1.plot")
    info = next(s for s in version.segments if s.kind == "rows" and s.order == 3)
    lab.piece(store, info.name).flip(fmt.PAGE + header_bytes(3, 3))
    for seed in range(MAX_RUNS - 1):
        store.append("r/a", lab.content(seed, (9, 3, 3), dim=5))
    for merge in (store.compact, lambda ref, **_: store.append(ref, lab.content(9, (9, 3, 3), dim=5))):
        with pytest.raises(Damaged, match=info.name):
            merge("r/a", max_segments=1)


@pytest.mark.parametrize(("n", "dtype", "window"), WRITTEN, ids=str)
def test_writes_the_same_bytes(store: Store, n: int, dtype: str, window: Window) -> None:
    version = lab.put(store, "r", fixed(n, window), dtype=dtype, n=n, window=window)
    assert [s.name[:8] for s in version.segments] == WRITTEN[n, dtype, window]


def test_a_manifest_has_every_field(store: Store) -> None:
    """What is written is what `dataclasses.asdict` gives, but for the name of a centred window."""
    lab.put(store, "r", lab.content(1), meta={"a": [{"b": 1}]})
    with store.writer("r", schema=lab.schema(), build="b", extend=True) as writer:
        writer.add(3, *lab.content(2)[3])
        writer.seal()
        build = store._env().catalogue.read(lambda txn: version_tree.get_build(txn, "b"))
    assert build is not None
    assert build.sealed is not None
    for record in (store.version("r"), build, replace(build, sealed=None)):
        whole = asdict(record)
        assert whole["schema"].pop("window") == "centred"
        assert whole.pop("erased", ()) == ()
        assert dump(version_fields(record)) == dump(whole)


def test_only_what_has_a_causal_version_has_its_format(store: Store, tmp_path: Path) -> None:
    """Releases up to format 3 read the rest as before, and refuse the segments and exports that they would
    misread."""
    centred = lab.put(store, "r", fixed())
    store.export("r", tmp_path / "r.plot")
    assert "window" not in version_fields(centred)["schema"]
    assert (store.info().format, (tmp_path / "r.plot").read_bytes()[8]) == (5, 3)
    causal = lab.put(store, "c", fixed(3, "causal"), window="causal")
    store.export("c", tmp_path / "c.plot")
    assert version_fields(causal)["schema"]["window"] == "causal"
    assert (store.info().format, (tmp_path / "c.plot").read_bytes()[8]) == (5, 4)
    for number, version in ((3, centred), (4, causal)):
        for info in version.segments:
            assert lab.piece(store, info.name).read_bytes()[8] == number
    raw = bytearray((tmp_path / "c.plot").read_bytes())
    raw[8] = 3
    (tmp_path / "c.plot").write_bytes(raw)
    with pytest.raises(Damaged, match="has format 3, but its versions need 4"):
        store.import_archive(tmp_path / "c.plot")
    with Store.open(tmp_path / "other", create=True) as other:
        assert other.import_archive(tmp_path / "r.plot") == centred
    with pytest.raises(Invalid, match="n, dim, vocab and window"):
        lab.put(store, "r/c", fixed(3, "causal"), window="causal")
    with pytest.raises(Invalid, match="or window"):
        store.diff("r", "c")
    with pytest.raises(Invalid, match="use one of centred, causal"):
        lab.schema(window="both")  # type: ignore[arg-type]


def test_a_row_is_as_the_document_says(store: Store) -> None:
    """The layout of docs/plot-format.md, read with numpy alone."""
    version = lab.put(store, "r", fixed(5), n=5)
    info = next(s for s in version.segments if s.kind == "rows" and s.order == 4)
    raw = lab.piece(store, info.name).read_bytes()
    assert (raw[8], raw[9], raw[14]) == (3, 0, 5)  # u16 format, n
    assert header_bytes(5, 4) == 64  # 2 words of key, 8 scales, check
    row = np.frombuffer(raw, np.uint8, count=112, offset=fmt.PAGE)
    a, b, c, d = (int(i) for i in fixed(5)[4][0][0])
    assert row[:16].view("<u8").tolist() == [b << 42 | c << 21 | d, a]
    vectors = row[64:104].view("i1").reshape(8, 5) * row[16:48].view("<f4")[:, None]
    assert np.allclose(vectors, fixed(5)[4][1][0], atol=0.01)
    words = [int(w) for w in row.view("<u8")]
    check, words[7] = words[7], 0
    total_a = total_b = 0
    a, b, mask = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03, (1 << 64) - 1
    for j, word in enumerate(words):
        x = word + a + j * 0xA0761D6478BD642F & mask
        y = word ^ b + j * 0xE7037ED1A0B428DB & mask
        total_a += (x >> 32) * (x & 0xFFFFFFFF)
        total_b += (y >> 32) * (y & 0xFFFFFFFF)
    product = (total_a & mask ^ a) * (total_b & mask ^ b)
    assert check == (product >> 64 ^ product & mask) + 112 & mask


def test_an_n_gram_lies_where_the_document_says(store: Store) -> None:
    """The index, read with Python's integers alone."""
    version = lab.put(store, "r", lab.content(0, (200, 0, 0)))
    raw = {s.kind: lab.piece(store, s.name).read_bytes() for s in version.segments if s.order == 3}
    index = raw["index"]
    shift, count, cap, covers, data_at = struct.unpack_from("<IQQQQ", index, 28)
    (salt,) = struct.unpack_from("<Q", index, 96)
    rows_name = next(s.digest for s in version.segments if s.kind == "rows" and s.order == 3)
    assert (covers, index[256:272].hex()) == (1, rows_name)
    assert salt == int.from_bytes(blake2b(index[256:280] + b"\0", digest_size=8).digest(), "little") | 1
    slots = struct.unpack_from(f"<{cap}Q", index, data_at)
    stride = struct.unpack_from("<I", raw["rows"], 20)[0]
    mask = (1 << 64) - 1
    for row in range(count):
        (h,) = struct.unpack_from("<Q", raw["rows"], fmt.PAGE + row * stride)
        for _ in range(2):
            h = (h ^ h >> 32) * 0xD6E8FEB86659FD93 & mask
        h ^= h >> 32
        at = (((h ^ salt >> 1) * salt & mask) >> 32) * cap >> 32
        while slots[at] != (h & 0xFFFFFFFF) << 32 | row:
            assert slots[at] != mask
            at = (at + 1) % cap
    assert shift == (count - 1).bit_length()
