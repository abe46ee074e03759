"""Packed codes of few bits: the Python face of the kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.shards import bits as kernels

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Places = NDArray[np.int64]
FULL = 32
"""The bits of a number that is not packed."""
PADDING = 8
"""Bytes behind packed codes that the kernels may read."""


def packed_bytes(count: int, bits: int) -> int:
    """The bytes of `count` packed numbers: a multiple of 8, with PADDING unless they have 32 bits."""
    size = -(-count * bits // 64) * 8
    return size if bits == FULL else size + PADDING


def pack(codes: Bytes, bits: int) -> Bytes:
    """codes [count], each below 2^bits -> [packed_bytes(count, bits)]."""
    codes, out = np.ascontiguousarray(codes), np.zeros(packed_bytes(len(codes), bits), np.uint8)
    kernels.pack(codes.ctypes.data, len(codes), bits, out.ctypes.data)
    return out


def unpack(packed: Bytes, count: int, bits: int) -> Bytes:
    """The inverse of `pack`: [count]."""
    out = np.empty(count, np.uint8)
    kernels.unpack(packed.ctypes.data, count, bits, out.ctypes.data)
    return out


def pairs_of(table: Floats) -> Floats:
    """table [2^bits] -> [4^bits, 2]: the numbers of each pair of codes, the first code in the low bits."""
    size = len(table)
    pairs = np.empty((size, size, 2), np.float32)
    pairs[..., 0], pairs[..., 1] = table, table[:, None]
    return pairs.reshape(-1, 2)


class Block:
    """The place of one block of numbers in an fp32 matrix: its rows and columns there, None for 0, 1, 2, …

    matrix: fp32, with adjacent columns; a view of the part to write to if `rows` or `columns` is None.
    """

    def __init__(self, matrix: Floats, rows: Places | None = None, columns: Places | None = None) -> None:
        if matrix.dtype != np.float32 or matrix.strides[1] != 4 or not matrix.flags.writeable:
            raise ValueError("a block's matrix must be writeable fp32 with adjacent columns")
        self.matrix = matrix
        self.rows = None if rows is None else np.ascontiguousarray(rows, np.int64)
        self.columns = None if columns is None else np.ascontiguousarray(columns, np.int64)
        for places, size in ((self.rows, matrix.shape[0]), (self.columns, matrix.shape[1])):
            if places is not None and len(places) and not 0 <= places.min() <= places.max() < size:
                raise ValueError("a block's rows and columns must lie in its matrix")

    @property
    def shape(self) -> tuple[int, int]:
        height, width = self.matrix.shape
        rows, columns = self.rows, self.columns
        return height if rows is None else len(rows), width if columns is None else len(columns)

    @property
    def record(self) -> list[int]:
        """The block as the kernels read it."""
        rows, columns = ((0 if p is None else p.ctypes.data) for p in (self.rows, self.columns))
        return [self.matrix.ctypes.data, self.matrix.strides[0] // 4, rows, columns, *self.shape]


class Destination:
    """The blocks of one shard, in the order in which its numbers are stored."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        self._blocks = tuple(blocks)
        self._records: Any = np.array([block.record for block in blocks], np.int64)
        self.count = sum(block.shape[0] * block.shape[1] for block in blocks)
        """The number of numbers."""

    def write(self, blob: Bytes, bits: int, pairs: Floats | None = None) -> None:
        """Decode a blob into the blocks' matrices.

        blob: packed numbers; below 32 bits also the outliers' positions, uint32 [outliers], ascending, and
        values, fp32 [outliers]. pairs: `pairs_of` the table; None with 32 bits. Raises ValueError if the
        blob has another size.
        """
        size = packed_bytes(self.count, bits)
        outliers, rest = divmod(len(blob) - size, 8)
        if outliers < 0 or rest or not blob.flags.c_contiguous or (bits == FULL and outliers):
            raise ValueError(f"a blob of {len(blob)} bytes does not hold {self.count} numbers of {bits} bits")
        if bits != FULL and (pairs is None or pairs.shape != (4**bits, 2)):
            raise ValueError(f"numbers of {bits} bits need a table of {4**bits} pairs")
        records, at = self._records.ctypes.data, blob.ctypes.data
        kernels.decode(at, bits, 0 if pairs is None else pairs.ctypes.data, records, len(self._blocks))
        if outliers:
            positions = at + size
            kernels.correct(positions, positions + 4 * outliers, outliers, records, len(self._blocks))
