"""Compilation before first use: `python -m hmi_kernels.compile ENTRY…` puts an entry's machine code into
numba's cache.

numba compiles a kernel when it is first called, for the types that it is called with. That takes some ten
seconds for each entry here, which the first text of a fresh installation would wait for.
"""

from __future__ import annotations

import sys
from importlib import import_module

import numpy as np

from hmi_kernels import jit
from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import EMPTY_SLOT


def _encoder() -> None:
    import_module("hmi_kernels.encoder.ops")  # its kernels are compiled as they are defined


def _lookup() -> None:
    """A look-up in an empty index, with arrays of the types that a reader of a store passes."""
    slots = np.full(8, EMPTY_SLOT, np.uint64)
    slots.flags.writeable = False  # a store's indexes are files that are mapped for reading
    dim, dtype = 64, 0
    table = ops.level_table([ops.IndexRun(3, 0, dtype, slots, 1, False, ())], 3, dim)
    tokens, offsets = np.zeros(1, np.int32), np.array([0, 1], np.int64)
    ops.candidates(table, tokens, offsets)
    ops.lookup(
        table, tokens, offsets, 1, np.empty((1, dim), np.float32), np.empty(1, np.int8), np.empty(1, np.int16)
    )


_ENTRIES = {"lookup": _lookup, "encoder": _encoder}
ENTRIES = tuple(_ENTRIES)
"""What a server needs: look-ups of trigrams, and the encoder's layers."""


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
