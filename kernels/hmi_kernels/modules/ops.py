"""Launches modules.cu on a `Launcher`: that of device.py or, in the tests, one that runs it on the CPU.

Takes addresses and sizes only; `hmi.execution.cuda` owns the memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

BFLOAT, FLOAT = 0, 1
"""The kinds of numbers, as in modules.cu."""
NONE, RELU, SILU = range(3)
"""The activations, as in modules.cu."""
ROWS: Final = 16
"""The rows of a block, as in modules.cu."""
RANKS: Final = 32
"""The ranks of a block of `module_down`."""
COLS: Final = 384
"""The columns of a block of `module_up`."""
THREADS: Final = {"module_down": 256, "module_up": 192, "module_copy": 256}
"""The threads of a block of each kernel."""
EVEN: Final = 4
"""Scratch memory has a multiple of this many ranks, so that its rows are read at once."""
CHANGE_WORDS: Final = 6
PIECE_WORDS: Final = 3
COPY_WORDS: Final = 3
"""The sizes of the structs of modules.cu, in fields of 8 bytes."""
COPY_BLOCKS: Final = 64
"""The blocks that share a copy: enough to ask for all that the bus carries, few beside those that compute."""
COPY_BYTES: Final = 16
"""Copies begin at multiples of this many bytes, and have a multiple of them."""
DOWN, UP, DOWN_BIAS, UP_BIAS, RANK, ACTIVATION = range(CHANGE_WORDS)
"""The fields of a change."""


class Launcher(Protocol):
    """The compiled kernels on a device."""

    def launch(self, kernel: str, blocks: int, arguments: tuple[int, ...], stream: int | None) -> None:
        """Start a kernel of `THREADS` on a stream's raw handle, without waiting for it."""
        ...


@dataclass(frozen=True)
class DeviceMatrix:
    """Rows in device memory."""

    address: int
    kind: int
    stride: int
    """Numbers from one row to the next."""
    columns: int


def pieces_of(segments: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Cut segments [begin, end) of rows into pieces for one block each: [pieces, PIECE_WORDS]."""
    begins, ends = np.array(segments, np.int64).reshape(-1, 2).T
    counts = -(-(ends - begins) // ROWS)
    of = np.arange(len(counts)).repeat(counts)
    first = begins[of] + (np.arange(len(of)) - (np.cumsum(counts) - counts)[of]) * ROWS
    return np.stack([of, first, np.minimum(first + ROWS, ends[of])], axis=1)


def add(
    launcher: Launcher,
    changes: int,
    pieces: tuple[int, int],
    x: DeviceMatrix,
    y: DeviceMatrix,
    weights: int,
    scratch: tuple[int, int],
    stream: int | None = None,
) -> None:
    """y += each segment's change of x. Enqueues two kernels and does not wait.

    changes: the address of a `Change` (modules.cu) for each segment. pieces: address and number. weights: the
    kind of all weights. scratch: the address of float [rows, ranks], and its ranks: at least the greatest
    rank of any change, and a multiple of `EVEN`. No row is in two pieces.
    """
    h, ranks = scratch
    assert ranks % EVEN == 0
    at, count = pieces
    if not count or not ranks:
        return
    chunks = -(-ranks // RANKS)
    down = changes, at, chunks, x.address, x.kind, x.stride, x.columns, weights, h, ranks
    launcher.launch("module_down", count * chunks, down, stream)
    chunks = -(-y.columns // COLS)
    up = changes, at, chunks, h, ranks, y.columns, weights, y.address, y.kind, y.stride
    launcher.launch("module_up", count * chunks, up, stream)


def copy(launcher: Launcher, copies: int, count: int, stream: int | None = None) -> None:
    """Copy from the host's pinned memory to the device's. Enqueues a kernel and does not wait.

    copies: the address, on the host or the device, of int64 [count, COPY_WORDS]: from, to, bytes. It and what
    it refers to must stay until the kernel has run.
    """
    shares = max(1, COPY_BLOCKS // count)
    launcher.launch("module_copy", count * shares, (copies, shares), stream)
