"""One large look-up on several threads. Callers opt in to it."""

from __future__ import annotations

import itertools
from concurrent.futures import Executor

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.lookup import ops


def lookup(
    pool: Executor,
    parts: int,
    table: ops.LevelTable,
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    vocab: int,
    out: NDArray[np.float32] | NDArray[np.uint16],
    order: NDArray[np.int8],
    depth: NDArray[np.int16],
) -> None:
    """`ops.lookup` as up to `parts` tasks of whole texts on `pool`, with the same bits and the same errors.

    The kernels release the GIL. It pays from about a thousand tokens on; a smaller batch is faster without.
    """
    cuts = text_cuts(offsets, tokens.size, parts)
    if len(cuts) < 3:
        return ops.lookup(table, tokens, offsets, vocab, out, order, depth)
    tasks = []
    for first, end in itertools.pairwise(cuts):
        at = slice(int(offsets[first]), int(offsets[end]))
        ragged = tokens[at], offsets[first : end + 1] - at.start
        tasks.append(pool.submit(ops.lookup, table, *ragged, vocab, out[at], order[at], depth[at]))
    errors = [task.exception() for task in tasks]  # wait for all: they write to the caller's arrays
    for error in errors:
        if error is not None:
            raise error
    return None


def text_cuts(offsets: NDArray[np.int64], tokens: int, parts: int) -> list[int]:
    """Split a batch into runs of whole texts with about equally many tokens.

    Returns the first text of each run, and the number of texts as the end; [] for a malformed batch.
    """
    if offsets.size < 2 or offsets[0] != 0 or offsets[-1] != tokens or (np.diff(offsets) < 0).any():
        return []
    marks = np.arange(1, parts) * tokens // parts
    return sorted({0, *np.searchsorted(offsets, marks).tolist(), offsets.size - 1})
