"""Look-ups through the store equal the oracle's, and obey rules that hold for any implementation."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest
from hmi_kernels.lookup import reference
from hmi_kernels.lookup.layout import DTYPES, Window

from plot_store import Closed, Invalid, Store
from plot_store.writing.merging import MAX_RUNS


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("dtypes", [["int8"], ["fp16"], ["fp32"], ["int8"] * 4, ["fp16", "int8", "fp32"]])
def test_chain_equals_the_oracle(store: Store, dtypes: list[str], window: Window) -> None:
    chain: list[lab.Entries] = []
    for depth, dtype in enumerate(dtypes):
        made = lab.content(depth, (150, 30, 5), window=window)
        lab.put(store, "/".join(["r", "a", "b", "c"][: depth + 1]), made, dtype=dtype, window=window)
        chain.insert(0, lab.entries(made, dtype))
    with store.reader("/".join(["r", "a", "b", "c"][: len(dtypes)])) as reader:
        assert [v.schema.dtype for v in reader.chain] == dtypes[::-1]
        for seed in range(5):
            lab.same_as(reader, chain, lab.texts(seed))
    lab.check(store)


@pytest.mark.parametrize("dtype", ["int8", "fp16", "fp32"])
def test_stored_entries_come_back_to_their_precision(store: Store, dtype: str) -> None:
    made = lab.content(1)
    lab.put(store, "r", made, dtype=dtype)
    with store.reader("r") as reader:
        for order, (ngrams, rows) in made.items():
            got, depth = reader.get(order, ngrams)
            assert (depth == 0).all()
            assert np.array_equal(got, reference.stored(rows, DTYPES[dtype]))
            bound = {"int8": 1 / 250, "fp16": 1 / 2000, "fp32": 0.0}[dtype]
            assert (np.abs(got - rows) <= bound * np.abs(rows).max(axis=-1, keepdims=True)).all()


def test_look_ups_go_on_after_the_pages_are_let_go(store: Store) -> None:
    made = lab.content(1, (150, 30, 5))
    lab.put(store, "r", made)
    with store.reader("r") as reader:
        for seed in range(3):
            lab.same_as(reader, [lab.entries(made)], lab.texts(seed))
            reader.let_go()
    with pytest.raises(Closed):
        reader.let_go()


def test_chains_that_end_in_one_index_share_its_filter(store: Store) -> None:
    root, one, other = (lab.content(i, (150, 30, 5)) for i in range(3))
    for name, made in (("r", root), ("r/a", one), ("r/b", other)):
        lab.put(store, name, made)
    with store.reader("r/a") as reader, store.reader("r/b") as beside:
        for at, own in ((reader, one), (beside, other)):
            lab.same_as(at, [lab.entries(own), lab.entries(root)], lab.texts(0))
        filters = [{words.ctypes.data for words in at._open().table.filters} for at in (reader, beside)]
        assert len(filters[0] & filters[1]) == 2, "of bigrams and trigrams"


def test_get_and_contains_along_the_chain(store: Store) -> None:
    root, branch = lab.content(1), lab.content(2)
    lab.put(store, "r", root)
    lab.put(store, "r/a", branch, dtype="fp32")
    known = [lab.entries(branch, "fp32"), lab.entries(root)]
    every = np.array([[a, b, c] for a in range(12) for b in range(12) for c in range(12)], np.uint32)
    with store.reader("r/a") as reader:
        got, depth = reader.get(3, every)
        inside = reader.contains(3, every)
    for ngram, vectors, where, there in zip(every, got, depth, inside, strict=True):
        expected, at = reference.find(known, tuple(map(int, ngram)))
        assert (where, there) == (at, expected is not None)
        assert np.array_equal(vectors, np.zeros((3, lab.DIM)) if expected is None else expected)


def test_alone_equals_batched_in_any_order(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    batch = lab.texts(3, (5, 1, 30, 2, 0, 300))
    with store.reader("r") as reader:
        alone = [lab.look(reader, [text])[0] for text in batch]
        for order in ([0, 1, 2, 3, 4, 5], [5, 3, 1, 4, 2, 0]):
            together, _ = lab.look(reader, [batch[i] for i in order])
            assert np.array_equal(together, np.concatenate([alone[i] for i in order]))


def test_a_token_reaches_two_rows_either_way_and_no_further(store: Store) -> None:
    every = np.array([[a, b, c] for a in range(12) for b in range(12) for c in range(12)], np.uint32)
    rows = np.random.default_rng(0).standard_normal((len(every), 3, lab.DIM)).astype(np.float32)
    lab.put(store, "r", {3: (every, rows)})
    text = np.random.default_rng(1).integers(1, 11, 15).tolist()
    with store.reader("r") as reader:
        before = lab.look(reader, [text, text])[0][:15]
        for j in range(15):
            changed = [*text[:j], 11, *text[j + 1 :]]
            after = lab.look(reader, [changed, text])[0]
            moved = np.flatnonzero((after[:15] != before).any(axis=1)).tolist()
            assert moved == [i for i in range(15) if abs(i - j) <= 2]
            assert np.array_equal(after[15:], before)  # the neighbouring text is not affected


def test_a_domain_hit_beats_the_root_and_more_entries_hit_more(store: Store) -> None:
    root, domain = lab.content(1, (1, 0, 12)), lab.content(2, (900, 0, 0))
    lab.put(store, "r", root)
    batch = lab.texts(5, (200, 200))
    hits = []
    for share in (0, 30, 60, 100):
        part = {3: tuple(x[: len(x) * share // 100] for x in domain[3])}
        lab.put(store, "r/d", part)  # type: ignore[arg-type]
        with store.reader("r/d") as reader:
            out, found = lab.look(reader, batch)
            hits.append(found.counts()["trigram"])
            if share == 0:
                with store.reader("r") as bare:
                    assert np.array_equal(out, lab.look(bare, batch)[0])
    assert hits == sorted(hits)
    assert hits[0] < hits[1] < hits[2] < hits[3]
    both = root[3][0]
    lab.put(store, "r/d", {3: (both, np.full((len(both), 3, lab.DIM), 5, np.float32))})
    with store.reader("r/d") as reader:
        assert np.array_equal(reader.get(3, both)[0], np.full((len(both), 3, lab.DIM), 5, np.float32))


def test_a_miss_is_zero_and_counted(store: Store) -> None:
    lab.put(store, "r", {})
    with store.reader("r") as reader:
        out, hits = lab.look(reader, [[1, 2, 3], [4]])
    assert not out.any()
    assert hits.counts() == {"trigram": 0, "bigram": 0, "unigram": 0, "miss": 4}
    assert hits.depth.tolist() == [-1] * 4


@pytest.mark.parametrize("dtype", ["int8", "fp16", "fp32"])
def test_bfloat16_is_the_float32_answer_rounded(store: Store, dtype: str) -> None:
    lab.put(store, "r", lab.content(1), dtype=dtype)
    tokens, offsets = lab.ragged(lab.texts(4))
    with store.reader("r") as reader:
        full, hits = reader.lookup(tokens, offsets)
        half, again = reader.lookup(tokens, offsets, out=np.empty(full.shape, np.uint16))
    assert half.dtype == np.uint16
    assert np.array_equal(half, reference.bfloat16(full))
    assert np.array_equal(hits.order, again.order)


@pytest.mark.parametrize(
    "counts", [(9,), (40, 9), (60, 40, 9), (60, 60, 40, 9), (60, 60, 60, 40, 9)], ids=len
)
def test_own_and_get_for_every_width(store: Store, counts: tuple[int, ...]) -> None:
    n, made = len(counts), lab.content(1, counts)
    version = lab.put(store, "r", made, n=n)
    lab.put(store, "r/a", lab.content(2, counts), n=n)
    assert version.entries == {order: len(ngrams) for order, (ngrams, _) in made.items()}
    with store.reader("r") as reader:
        for order, (ngrams, rows) in made.items():
            assert np.array_equal(reader.ngrams(order), np.unique(ngrams, axis=0))
            got, depth = reader.get(order, ngrams)
            assert np.array_equal(got, reference.stored(rows, DTYPES["int8"]))
            assert (depth == 0).all()
            assert np.array_equal(reader.depths(order, ngrams), depth)
        for bad in (0, n + 1, True, "3"):
            with pytest.raises(Invalid, match=f"is unknown where n = {n}: use {n} "):
                reader.ngrams(bad)  # type: ignore[arg-type]


def test_unigrams_are_indexed_directly_once_they_are_many(store: Store) -> None:
    kinds = {}
    for count in (1, 2, 12):
        ngrams = np.arange(count, dtype=np.uint32)[::-1, None]
        made = {
            1: (ngrams, np.random.default_rng(count).standard_normal((count, 3, lab.DIM)).astype(np.float32))
        }
        version = lab.put(store, f"r{count}", made)
        with store.reader(version.ref) as reader:
            (run,) = reader._mapped.table.runs  # type: ignore[union-attr]
            kinds[count] = (run.direct, run.slots.size)
            lab.same_as(reader, [lab.entries(made)], lab.texts(count))
    assert kinds == {1: (False, 8), 2: (True, lab.VOCAB), 12: (True, lab.VOCAB)}
    lab.check(store)


def test_many_extensions_keep_few_indexes_and_the_large_old_one(store: Store) -> None:
    big = lab.content(0, (3000, 0, 0), vocab=15)
    first = lab.put(store, "r", big, vocab=15)
    known = lab.entries(big)
    large = next(s for s in first.segments if s.kind == "index")
    for turn in range(1, 12):
        made = lab.content(turn, (20, 0, 0), vocab=15)
        version = lab.put(store, "r", made, vocab=15, extend=True)
        known.update(lab.entries(made))
        indexes = version.indexes(3)
        assert len(indexes) <= MAX_RUNS + 1
        assert indexes[0] == large
        with store.reader("r") as reader:
            lab.same_as(reader, [known], lab.texts(turn, vocab=15))
    lab.check(store)


def test_out_is_filled_and_checked(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    tokens, offsets = lab.ragged([[1, 2, 3]])
    with store.reader("r") as reader:
        out = np.full((3, lab.DIM), 9, np.float32)
        got, _ = reader.lookup(tokens, offsets, out=out)
        assert got is out
        assert np.array_equal(out, reader.lookup(tokens, offsets)[0])
        frozen = np.zeros((3, lab.DIM), np.float32)
        frozen.flags.writeable = False
        for bad in (out[:2], out.astype(np.float64), np.zeros((3, 2 * lab.DIM), np.float32)[:, ::2], frozen):
            with pytest.raises(Invalid, match="out must be"):
                reader.lookup(tokens, offsets, out=bad)
        with pytest.raises(Invalid, match="tokens must be"):
            reader.lookup(tokens.astype(np.int64), offsets)  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="offsets must be"):
            reader.lookup(tokens, offsets.astype(np.int32))  # type: ignore[arg-type]
        with pytest.raises(Invalid, match="token id"):
            reader.lookup(np.array([lab.VOCAB], np.int32), np.array([0, 1], np.int64))
        with pytest.raises(Invalid, match="offsets must rise"):
            reader.lookup(tokens, np.array([0, 2], np.int64))


def test_many_threads_one_reader_and_a_close_in_between(store: Store) -> None:
    made = lab.content(1)
    lab.put(store, "r", made)
    reader = store.reader("r")
    batch = lab.texts(2, (100, 50))
    expected = lab.look(reader, batch)[0]
    wrong: list[str] = []

    def work() -> None:
        try:
            while True:
                if not np.array_equal(lab.look(reader, batch)[0], expected):
                    wrong.append("differs")
        except Closed:
            return

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    threading.Event().wait(0.3)
    reader.close()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert not wrong
    with pytest.raises(Closed):
        reader.contains(3, made[3][0])


def test_readers_cost_no_file_descriptors_and_give_their_memory_back(store: Store) -> None:
    version = lab.put(store, "r", lab.content(1, (1500, 50, 5)))
    names = lab.files(store, [s.name for s in version.segments])
    assert len(version.segments) > 5

    def mapped() -> int:
        """Mappings of the store's files."""
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(line.endswith(tuple(names)) for line in lines)

    before = len(os.listdir("/proc/self/fd"))
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(lab.content(1, (1500, 50, 5)))], lab.texts(1))
        assert len(os.listdir("/proc/self/fd")) == before
        assert mapped() == len(names)
    del reader
    gc.collect()
    assert mapped() == 0
