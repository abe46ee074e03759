"""How one n-gram entry lies in memory: the contract between the store's files and the kernels.

An entry ("row") of order k is `ROW_HEADER` bytes followed by `ROLES[k]` vectors of `dim` numbers:

    offset 0   u64   packed key (see `pack_keys`); beside the scales, so checking it costs no cache miss
    offset 8   f32 * roles   one scale per vector (1.0 for the float types)
    offset 32  the vectors, one after another, int8 | fp16 | fp32

Rows are padded to a multiple of `ROW_ALIGN` bytes. Everything is little-endian.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

ROW_HEADER: Final = 32
ROW_ALIGN: Final = 16
SCALES_AT: Final = 8
ORDERS: Final = (3, 2, 1)
# 3: left, centre, right.  2: left of x, centre of y, centre of x, right of y.  1: left, centre, right.
ROLES: Final = {3: 3, 2: 4, 1: 3}
ID_LIMIT: Final = 1 << 20  # token ids are below this
FIELD_BITS: Final = 21
TAG_SHIFT: Final = 62  # the order, in the two bits no id can reach: keys of different orders never coincide
DTYPES: Final = {"int8": 0, "fp16": 1, "fp32": 2}
NUMPY_TYPES: Final[dict[int, np.dtype[Any]]] = {0: np.dtype("i1"), 1: np.dtype("<f2"), 2: np.dtype("<f4")}
EMPTY_SLOT: Final = 0xFFFFFFFFFFFFFFFF

Keys = NDArray[np.uint64]
Bytes = NDArray[np.uint8]


def stride(order: int, dim: int, dtype: int) -> int:
    """Bytes of one row."""
    raw = ROW_HEADER + ROLES[order] * dim * NUMPY_TYPES[dtype].itemsize
    return -(-raw // ROW_ALIGN) * ROW_ALIGN


def pack_keys(ngrams: NDArray[np.uint32]) -> Keys:
    """uint32 [m, order] of ids below `ID_LIMIT` -> uint64 [m]; the first id is the most significant."""
    order = ngrams.shape[1]
    keys = np.full(ngrams.shape[0], order << TAG_SHIFT, np.uint64)
    for column in range(order):
        keys |= ngrams[:, column].astype(np.uint64) << np.uint64(FIELD_BITS * (order - 1 - column))
    return keys


def unpack_keys(keys: Keys, order: int) -> NDArray[np.uint32]:
    """uint64 [m] -> uint32 [m, order]; the inverse of `pack_keys`."""
    columns = [(keys >> np.uint64(FIELD_BITS * (order - 1 - c))) & np.uint64(ID_LIMIT - 1) for c in range(order)]
    return np.stack(columns, axis=1).astype(np.uint32)


def row_keys(rows: Bytes) -> Keys:
    """The packed keys of uint8 [m, stride] rows, as uint64 [m] (a copy, native order)."""
    return np.ascontiguousarray(rows[:, :SCALES_AT]).view("<u8")[:, 0].astype(np.uint64)


def row_scales(rows: Bytes, order: int) -> NDArray[np.float32]:
    """The scales of uint8 [m, stride] rows, float32 [m, roles] (a copy)."""
    end = SCALES_AT + 4 * ROLES[order]
    return np.ascontiguousarray(rows[:, SCALES_AT:end]).view("<f4").astype(np.float32)


def decode(rows: Bytes, order: int, dim: int, dtype: int) -> NDArray[np.float32]:
    """uint8 [m, stride] rows -> float32 [m, roles, dim]; the plain numpy meaning of a stored row."""
    kind = NUMPY_TYPES[dtype]
    body = np.ascontiguousarray(rows[:, ROW_HEADER : ROW_HEADER + ROLES[order] * dim * kind.itemsize])
    vectors: NDArray[np.float32] = body.view(kind).astype(np.float32).reshape(rows.shape[0], ROLES[order], dim)
    return np.asarray(vectors * row_scales(rows, order)[:, :, None], np.float32)
