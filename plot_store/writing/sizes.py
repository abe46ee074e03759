"""Bounds on the size of entries on disk, for choosing as many as fit."""

from __future__ import annotations

from typing import Final

from hmi_kernels.lookup.layout import stride

from plot_store.ground.nouns import Schema
from plot_store.writing.indexing import SLOT_BYTES
from plot_store.writing.segment_writer import SEGMENT_BYTES

# A generous bound on a file's bytes besides rows or slots: header, padding and checksum table.
FILE_BYTES: Final = 16 << 10


def entry_bytes(schema: Schema, order: int) -> int:
    """Return the bytes of one entry, including its slot in an index."""
    return stride(schema.n, order, schema.dim, schema.code, schema.window) + SLOT_BYTES


def disk_bytes(schema: Schema, order: int, entries: int) -> int:
    """Return the maximum bytes of `entries` n-grams of one order in a version that one build writes."""
    if entries <= 0:
        return 0
    each = entry_bytes(schema, order)
    return entries * each + FILE_BYTES * (2 + entries * each // (SEGMENT_BYTES // 2))


def entries_within(schema: Schema, order: int, room: int) -> int:
    """Return the largest number of n-grams of one order whose `disk_bytes` are at most `room`."""
    low, high = 0, max(0, room) // entry_bytes(schema, order)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if disk_bytes(schema, order, middle) <= room else (low, middle - 1)
    return low
