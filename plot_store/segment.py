"""Immutable segments: writing one under its content's name, and opening one mapped and validated."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from kernels.layout import Bytes, Keys, row_keys
from plot_store import format as fmt
from plot_store.errors import Damaged
from plot_store.files import guarded, write_temporary
from plot_store.mapping import map_read_only
from plot_store.nouns import Schema, SegmentInfo


@dataclass(frozen=True)
class Draft:
    """A synced file that still has its temporary name."""

    path: Path
    info: SegmentInfo


class _Sums:
    """Passes bytes through, keeping a checksum per block and one of the whole."""

    def __init__(self) -> None:
        self.whole = xxhash.xxh3_128()
        self.sums: list[int] = []
        self._block = xxhash.xxh3_64()
        self._room = fmt.BLOCK

    def pieces(self, chunk: memoryview) -> Iterator[memoryview]:
        """The chunk, cut at block boundaries."""
        while chunk.nbytes:
            piece = chunk[: self._room]
            self._block.update(piece)
            self.whole.update(piece)
            self._room -= piece.nbytes
            if self._room == 0:
                self.close()
            chunk = chunk[piece.nbytes :]
            yield piece

    def close(self) -> None:
        """End the block, if it has begun."""
        if self._room < fmt.BLOCK:
            self.sums.append(self._block.intdigest())
            self._block.reset()
            self._room = fmt.BLOCK


def write_segment(folder: Path, base: fmt.Layout, data: memoryview, covers: list[tuple[str, int]]) -> Draft:
    """Write rows or slots as a synced temporary file. Raises StoreFull or StoreIO and leaves nothing then."""
    layout = fmt.layout_of(base)
    assert data.nbytes == layout.data_bytes
    assert len(covers) == layout.covers
    state = _Sums()

    def chunks() -> Iterator[memoryview | bytes]:
        front = (fmt.header(layout) + fmt.pack_covers(covers)).ljust(layout.data_at, b"\0")
        gap = bytes(layout.checks_at - layout.data_at - layout.data_bytes)
        for part in (memoryview(front), data.cast("B"), memoryview(gap)):
            yield from state.pieces(part)
        state.close()
        tail = fmt.table(state.sums)
        state.whole.update(tail)
        yield tail

    path = write_temporary(folder, chunks())
    name = f"{state.whole.hexdigest()}.{layout.suffix}"
    info = SegmentInfo(
        name, "rows" if layout.kind == fmt.ROWS else "index", layout.order, layout.count, layout.file_bytes
    )
    return Draft(path, info)


class Segment:
    """A mapped segment. Its arrays stay valid while it lives, even after the file is unlinked."""

    def __init__(self, info: SegmentInfo, layout: fmt.Layout, raw: Bytes) -> None:
        self.info = info
        self.layout = layout
        self.raw = raw  # uint8 [file]

    @property
    def data(self) -> Bytes:
        """uint8 [data bytes]."""
        return self.raw[self.layout.data_at : self.layout.data_at + self.layout.data_bytes]

    @property
    def rows(self) -> Bytes:
        """uint8 [count, stride] of a rows segment."""
        assert self.layout.kind == fmt.ROWS
        return self.data.reshape(self.layout.count, self.layout.stride)

    @property
    def keys(self) -> Keys:
        """uint64 [count] of a rows segment: a copy."""
        return row_keys(self.rows)

    @property
    def slots(self) -> Keys:
        """uint64 [cap] of an index."""
        assert self.layout.kind == fmt.INDEX
        return self.data.view(np.uint64)

    @property
    def covers(self) -> list[tuple[str, int]]:
        """(digest, rows) of the rows segments an index covers, oldest first."""
        end = fmt.HEADER_BYTES + fmt.COVER_BYTES * self.layout.covers
        return fmt.unpack_covers(self.raw[fmt.HEADER_BYTES : end].tobytes())

    def sums(self) -> list[int]:
        """The block checksums as written. Raises Damaged."""
        return fmt.untable(self.raw[self.layout.checks_at :].tobytes(), self.info.name)


def open_segment(path: Path, info: SegmentInfo, schema: Schema) -> Segment:
    """Map a segment and check everything but its blocks: sizes, header, checksum table, agreement with the manifest.

    Raises Damaged, FormatTooNew, StoreIO; FileNotFoundError when the file is gone (the caller knows whether it may).
    """
    with guarded(f"opening segment {info.name}"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _Gone(str(path)) from None
        try:
            size = os.fstat(fd).st_size
            if size != info.bytes or size < fmt.HEADER_BYTES:
                raise Damaged(
                    f"segment {info.name} has {size} bytes, the manifest says {info.bytes}: "
                    "restore it with an import of an export, or build the version again"
                )
            raw = map_read_only(fd, size)
        finally:
            os.close(fd)
    layout = fmt.parse(raw[: fmt.HEADER_BYTES].tobytes(), info.name)
    told = (info.kind, info.order, info.count, info.bytes, schema.dim, schema.vocab, schema.code)
    found = (layout.suffix, layout.order, layout.count, layout.file_bytes, layout.dim, layout.vocab, layout.dtype)
    if told != found:
        raise Damaged(f"segment {info.name} is not what its version says: restore it from an export or build it again")
    segment = Segment(info, layout, raw)
    segment.sums()
    return segment


class _Gone(Exception):
    """The file is not there. Not an OSError, so that `guarded` leaves it alone."""


class SegmentCache:
    """The mapped segments of a store: each mapped once, for as long as a reader holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._live: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()

    def get(self, info: SegmentInfo, schema: Schema) -> Segment | None:
        """The mapped segment, None when its file is not there. Raises Damaged, FormatTooNew, StoreIO."""
        with self._lock:
            found = self._live.get(info.name)
            if found is None:
                try:
                    found = open_segment(self.folder / info.name, info, schema)
                except _Gone:
                    return None
                self._live[info.name] = found
            return found
