"""Predicting the size of entries on the disk, to choose as many as fit."""

from __future__ import annotations

from typing import Final

from hmi_kernels.lookup.layout import stride

from plot_store.ground.nouns import Schema
from plot_store.writing.writer import SEGMENT_BYTES, SLOT_BYTES

# Of a file besides rows or slots: header, padding, table of checksums; a generous bound.
FILE_BYTES: Final = 16 << 10


def entry_bytes(schema: Schema, order: int) -> int:
    """Bytes of one entry, its place in an index included."""
    return stride(schema.n, order, schema.dim, schema.code) + SLOT_BYTES


def disk_bytes(schema: Schema, order: int, entries: int) -> int:
    """The most that `entries` n-grams of one order take in a version that one build writes; 0 for none."""
    if entries <= 0:
        return 0
    each = entry_bytes(schema, order)
    return entries * each + FILE_BYTES * (2 + entries * each // (SEGMENT_BYTES // 2))


def entries_within(schema: Schema, order: int, room: int) -> int:
    """The number of n-grams of one order that are sure to fit in `room` bytes."""
    low, high = 0, max(0, room) // entry_bytes(schema, order)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if disk_bytes(schema, order, middle) <= room else (low, middle - 1)
    return low
