"""Random chains, as dictionaries for the reference and as tables for the kernels."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hmi_kernels.lookup import layout, ops, reference

Chain = list[dict[tuple[int, ...], np.ndarray]]
Steps = Sequence[tuple[int, int | None]] | None
MULTIPLIER = 0xD6E8FEB86659FD93
"""The multiplier of the index's hash, docs/plot-format.md."""


def crowd(count: int, salt: int = layout.PLAIN_SALT, place: int = 0x12345678) -> np.ndarray:
    """Trigrams with one home under `salt`, uint32 [count, 3]: the hash of the index, inverted."""
    half, inverse = np.uint64(32), np.uint64(pow(MULTIPLIER, -1, 1 << 64))
    k = np.arange(40 * count, dtype=np.uint64) | np.uint64(place << 32)
    k = k * np.uint64(pow(salt, -1, 1 << 64)) ^ np.uint64(salt >> 1)
    for _ in range(2):
        k = (k ^ k >> half) * inverse
    keys = (k ^ k >> half)[:, None]
    grams = layout.unpack_keys(keys, 3)
    real = grams[layout.pack_keys(grams)[:, 0] == keys[:, 0]]
    assert len(real) >= count
    return real[:count]


def view(rows: layout.Bytes, *, checked: bool = False) -> ops.RowsView:
    """Rows of a segment, of which none has been checked yet, or, with `checked`, all."""
    words = np.full((len(rows) + 63) // 64, layout.EMPTY_SLOT if checked else 0, np.uint64)
    return ops.RowsView(np.ascontiguousarray(rows), words)


def index_run(
    parts: Sequence[layout.Bytes],
    order: int,
    dtype: int,
    *,
    depth: int = 0,
    vocab: int | None = None,
    salt: int | None = None,
) -> ops.IndexRun:
    """An index over segments of rows, oldest first; a direct index when `vocab` is given."""
    keys = [layout.row_keys(part, order) for part in parts]
    salt = 0x9D39247E33776D41 + 2 * depth if salt is None else salt
    slots, shift, _ = ops.build_index(keys, salt) if vocab is None else ops.build_direct(keys, vocab)
    return ops.IndexRun(order, depth, dtype, slots, shift, vocab is not None, tuple(map(view, parts)), salt)


def random_rows(
    rng: np.random.Generator,
    n: int,
    order: int,
    dtype: int,
    dim: int,
    vocab: int,
    window: layout.Window = "centred",
) -> tuple[layout.Bytes, dict[tuple[int, ...], np.ndarray]]:
    """Up to 60 rows of random n-grams, some of them twice, and the vectors by n-gram."""
    ngrams = rng.integers(0, vocab, (int(rng.integers(1, 60)), order)).astype(np.uint32)
    vectors = rng.standard_normal((len(ngrams), layout.roles(n, order, window), dim)).astype(np.float32)
    stored = reference.stored(vectors, dtype)
    meaning = {tuple(map(int, gram)): rows for gram, rows in zip(ngrams, stored, strict=True)}
    return ops.encode(ngrams, vectors, dtype, n, window), meaning


def split_run(
    rng: np.random.Generator, rows: layout.Bytes, order: int, dtype: int, *, depth: int = 0, vocab: int
) -> ops.IndexRun:
    """An index over `rows` in up to three segments, with a random salt; of order 1, half are direct."""
    parts = [part for part in np.array_split(rows, int(rng.integers(1, 4))) if len(part)]
    direct = vocab if order == 1 and rng.integers(2) else None
    salt = int(rng.integers(1 << 63)) * 2 + 1
    return index_run(parts, order, dtype, depth=depth, vocab=direct, salt=salt)


def random_runs(
    rng: np.random.Generator,
    dtypes: Sequence[int],
    dim: int,
    vocab: int,
    n: int = 3,
    window: layout.Window = "centred",
) -> tuple[Chain, list[ops.IndexRun]]:
    """Versions, nearest first, one for each storage type, with up to two indexes of each order."""
    chain: Chain = []
    runs: list[ops.IndexRun] = []
    for depth, dtype in enumerate(dtypes):
        entries: dict[tuple[int, ...], np.ndarray] = {}
        made: list[ops.IndexRun] = []  # this version's, oldest first
        for order in range(1, n + 1):
            for _ in range(int(rng.integers(0, 3))):
                rows, meaning = random_rows(rng, n, order, dtype, dim, vocab, window)
                made.append(split_run(rng, rows, order, dtype, depth=depth, vocab=vocab))
                entries.update(meaning)
        chain.append(entries)
        runs += reversed(made)
    return chain, runs


def random_chain(
    rng: np.random.Generator,
    dtypes: Sequence[int],
    dim: int,
    vocab: int,
    n: int = 3,
    steps: Steps = None,
    window: layout.Window = "centred",
) -> tuple[Chain, ops.LevelTable]:
    """The versions of `random_runs`, as dictionaries for the reference and as a table for the kernels."""
    chain, runs = random_runs(rng, dtypes, dim, vocab, n, window)
    return chain, ops.level_table(runs, n, dim, steps, window)


def ragged(texts: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(tokens int32, offsets int64) of a batch."""
    tokens = np.array([t for text in texts for t in text], np.int32)
    return tokens, np.cumsum([0, *map(len, texts)]).astype(np.int64)


def lookup(
    table: ops.LevelTable, texts: Sequence[Sequence[int]], vocab: int, dtype: type[np.generic] = np.float32
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(out, order, depth) of a batch; the arrays are full of other numbers before."""
    tokens, offsets = ragged(texts)
    out = np.full((tokens.size, table.dim), 77, dtype)
    order, depth = np.full(tokens.size, 9, np.int8), np.full(tokens.size, 9, np.int16)
    ops.lookup(table, tokens, offsets, vocab, out, order, depth)
    return out, order, depth
