"""Compilation before first use: `python -m hmi_kernels.compile ENTRY…` puts an entry's machine code into
numba's cache.

numba compiles a kernel when it is first called, for the types that it is called with. That takes up to
twenty seconds for an entry here, which the first text of a fresh installation would wait for.
"""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np

from hmi_kernels import jit
from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import EMPTY_SLOT, Window


def _encoder() -> None:
    import_module("hmi_kernels.encoder.ops")  # its kernels are compiled as they are defined


def _lookup() -> None:
    """Look-ups in empty indexes, with arrays of the types that a reader of a store passes.

    Stores of trigrams have kernels of their own, and those of causal windows; all others share the rest.
    """
    slots = np.full(8, EMPTY_SLOT, np.uint64)
    slots.flags.writeable = False  # a store's indexes are files that are mapped for reading
    dim, dtype = 64, 0
    tokens, offsets = np.zeros(1, np.int32), np.array([0, 1], np.int64)
    windows: tuple[tuple[int, Window], ...] = (3, "centred"), (5, "centred"), (3, "causal")
    for n, window in windows:
        table = ops.level_table([ops.IndexRun(n, 0, dtype, slots, 1, False, ())], n, dim, window=window)
        ops.candidates(table, tokens, offsets)
        out = np.empty((1, dim), np.float32)
        ops.lookup(table, tokens, offsets, 1, out, np.empty(1, np.int8), np.empty(1, np.int16))


def _text() -> None:
    """Words' features, paths and heads, with arrays of the types that models and trainings pass."""
    from hmi_kernels.text.heads import cls_head
    from hmi_kernels.text.pairs import EACH, VECTORS, align, score
    from hmi_kernels.text.path_loss import path_loss
    from hmi_kernels.text.paths import forward_backward, viterbi
    from hmi_kernels.text.words import word_features

    ids = np.empty(64, np.int64)
    word_features(np.ones(1, np.uint64), np.array([0, 1], np.int64), 1, ids, np.empty(2, np.int64))
    scores, moves = np.zeros((1, 2), np.float32), np.zeros((3, 2), np.float32)
    viterbi(scores, moves, np.empty((1, 2), np.int32), np.empty(1, np.int64))
    words, weights = np.ones((1, 2)), np.ones((3, 2))
    forward_backward(words, weights[-1], weights[:-1], np.empty((1, 2)))
    path_loss(scores, np.array([0, 1]), np.zeros(1, np.int64), moves, scores.copy(), moves.copy())
    row, bias = np.zeros((1, 1), np.float32), np.zeros(1, np.float32)
    cls_head(row, row, np.array([0, 1], np.int64), row[:0], np.zeros((1, 2), np.float32), bias, row.copy())
    aligned = np.empty((1, 2 * (EACH + VECTORS)), np.float32)
    align(ids[:1], np.zeros(1, np.int8), bias, row, np.array([0, 1], np.int64), aligned)
    of_figures = np.zeros((1, 4 * EACH), np.float32)
    score(
        aligned, of_figures[0, : 2 * EACH], of_figures[0, : 2 * EACH], of_figures, aligned, bias, row.copy()
    )


def _planning() -> None:
    """The label program, for one stream and for several."""
    from hmi_kernels.planning.labels import one_stream, streams

    groups, chosen = np.ones((1, 1)), np.empty(1, np.int64)
    one_stream(0.0, groups, groups, groups, 3, chosen)
    streams(np.zeros(2), groups, groups, groups, 3, chosen)


def _rows() -> None:
    """Merging, with arrays of the types that its stage passes."""
    from hmi_kernels.rows.merging import merge

    x, size = np.ones((2, 1), np.float32), np.ones(2, np.float32)
    merge(x, size, np.array([[0, 2, 1]]), np.empty(2, np.int64), x[:1].copy(), size[:1].copy())


def _shards() -> None:
    import_module("hmi_kernels.shards.bits")  # its kernels are compiled as they are defined


def _decoder() -> None:
    """Layers and scores of language models, and the best words, with arrays of the types that sampling
    passes."""
    from hmi_kernels.decoder.ops import best  # the other kernels are compiled as they are defined

    best(np.zeros(64, np.float32), 1)


_ENTRIES = {
    "lookup": _lookup,
    "text": _text,
    "encoder": _encoder,
    "planning": _planning,
    "rows": _rows,
    "shards": _shards,
    "decoder": _decoder,
}
ENTRIES = tuple(_ENTRIES)
"""All entries: look-ups, models' features and heads, the encoder's layers, plans, what stages do with rows
between layers, shards, and language models' layers."""
NEEDED = ("lookup", "text", "planning", "rows")
"""Entries without which nothing is served. Packed torch runs layers without the encoder. Shards are compiled
when the first of them is decoded, if they are not before."""
GENERATING = ("decoder",)
"""Entries that only roots of language models need. A server without such a root does not compile them."""


def compile_entry(entry: str) -> None:
    """Compile an entry in this process, or load it from the cache, and record that it is there.

    If another process compiles it, waits and loads what that has made.
    """
    with jit.alone(entry):
        _ENTRIES[entry]()
        jit.keep(entry)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        compile_entry(name)
