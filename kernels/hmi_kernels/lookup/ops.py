"""The public kernels for CPUs: typed wrappers that check, allocate and call the compiled bodies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.later import Later
from hmi_kernels.lookup.layout import (
    DTYPES,
    EMPTY_SLOT,
    ID_LIMIT,
    MAX_INDEXED,
    PLAIN_SALT,
    REACH,
    Bytes,
    Keys,
    Window,
    header_bytes,
    pack_keys,
    roles,
    scales_at,
    stride,
    words,
)
from hmi_kernels.lookup.table import (
    DamagedRow,
    IndexRun,
    Ints,
    LevelTable,
    RowsView,
    index_filter,
    level_table,
)

if TYPE_CHECKING:
    from hmi_kernels.lookup import (
        cpu,
        cpu_any,
        cpu_batch,
        cpu_build,
        cpu_causal,
        cpu_index,
        cpu_ring,
        cpu_rows,
        cpu_seek,
    )
else:
    cpu = Later("lookup.cpu")
    cpu_any = Later("lookup.cpu_any")
    cpu_batch = Later("lookup.cpu_batch")
    cpu_build = Later("lookup.cpu_build")
    cpu_causal = Later("lookup.cpu_causal")
    cpu_index = Later("lookup.cpu_index")
    cpu_ring = Later("lookup.cpu_ring")
    cpu_rows = Later("lookup.cpu_rows")
    cpu_seek = Later("lookup.cpu_seek")

__all__ = [
    "Crowded",
    "DamagedRow",
    "IndexRun",
    "LevelTable",
    "RowsView",
    "build_direct",
    "build_index",
    "candidates",
    "check_places",
    "check_rows",
    "encode",
    "find",
    "index_filter",
    "level_table",
    "lookup",
    "places",
]

LOAD = 0.75  # of an index: keys per slot
Floats = NDArray[np.float32]


class Crowded(Exception):
    """Too many keys have neighbouring home slots under this salt: use another one."""


def lookup(
    table: LevelTable,
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    vocab: int,
    out: Floats | NDArray[np.uint16],
    order: NDArray[np.int8],
    depth: NDArray[np.int16],
) -> None:
    """Look up a ragged batch of texts: the sum of each token's vectors, in a causal window its one vector.

    tokens int32 [total]; text i is tokens[offsets[i]:offsets[i + 1]], offsets int64 [texts + 1].

    Fills out [total, dim]: float32, or uint16 for the bits of bfloat16 (the float32 sum rounded to nearest,
    ties to even); order int8 [total]: the longest order that filled a position of the token's window, 0 for
    none; depth int16 [total]: the depth in the chain of the first n-gram of order 2 or more that did, -1
    for none. Raises ValueError if offsets do not rise from 0 to len(tokens) or an id is outside 0..vocab-1,
    and DamagedRow if a row fails its check; the outputs are then unspecified.
    """
    assert out.shape == (tokens.size, table.dim)
    assert out.dtype in (np.float32, np.uint16)
    assert tokens.dtype == np.int32
    assert offsets.dtype == np.int64
    assert order.shape == depth.shape == tokens.shape
    assert all(array.flags.c_contiguous for array in (tokens, offsets, out, order, depth))
    half, rows = out.dtype == np.uint16, out.view(np.uint8)
    scratch = np.empty(cpu_ring.SCRATCH_WORDS + table.dim, np.int64)
    if table.window == "causal":
        state = cpu_causal.lookup(
            table.fields,
            table.steps,
            table.probes,
            table.n,
            tokens,
            offsets,
            vocab,
            rows,
            half,
            order,
            depth,
            scratch,
        )
    elif table.plain:
        state = cpu.lookup(table.fields, tokens, offsets, vocab, rows, half, order, depth, scratch)
    else:
        steps, positions = table.steps, table.positions
        state = cpu_any.lookup(
            table.fields, steps, positions, tokens, offsets, vocab, rows, half, order, depth, scratch
        )
    if state != cpu_batch.OK:
        _refuse(state, tokens, vocab)
        raise _damaged(table, scratch)


def _refuse(state: int, tokens: NDArray[np.int32], vocab: int) -> None:
    """Raise ValueError if `checked` refused the batch."""
    if state == cpu_batch.BAD_OFFSETS:
        raise ValueError(f"offsets must rise from 0 to the number of tokens ({tokens.size})")
    if state == cpu_batch.BAD_TOKEN:
        raise ValueError(
            f"every token id must be in 0..{vocab - 1}; the batch was cut with another vocabulary"
        )


def _damaged(table: LevelTable, found: Ints) -> DamagedRow:
    """The error for the row of a record."""
    level = table.levels[_number(table, found[cpu_index.LEVEL])].tolist()
    first, row_bytes = level[cpu_index.SEG0], level[cpu_index.STRIDE]
    for segment in range(first, first + level[cpu_index.NSEG]):
        row, rest = divmod(int(found[cpu_index.ROW] - table.segs[segment, cpu_index.BASE]), row_bytes)
        if 0 <= row < table.segs[segment, cpu_index.COUNT] and rest == 0:
            return DamagedRow(segment, row)
    raise AssertionError("a damaged row lies in no segment")


def _number(table: LevelTable, level: Ints) -> Ints:
    """The numbers of levels, given by address."""
    # Not levels.strides, which may be 0 if there are no levels.
    numbers: Ints = (level - table.fields[cpu_index.LEVELS]) // (8 * cpu_index.LEVEL_COLUMNS)
    return numbers


def find(
    table: LevelTable, order: int, ngrams: NDArray[np.uint32], *, check: bool = True
) -> tuple[Ints, Ints]:
    """Find each n-gram, uint32 [m, order], in the nearest version that has it.

    Returns the addresses of the rows, int64 [m], and their levels, int64 [m]; 0 and -1 if absent. With
    `check` rows are checked on first use; without it only their keys are read. Raises DamagedRow.
    """
    keys, found, lo, hi = _sought(table, order, ngrams)
    levels, segs, headers = table.fields[[cpu_index.LEVELS, cpu_index.SEGS, cpu_index.HEADERS]].tolist()
    bad = cpu_seek.confirm(levels, segs, headers, lo, hi, keys, len(keys), words(order), found, check)
    if bad >= 0:
        raise _damaged(table, found[bad])
    addresses = found[:, cpu_index.ROW].copy()
    return addresses, np.where(addresses != 0, _number(table, found[:, cpu_index.LEVEL]), -1)


def places(table: LevelTable, order: int, ngrams: NDArray[np.uint32]) -> Ints:
    """The addresses, int64 [k], of the rows that `find` would read. Reads no row, as `candidates`."""
    addresses: Ints = _sought(table, order, ngrams)[1][:, cpu_index.ROW]
    return np.compress(addresses != 0, addresses)


def check_places(table: LevelTable) -> None:
    """Raise DamagedRow if a row's key has another fingerprint or token than the slot that leads to it.

    Reads every slot and the key of every row that a slot leads to.
    """
    found = np.zeros(cpu_index.FOUND_COLUMNS, np.int64)
    levels, segs = table.fields[[cpu_index.LEVELS, cpu_index.SEGS]].tolist()
    for number, run in enumerate(table.runs):
        if cpu_seek.misplaced(levels + number * table.levels.strides[0], segs, words(run.order), found):
            raise _damaged(table, found)


def _sought(table: LevelTable, order: int, ngrams: NDArray[np.uint32]) -> tuple[Keys, Ints, int, int]:
    """Seek n-grams by fingerprint: (keys uint64 [m, 2], records, first level, end level of the order)."""
    keys, found = _for_kernel(pack_keys(ngrams)), np.empty((len(ngrams), cpu_index.FOUND_COLUMNS), np.int64)
    levels, segs = table.fields[[cpu_index.LEVELS, cpu_index.SEGS]].tolist()
    lo, hi = table.bounds[table.n - order : table.n - order + 2].tolist()
    cpu_seek.seek(levels, segs, lo, hi, keys, len(keys), words(order), found)
    return keys, found, lo, hi


def _for_kernel(keys: Keys) -> Keys:
    """uint64 [m, words] -> [m, 2]; a missing second word is 0."""
    return keys if keys.shape[1] == 2 else np.pad(keys, ((0, 0), (0, 1)))


def candidates(table: LevelTable, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> Ints:
    """The addresses, int64 [k], of the rows that a look-up of this batch would read, from the indexes alone.

    Reads no row. A collision of fingerprints (one in 2**32) adds or hides an address, which only costs
    time. Raises ValueError as `lookup` does.
    """
    _refuse(cpu_batch.checked(tokens, offsets, ID_LIMIT), tokens, ID_LIMIT)
    fields, steps = table.fields, table.steps
    rows: Ints
    if table.window == "causal":
        rows = cpu_causal.candidates(fields, steps, table.probes, table.n, tokens, offsets)
    else:
        rows = cpu_any.candidates(fields, steps, table.positions, tokens, offsets)
    return rows


def build_index(segment_keys: Sequence[Keys], salt: int = PLAIN_SALT) -> tuple[Keys, int, int]:
    """Build a hash index: (slots uint64 [cap], shift, number of distinct keys).

    segment_keys: the keys of each segment, uint64 [m, words], oldest segment first; of equal keys the
    newest stays. salt: odd, below 2**64. Raises ValueError for more rows than an index can number, and
    Crowded if an n-gram would lie `REACH` slots or more after its home slot.
    """
    shift, starts = _numbering(segment_keys)
    keys = np.concatenate(segment_keys) if segment_keys else np.zeros((0, 1), np.uint64)
    slots = np.full(max(8, int(len(keys) / LOAD) + 1), EMPTY_SLOT, np.uint64)
    reach = min(REACH, slots.size)
    distinct = int(cpu_build.build(keys, starts, np.int64(shift), np.uint64(salt), np.int64(reach), slots))
    if distinct < 0:
        raise Crowded(f"under the salt {salt} an n-gram lies {reach} slots or more after its home")
    return slots, shift, distinct


def build_direct(segment_keys: Sequence[Keys], vocab: int) -> tuple[Keys, int, int]:
    """Build a direct index of unigrams, with a slot for each of 0..vocab-1. Returns and
    raises as `build_index`."""
    shift, _ = _numbering(segment_keys)
    slots = np.full(vocab, EMPTY_SLOT, np.uint64)
    distinct = 0
    for ordinal, keys in enumerate(segment_keys):
        ids = np.arange(len(keys), dtype=np.uint64) + np.uint64(ordinal << shift)
        tokens = (keys[:, 0] & np.uint64(ID_LIMIT - 1)).astype(np.int64)
        assert tokens.size == 0 or int(tokens.max()) < vocab
        distinct += int(cpu_build.build_direct(tokens, ids, slots))
    return slots, shift, distinct


def _numbering(segment_keys: Sequence[Keys]) -> tuple[int, Ints]:
    """The shift of the ordinal in a row id, and the number of rows before each segment,
    int64 [segments + 1]."""
    counts = [len(keys) for keys in segment_keys]
    shift = max(max(counts, default=1) - 1, 1).bit_length()
    if len(counts) << shift >= 1 << 32 or sum(counts) > MAX_INDEXED:
        raise ValueError(
            f"more rows than one index can number ({MAX_INDEXED}): use larger segments or several indexes"
        )
    return shift, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def encode(
    ngrams: NDArray[np.uint32],
    vectors: Floats,
    dtype: int,
    n: int,
    window: Window = "centred",
    *,
    out: Bytes | None = None,
) -> Bytes:
    """Encode n-grams uint32 [m, order] and their vectors float32 [m, roles, dim] as rows uint8 [m, stride].

    dtype: the code of the storage type. The rows are written to `out` if it is given. Raises ValueError for
    NaN and for numbers of `layout.TOO_LARGE` or more in size.
    """
    m, order = ngrams.shape
    dim = vectors.shape[2]
    assert vectors.shape[:2] == (m, roles(n, order, window))
    assert dtype in DTYPES.values()
    shape = (m, stride(n, order, dim, dtype, window))
    rows = np.empty(shape, np.uint8) if out is None else out
    assert rows.shape == shape
    assert rows.flags.c_contiguous
    solid = np.ascontiguousarray(vectors, np.float32)
    header, scales = header_bytes(n, order, window), scales_at(order)
    if not cpu_rows.encode(pack_keys(ngrams), solid, solid.view(np.uint32), dtype, scales, header, rows):
        raise ValueError("a representation is infinite, NaN or too large for its storage type")
    return rows


def check_rows(
    rows: Bytes, n: int, order: int, window: Window = "centred", *, old: bool = False
) -> NDArray[np.bool_]:
    """Return whether each of the rows, uint8 [m, stride], passes its check: bool [m]. old: the check of
    format 2."""
    sound = np.empty(len(rows), np.bool_)
    header = header_bytes(n, order, window)
    cpu_rows.check_rows(np.ascontiguousarray(rows).view(np.uint64), header, old, sound)
    return sound
