"""The format on disk stays what it was: a store written by each released format is read, and written alike."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest
from formats.make import WIDTHS, fixed
from hmi_kernels.layout import header_bytes

from plot_store import Store
from plot_store import format as fmt
from plot_store.indexing import MAX_RUNS

OLD = Path(__file__).parent / "formats"
FILES = ["format-1", *(f"format-2{end}" for end in sorted(WIDTHS))]

WRITTEN = {  # (n, dtype): beginnings of the segments' names, which are the digests of their bytes
    (3, "int8"): ["fefb8881", "2bb87eec", "697f4845", "78230f3d", "3fc13715", "00403799"],
    (3, "fp16"): ["265bedea", "019c89fd", "7f6adeda", "6d2e6c89", "e66ea4c2", "e14103bf"],
    (3, "fp32"): ["972e47f6", "cf0e3c48", "af4b73aa", "86f20672", "32b9fd3b", "6b7c9956"],
    (1, "int8"): ["74784981", "0f59953c"],
    (2, "int8"): ["30635cda", "ee84aca5", "086811b0", "a0c5e621"],
    (4, "fp16"): ["86778b59", "fcded71b", "a9d510fb", "ebf2e8d3", "b6cfc590", "13db19b9", "c5824913", "fd81ce0b"],
    (5, "int8"): [
        "cdb4e381",
        "012de13d",
        "a0ec9883",
        "c3831ef4",
        "acce3f4e",
        "fb80b122",
        "74c29f36",
        "47351f13",
        "dcbf99cc",
        "09f1c4d9",
    ],
}


@pytest.mark.parametrize("stem", FILES)
def test_can_read_old(store: Store, stem: str) -> None:
    found = re.fullmatch(r"format-(\d)(.*)", stem)
    assert found
    n = WIDTHS[found[2]]
    version = store.import_archive(OLD / f"{stem}.plot")
    assert (version.ref, version.meta) == ("r/a", {"written": f"by format {found[1]}"})
    chain = [lab.entries(fixed(n), "fp16"), lab.entries(fixed(n), "int8")]
    with store.reader("r/a") as reader:
        assert {s.layout.format for s in reader._mapped.segments} == {int(found[1])}  # type: ignore[union-attr]
        lab.same_as(reader, chain, [[0, 7, 3], [10, 6, 2, 9], [5], [0, 7, 3, 10, 6, 2, 9, 5]])
        for order, (ngrams, _) in fixed(n).items():
            assert reader.contains(order, ngrams).all()
    lab.check(store)


def test_there_is_one_of_each_to_read() -> None:
    assert sorted(p.stem for p in OLD.glob("*.plot")) == sorted(FILES)
    assert sum(p.stat().st_size for p in OLD.glob("*.plot")) < 200_000


def test_old_rows_and_new_ones_make_one_version(store: Store) -> None:
    """An extending build on a version of format 1: rows with and without checks under one chain, later one index."""
    store.import_archive(OLD / "format-1.plot")
    known = lab.entries(fixed(), "fp16")
    for turn in range(6):  # from the fifth index on, some are made one
        made = lab.content(turn, (20, 5, 2), dim=5)
        version = lab.put(store, "r/a", made, dtype="fp16", extend=True)
        known.update(lab.entries(made, "fp16"))
        with store.reader("r/a") as reader:
            assert {s.layout.format for s in reader._mapped.segments} == {1, 2}  # type: ignore[union-attr]
            lab.same_as(reader, [known, lab.entries(fixed(), "int8")], lab.texts(turn))
    assert sum(s.kind == "index" and s.order == 3 for s in version.segments) <= MAX_RUNS
    lab.check(store)


@pytest.mark.parametrize(("n", "dtype"), WRITTEN, ids=str)
def test_writes_the_same_bytes(store: Store, n: int, dtype: str) -> None:
    version = lab.put(store, "r", fixed(n), dtype=dtype, n=n)
    assert [s.name[:8] for s in version.segments] == WRITTEN[n, dtype]


def test_a_row_is_as_the_document_says(store: Store) -> None:
    """The layout, read with nothing but numpy: docs/plot-format.md in code."""
    version = lab.put(store, "r", fixed(5), n=5)
    info = next(s for s in version.segments if s.kind == "rows" and s.order == 4)
    raw = (store.path / "segments" / info.name).read_bytes()
    assert (raw[8], raw[9], raw[14]) == (2, 0, 5)  # u16 format, n
    assert header_bytes(5, 4) == 64  # 2 words of key, 8 scales, check
    row = np.frombuffer(raw, np.uint8, count=112, offset=fmt.PAGE)
    a, b, c, d = (int(i) for i in fixed(5)[4][0][0])
    assert row[:16].view("<u8").tolist() == [b << 42 | c << 21 | d, a]
    vectors = row[64:104].view("i1").reshape(8, 5) * row[16:48].view("<f4")[:, None]
    assert np.allclose(vectors, fixed(5)[4][1][0], atol=0.01)
    words = [int(w) for w in row.view("<u8")]
    check, words[7] = words[7], 0
    total = 112 + sum(w * 0x9E3779B97F4A7C15 * (2 * j + 1) for j, w in enumerate(words))
    assert check == total % (1 << 64)
