"""A plain prefetching copy of rows, the machine's limit that benchmarks compare the look-up with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.jit import carray, compiled, pointer, prefetch
from hmi_kernels.lookup.layout import Bytes

AHEAD = 4  # rows prefetched ahead of the copy; more does not help, since a row is about twenty cache lines


def gather(addresses: NDArray[np.int64], out: Bytes) -> None:
    """Copy out.shape[1] bytes from each address to a row of out, uint8 [m, bytes], in one thread.

    The addresses are not checked: that many bytes must be readable at each.
    """
    assert addresses.dtype == np.int64
    assert out.dtype == np.uint8
    assert out.flags.c_contiguous
    assert out.shape[0] == addresses.size
    _gather(addresses, out.shape[1], out)


@compiled
def _gather(addresses: Any, size: Any, out: Any) -> Any:
    m = addresses.size
    for i in range(m):
        if i + AHEAD < m:
            for at in range(0, size, 64):
                prefetch(addresses[i + AHEAD] + at)
        row = carray(pointer(addresses[i]), (size,), np.uint8)
        for j in range(size):
            out[i, j] = row[j]
