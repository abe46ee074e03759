"""Immutable segments: writing one under the hash of its content, mapping and validating one."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Bytes, Keys, row_keys
from hmi_kernels.lookup.ops import RowsView, check_rows
from numpy.typing import NDArray

from plot_store.ground.errors import Damaged
from plot_store.ground.files import guarded, write_temporary
from plot_store.ground.nouns import Kind, Schema, SegmentInfo
from plot_store.segments import format as fmt
from plot_store.segments.mapping import fault_in, map_read_only, read_soon

_ALL = np.uint64((1 << 64) - 1)


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
    kind: Kind = "rows" if layout.kind == fmt.ROWS else "index"
    return Draft(path, SegmentInfo(name, kind, layout.order, layout.count, layout.file_bytes))


class MappedSegment:
    """A mapped segment. Its arrays stay valid while it lives, even after the file is unlinked."""

    def __init__(self, info: SegmentInfo, layout: fmt.Layout, raw: Bytes, inode: tuple[int, int]) -> None:
        self.info = info
        self.layout = layout
        self.inode = inode  # device and number of the file
        self.raw = raw  # uint8 [file]
        self.view = _view(layout, self.data) if layout.kind == fmt.ROWS else None

    @property
    def data(self) -> Bytes:
        """uint8 [data bytes]."""
        return self.raw[self.layout.data_at : self.layout.data_at + self.layout.data_bytes]

    @property
    def rows(self) -> Bytes:
        """uint8 [count, stride] of a rows segment."""
        assert self.view is not None
        return self.view.rows

    @property
    def keys(self) -> Keys:
        """uint64 [count, words] of a rows segment, a copy, every row checked. Reads the whole file. Raises
        Damaged."""
        read_soon(self.raw)
        self.check(self.rows)
        return row_keys(self.rows, self.layout.order)

    def check(self, rows: Bytes) -> None:
        """Raises Damaged unless each of these rows of the segment, uint8 [m, stride], is what was written.

        Rows of format 1 have no check and pass.
        """
        if not self.sound(rows).all():
            raise Damaged(
                f"rows of segment {self.info.name} are damaged: restore it with an import of an "
                "export, or build "
                "the version again; `verify` lists everything that is damaged"
            )

    def check_whole(self) -> None:
        """Raises Damaged unless every byte is as the name says."""
        if xxhash.xxh3_128_hexdigest(self.raw.data) != self.info.digest:
            raise _damaged(self.info)

    def sound(self, rows: Bytes) -> NDArray[np.bool_]:
        """Which of these rows of the segment, uint8 [m, stride], pass the check of its format, bool [m]."""
        if self.layout.format == 1:
            return np.ones(len(rows), np.bool_)
        return check_rows(rows, self.layout.n, self.layout.order, old=self.layout.format == 2)

    @property
    def slots(self) -> Keys:
        """uint64 [cap] of an index."""
        assert self.layout.kind != fmt.ROWS
        return self.data.view(np.uint64)

    @property
    def covers(self) -> Iterator[tuple[str, int]]:
        """(digest, rows) of the rows segments an index covers, oldest first."""
        end = fmt.HEADER_BYTES + fmt.COVER_BYTES * self.layout.covers
        return fmt.unpack_covers(self.raw[fmt.HEADER_BYTES : end].tobytes())

    def sums(self) -> list[int]:
        """The block checksums as written. Raises Damaged."""
        return fmt.untable(self.raw[self.layout.checks_at :].tobytes(), self.info.name)


def _view(layout: fmt.Layout, data: Bytes) -> RowsView:
    """The rows as kernels see them. Those of format 1 carry no check, so none is due."""
    words = -(-layout.count // 64)
    verified = np.full(words, _ALL, np.uint64) if layout.format == 1 else np.zeros(words, np.uint64)
    return RowsView(data.reshape(layout.count, layout.stride), verified)


def open_segment(path: Path, info: SegmentInfo, schema: Schema) -> MappedSegment:
    """Map a segment and check its size, header and checksum table against each other and the manifest.

    An index is read whole and compared with its name; rows are left to their own checks, at their first use.
    Raises Damaged, FormatTooNew, StoreIO; FileNotFoundError when the file is gone (the caller knows whether
    it may).
    """
    with guarded(f"opening segment {info.name}"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _Gone(str(path)) from None
        try:
            status = os.fstat(fd)
            layout = _check_header(fd, status.st_size, info, schema)
            if info.kind == "index":
                _check_content(fd, info)
            raw = map_read_only(fd, info.bytes)
        finally:
            os.close(fd)
    segment = MappedSegment(info, layout, raw, (status.st_dev, status.st_ino))
    if info.kind == "index":
        fault_in(raw)
    segment.sums()
    return segment


def _check_header(fd: int, size: int, info: SegmentInfo, schema: Schema) -> fmt.Layout:
    if size != info.bytes or size < fmt.HEADER_BYTES:
        raise Damaged(
            f"segment {info.name} has {size} bytes, the manifest says {info.bytes}: "
            "restore it with an import of an export, or build the version again"
        )
    layout = fmt.parse(os.pread(fd, fmt.HEADER_BYTES, 0), info.name)
    check_agreement(layout, info, schema)
    return layout


def check_agreement(layout: fmt.Layout, info: SegmentInfo, schema: Schema) -> None:
    """Raises Damaged unless a file's header says what the manifest does."""
    told = (info.kind, info.order, info.count, info.bytes, schema.n, schema.dim, schema.vocab, schema.code)
    found = (
        layout.suffix,
        layout.order,
        layout.count,
        layout.file_bytes,
        layout.n,
        layout.dim,
        layout.vocab,
        layout.dtype,
    )
    if told != found:
        raise Damaged(f"segment {info.name} differs from its manifest: export it again, or build it again")


def _check_content(fd: int, info: SegmentInfo) -> None:
    """Every byte against the name, by plain reads: a bad sector is an error here, through the mapping a
    signal."""
    whole, block, at = xxhash.xxh3_128(), memoryview(bytearray(fmt.BLOCK)), 0
    while read := os.preadv(fd, [block], at):
        whole.update(block[:read])
        at += read
    if whole.hexdigest() != info.digest:
        raise _damaged(info)


def _damaged(info: SegmentInfo) -> Damaged:
    return Damaged(f"segment {info.name} is damaged: restore it from an export or build the version again")


class _Gone(Exception):
    """The file is not there. Not an OSError, so that `guarded` leaves it alone."""


class SegmentCache:
    """The mapped segments of a store: each mapped once, for as long as a reader holds it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._live: weakref.WeakValueDictionary[str, MappedSegment] = weakref.WeakValueDictionary()

    def get(self, info: SegmentInfo, schema: Schema) -> MappedSegment | None:
        """The mapped segment, None when its file is not there. Raises Damaged, FormatTooNew, StoreIO."""
        path = self.folder / info.name
        with self._lock:
            found = self._live.get(info.name)
        if found is not None and _is_there(path, found.inode):
            check_agreement(found.layout, info, schema)
            return found
        try:
            opened = open_segment(path, info, schema)
        except _Gone:
            return None
        with self._lock:
            # Another thread may have opened it meanwhile: one mapping is kept.
            other = self._live.get(info.name)
            if other is not None and other.inode == opened.inode:
                return other
            self._live[info.name] = opened
        return opened


def _is_there(path: Path, inode: tuple[int, int]) -> bool:
    """False when a rebuild has put a sound copy in the place of the file that is mapped."""
    try:
        found = os.stat(path)
    except OSError:
        return True  # collected since: what is mapped is all there is
    return (found.st_dev, found.st_ino) == inode
