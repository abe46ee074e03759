"""The format on disk stays what it was: a store written by each released format is read, and written alike."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import plotlab as lab
import pytest

from plot_store import Store

OLD = Path(__file__).parent / "formats"


WRITTEN = {  # beginnings of the segments' names, which are the digests of their bytes
    "int8": ["24a11a5a", "b2082bc2", "f926f4e7", "ccf09d52", "a4665122", "15a8a76b"],
    "fp16": ["72725989", "3d99911a", "52af8a2e", "4ea7b765", "b49b3f25", "9a59d33c"],
    "fp32": ["13278c77", "2ca8820b", "fdcef98d", "35f397f3", "a85c9aca", "5244d19c"],
}


def fixed() -> lab.Content:
    """Content that depends on no random generator."""
    made: lab.Content = {}
    for order, roles in ((3, 3), (2, 4), (1, 3)):
        ngrams = (np.arange(6 * order).reshape(6, order) * 7 % 11).astype(np.uint32)
        rows = (np.arange(6 * roles * 5).reshape(6, roles, 5) % 13 - 6).astype(np.float32) / 4
        made[order] = (ngrams, rows)
    return made


@pytest.mark.parametrize("file", sorted(OLD.glob("*.plot")), ids=lambda p: p.stem)
def test_can_read_old(store: Store, file: Path) -> None:
    version = store.import_archive(file)
    assert (version.ref, version.meta) == ("r/a", {"written": "by format 1"})
    chain = [lab.entries(fixed(), "fp16"), lab.entries(fixed(), "int8")]
    with store.reader("r/a") as reader:
        lab.same_as(reader, chain, [[0, 7, 3], [10, 6, 2, 9], [5]])
        assert reader.contains(3, fixed()[3][0]).all()
    lab.check(store)


def test_there_is_an_old_one_to_read() -> None:
    assert [p.stem for p in OLD.glob("*.plot")] == ["format-1"]


@pytest.mark.parametrize("dtype", ["int8", "fp16", "fp32"])
def test_writes_the_same_bytes(store: Store, dtype: str) -> None:
    version = lab.put(store, "r", fixed(), dtype=dtype)
    assert [s.name[:8] for s in version.segments] == WRITTEN[dtype]
