"""The layouts that the kernels read: panels of matrices, low-rank changes, arrays in one memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16, INTEGERS, LENGTH, SHORT
from hmi_kernels.encoder import change as of_change
from hmi_kernels.encoder import product as of_matrix
from hmi_kernels.encoder.isa import able
from hmi_kernels.encoder.tile import STRIDE, around

Record = NDArray[np.int64]
Memory = NDArray[np.uint8]
LINE = 64
"""Bytes of a cache line, and of a vector of AVX-512, which is read slowly across two lines."""


class Places:
    """Collects arrays in the order of their use; `placed` copies them into one piece of memory."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, NDArray[Any]]] = []
        self.size = 0
        """Bytes so far: the next array's place."""
        self._pointers: list[tuple[Record, int, int]] = []

    def add(self, array: NDArray[Any]) -> int:
        """Return the array's place: bytes from the beginning."""
        self._arrays.append((self.size, array))
        return self._reserve(array.nbytes)

    def point(self, record: Record, field: int, array: NDArray[Any], beyond: int = 0) -> None:
        """Add an array. Its address, plus `beyond` bytes, becomes this field of a record."""
        self._pointers.append((record, field, self.add(array) + beyond))

    def point_to_zeros(self, record: Record, field: int, size: int) -> None:
        """Add this many bytes of zeros. Their address becomes this field of a record."""
        self._pointers.append((record, field, self._reserve(size)))

    def mark(self, record: Record, field: int, place: int) -> None:
        """Make the address of a place this field of a record."""
        self._pointers.append((record, field, place))

    def _reserve(self, size: int) -> int:
        begin = self.size
        self.size += -(-size // LINE) * LINE
        return begin

    def placed(self, memory: Memory | None = None) -> tuple[Memory, int]:
        """Return the memory, which the caller keeps, and the address of its beginning, a multiple of LINE.

        memory: zeros, `size` + LINE bytes at least. None: made here.
        """
        if memory is None:
            memory = np.zeros(self.size + LINE, np.uint8)
        begin = -memory.ctypes.data % LINE
        address = memory.ctypes.data + begin
        for record, field, place in self._pointers:
            record[field] = address + place
        for place, array in self._arrays:
            there = memory[begin + place : begin + place + array.nbytes].view(array.dtype)
            there.reshape(array.shape)[...] = array
        return memory, address


Floats = NDArray[np.float32]
Array = NDArray[Any]
PER_WORD = {FLOAT: 1, BFLOAT: 2, INT8: 4, INT16: 2}
"""Numbers in a 32-bit word."""
COLUMNS = 64
"""Of a panel."""


def rounded(x: Floats) -> NDArray[np.uint16]:
    """The bits of x as bfloat16, to the nearest and half to even; x has no NaN."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


@dataclass(frozen=True)
class Matrix:
    """One matrix [out, in] and its bias in panels of 64 output columns."""

    panels: Array
    """[out / 64, words, 64, numbers of a word]."""
    bias: Floats
    """[out]."""
    shared: NDArray[np.int32]
    """[out / 64, 2, 64] for integers: bits of the columns' float32 scales; 128 times their sums, in int8."""
    words: int
    """32-bit words of a row."""


def pack_matrix(kind: int, weight: Floats, bias: Floats) -> Matrix:
    """weight [out, in], out a multiple of 64 and in of 4. Of integers, each output has a scale of its own.

    Raises ValueError if this processor cannot multiply such numbers: the kernels would end the process.
    """
    if not able(kind):
        raise ValueError("this processor has no instructions for the layer's kind of numbers")
    shared = np.zeros((0, 2, COLUMNS), np.int32)
    numbers: Array
    if kind in INTEGERS:
        scale = np.maximum(np.abs(weight).max(1), 1e-30) / (127 if kind == INT8 else SHORT)
        if kind == INT16:
            lengths = np.linalg.norm(weight.astype(np.float64), axis=1)
            scale = np.maximum(scale, lengths / (LENGTH - 0.5 * weight.shape[1] ** 0.5))
        numbers = np.rint(weight / scale[:, None]).astype(np.int8 if kind == INT8 else np.int16)
        offset = (128 if kind == INT8 else 0) * numbers.astype(np.int32).sum(1)
        both = np.stack([scale.astype(np.float32).view(np.int32), offset.astype(np.int32)])
        shared = np.ascontiguousarray(both.reshape(2, -1, COLUMNS).swapaxes(0, 1))
    else:
        numbers = rounded(weight) if kind == BFLOAT else np.asarray(weight, np.float32)
    return Matrix(
        _panels(numbers, PER_WORD[kind]),
        np.array(bias, np.float32),
        shared,
        weight.shape[1] // PER_WORD[kind],
    )


def _panels(numbers: Array, per_word: int) -> Array:
    """[out, in] -> [out / 64, words, 64, numbers of a word]."""
    size_out, size_in = numbers.shape
    cut = numbers.reshape(size_out // COLUMNS, COLUMNS, size_in // per_word, per_word)
    return np.ascontiguousarray(cut.swapaxes(1, 2))


@dataclass(frozen=True)
class LowRank:
    """activation(x · downᵀ + down_bias) · upᵀ + up_bias; a LoRA has neither biases nor an activation."""

    down: Floats
    """[rank, in]."""
    up: Floats
    """[out, rank], with the scale of a LoRA multiplied in."""
    down_bias: Floats | None = None
    up_bias: Floats | None = None
    activation: int = 0


@dataclass(frozen=True)
class MatrixChange:
    """Low-rank changes of the equal parts of one matrix, in the kernels' layout."""

    down: Array
    """[groups, words of a row / n, columns of a group, n words, numbers of a word]; the parts' columns follow
    one another, zeros follow them. A group has 2, 4 or 8 columns, and n is 16 divided by them; only groups
    of 8 may be several."""
    down_bias: Floats
    """[columns, up to a multiple of 16]; empty for a LoRA, as the bias of `up`."""
    activation: int
    up: Matrix

    @property
    def columns(self) -> int:
        return int(self.down.shape[0] * self.down.shape[2])

    @property
    def width(self) -> int:
        """Numbers from one low-rank row to the next: whole vectors of 16."""
        return -(-self.columns // 16) * 16


def pack_change(kind: int, parts: Sequence[LowRank | None]) -> MatrixChange:
    """parts: q, k and v of a joint matrix, or one. Ranks may differ, and a part may be missing."""
    kind = around(kind)
    per_word = PER_WORD[kind]
    given = [part for part in parts if part is not None]
    (size_in,), (size_out,) = {p.down.shape[1] for p in given}, {p.up.shape[0] for p in given}
    most = max(p.down.shape[0] for p in given)
    rank = -(-most // per_word) * per_word
    group = min(8, 1 << (max(2, rank * len(parts)) - 1).bit_length())
    columns = -(-rank * len(parts) // group) * group
    down, up = np.zeros((columns, size_in), np.float32), np.zeros((len(parts), size_out, rank), np.float32)
    bias = up_bias = np.zeros(0, np.float32)
    for i, part in enumerate(parts):
        if part is None:
            continue
        own = part.down.shape[0]
        down[i * rank : i * rank + own], up[i, :, :own] = part.down, part.up
        if part.down_bias is not None and part.up_bias is not None:
            assert len(parts) == 1
            bias, up_bias = np.pad(part.down_bias, (0, -(-columns // 16) * 16 - own)), part.up_bias
    numbers: Array = rounded(down) if kind == BFLOAT else down
    cut = numbers.reshape(columns // group, group, -1, 16 // group, per_word)
    panel = np.ascontiguousarray(cut.swapaxes(1, 2))
    return MatrixChange(panel, bias, given[0].activation, pack_matrix(kind, up.reshape(-1, rank), up_bias))


def put_matrix(record: Record, at: int, matrix: Matrix, places: Places, before: int = 0) -> None:
    """Make the record's fields from `at` on this matrix. before: panels that are missing. The addresses are
    those of a matrix that begins with them."""
    places.point(record, at + of_matrix.PANELS, matrix.panels, -before * matrix.words * STRIDE)
    places.point(record, at + of_matrix.BIAS, matrix.bias, -before * STRIDE)
    places.point(record, at + of_matrix.SHARED, matrix.shared)
    record[at + of_matrix.WORDS] = matrix.words


def put_change(record: Record, slot: int, change: MatrixChange, places: Places, before: int = 0) -> None:
    """Make the record's fields from `slot` on this change. before: equal parts that lie before the change's
    one part, and do not change."""
    places.point(record, slot + of_change.DOWN, change.down)
    record[slot + of_change.COLUMNS] = change.columns
    places.point(record, slot + of_change.DOWN_BIAS, change.down_bias)
    record[slot + of_change.ACTIVATION] = change.activation
    record[slot + of_change.MISSING] = before
    put_matrix(record, slot + of_change.MATRIX, change.up, places, before * len(change.up.panels))
