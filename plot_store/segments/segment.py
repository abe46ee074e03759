"""Immutable segments: files named by the hash of their content, written, mapped and validated."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Bytes, Keys, row_keys
from hmi_kernels.lookup.ops import RowsView, check_rows, index_filter
from numpy.typing import NDArray

from plot_store.ground.errors import Damaged
from plot_store.ground.files import convert_os_errors, write_temporary
from plot_store.ground.nouns import Kind, Schema, SegmentInfo
from plot_store.segments import format as fmt
from plot_store.segments.mapping import fault_in, map_read_only, read_soon

_ALL = np.uint64((1 << 64) - 1)


@dataclass(frozen=True)
class Draft:
    """A written and synced segment that still has its temporary name."""

    path: Path
    info: SegmentInfo


class _Sums:
    """Checksums of a byte stream: one for each block, and one of the whole."""

    def __init__(self) -> None:
        self.whole = xxhash.xxh3_128()
        self.sums: list[int] = []
        self._block = xxhash.xxh3_64()
        self._room = fmt.BLOCK

    def pieces(self, chunk: memoryview) -> Iterator[memoryview]:
        """Add a chunk. Yields it again, cut at block boundaries."""
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
        """Finish the last block, unless it is empty."""
        if self._room < fmt.BLOCK:
            self.sums.append(self._block.intdigest())
            self._block.reset()
            self._room = fmt.BLOCK


def write_segment(
    folder: Path, base: fmt.SegmentHeader, data: memoryview, covers: list[tuple[str, int]]
) -> Draft:
    """Write rows or index slots as a synced temporary file.

    base: the independent fields of the header. covers: (digest, rows) of the segments an index covers. Raises
    StoreFull, StoreIO; no file is left then.
    """
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
    """A segment file mapped into memory. Its arrays stay valid after the file is unlinked."""

    def __init__(
        self, path: Path, info: SegmentInfo, layout: fmt.SegmentHeader, raw: Bytes, inode: tuple[int, int]
    ) -> None:
        self.path = path
        self.info = info
        self.layout = layout
        self._cut = False  # its file has become shorter, and may have been replaced since
        self.inode = inode  # (device, inode number) of the file
        self.raw = raw  # uint8 [file]
        self.view = _view(layout, self.data) if layout.kind == fmt.ROWS else None

    @property
    def data(self) -> Bytes:
        """The rows or slots as uint8 [data bytes]."""
        return self.raw[self.layout.data_at : self.layout.data_at + self.layout.data_bytes]

    @property
    def rows(self) -> Bytes:
        """The rows of a rows segment: uint8 [count, stride]."""
        assert self.view is not None
        return self.view.rows

    @property
    def keys(self) -> Keys:
        """The keys of a rows segment: uint64 [count, words], a copy.

        Reads the whole file and checks every row. Raises Damaged.
        """
        read_soon(self.raw)
        self.check(self.rows)
        return row_keys(self.rows, self.layout.order)

    def check(self, rows: Bytes) -> None:
        """Raises Damaged unless each of these rows of the segment, uint8 [m, stride], passes its check.

        Rows of format 1 have no check and pass.
        """
        if not self.sound(rows).all():
            raise Damaged(
                f"rows of segment {self.info.name} are damaged: restore it with an import of an export, or "
                "build the version again; `verify` lists everything that is damaged"
            )

    def check_size(self) -> None:
        """Raises Damaged if the file has been cut since it was mapped.

        The system kills a process that reads a mapping beyond the end of its file. A file that was collected
        or replaced keeps its bytes as long as it is mapped.
        """
        try:
            found = os.stat(self.path)
        except OSError:  # collected
            found = None
        if found is not None and found.st_size < self.info.bytes:
            self._cut |= (found.st_dev, found.st_ino) == self.inode
        if self._cut:
            raise Damaged(
                f"segment {self.info.name} has been cut to fewer than {self.info.bytes} bytes: restore it "
                "with an import of an export, or build the version again"
            )

    def check_whole(self) -> None:
        """Raises Damaged unless the whole file matches the hash in its name."""
        if xxhash.xxh3_128_hexdigest(self.raw.data) != self.info.digest:
            raise _damaged(self.info)

    def sound(self, rows: Bytes) -> NDArray[np.bool_]:
        """Return which of these rows of the segment, uint8 [m, stride], pass their check: bool [m]."""
        layout = self.layout
        if layout.format == 1:
            return np.ones(len(rows), np.bool_)
        return check_rows(rows, layout.n, layout.order, layout.window, old=layout.format == 2)

    @property
    def slots(self) -> Keys:
        """The slots of an index: uint64 [cap]."""
        assert self.layout.kind != fmt.ROWS
        return self.data.view(np.uint64)

    @cached_property
    def filter(self) -> Keys:
        """The filter of an index, uint64 [words, 1]. All chains that end in this index share it."""
        return index_filter(self.slots)

    @property
    def covers(self) -> Iterator[tuple[str, int]]:
        """The (digest, rows) of the rows segments that an index covers, oldest first."""
        end = fmt.HEADER_BYTES + fmt.COVER_BYTES * self.layout.covers
        return fmt.unpack_covers(self.raw[fmt.HEADER_BYTES : end].tobytes())

    @property
    def covered(self) -> Iterator[str]:
        """The names of the rows segments that an index covers, oldest first."""
        return (f"{digest}.rows" for digest, _ in self.covers)

    def check_front(self) -> None:
        """Raises Damaged unless the blocks before the data match their checksums."""
        for start, expected in zip(range(0, self.layout.data_at, fmt.BLOCK), self.sums(), strict=False):
            block = self.raw[start : min(start + fmt.BLOCK, self.layout.checks_at)]
            if xxhash.xxh3_64_intdigest(block.data) != expected:
                raise _damaged(self.info)

    def sums(self) -> list[int]:
        """Return the block checksums stored in the file. Raises Damaged."""
        return fmt.decode_checksums(self.raw[self.layout.checks_at :].tobytes(), self.info.name)


def _view(layout: fmt.SegmentHeader, data: Bytes) -> RowsView:
    """Return the kernels' view of the rows. Rows of format 1 have no check, so all count as verified."""
    words = -(-layout.count // 64)
    verified = np.full(words, _ALL, np.uint64) if layout.format == 1 else np.zeros(words, np.uint64)
    return RowsView(data.reshape(layout.count, layout.stride), verified)


def open_segment(path: Path, info: SegmentInfo, schema: Schema, whole: bool = True) -> MappedSegment:
    """Map a segment, after checking its size, header and checksum table against the manifest.

    An index is also read whole and compared with the hash in its name; or, if it is not wanted whole, what
    comes before its slots with their checksums. Rows are checked at their first use. Raises Damaged,
    FormatTooNew, StoreIO, and _Gone if there is no such file.
    """
    with convert_os_errors(f"opening segment {info.name}"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _Gone(str(path)) from None
        try:
            status = os.fstat(fd)
            layout = _check_header(fd, status.st_size, info, schema)
            if info.kind == "index" and whole:
                _check_content(fd, info)
            raw = map_read_only(fd, info.bytes)
        finally:
            os.close(fd)
    segment = MappedSegment(path, info, layout, raw, (status.st_dev, status.st_ino))
    if not whole:
        segment.check_front()
    elif info.kind == "index":
        fault_in(raw)
    segment.sums()
    return segment


def _check_header(fd: int, size: int, info: SegmentInfo, schema: Schema) -> fmt.SegmentHeader:
    if size != info.bytes or size < fmt.HEADER_BYTES:
        raise Damaged(
            f"segment {info.name} has {size} bytes, the manifest says {info.bytes}: restore it with an "
            "import of an export, or build the version again"
        )
    layout = fmt.parse(os.pread(fd, fmt.HEADER_BYTES, 0), info.name)
    check_agreement(layout, info, schema)
    return layout


def check_agreement(layout: fmt.SegmentHeader, info: SegmentInfo, schema: Schema) -> None:
    """Raises Damaged unless a file's header agrees with the manifest."""
    expected = (info.kind, info.order, info.count, info.bytes, *schema.shape, schema.code)
    found = (
        layout.suffix,
        layout.order,
        layout.count,
        layout.file_bytes,
        layout.n,
        layout.dim,
        layout.vocab,
        layout.window,
        layout.dtype,
    )
    if expected != found:
        raise Damaged(f"segment {info.name} differs from its manifest: export it again, or build it again")


def _check_content(fd: int, info: SegmentInfo) -> None:
    """Compare the whole file with the hash in its name. Raises Damaged, OSError.

    The file is read, not mapped: a bad sector then gives an error instead of a fatal signal.
    """
    whole, block, at = xxhash.xxh3_128(), memoryview(bytearray(fmt.BLOCK)), 0
    while read := os.preadv(fd, [block], at):
        whole.update(block[:read])
        at += read
    if whole.hexdigest() != info.digest:
        raise _damaged(info)


def _damaged(info: SegmentInfo) -> Damaged:
    return Damaged(f"segment {info.name} is damaged: restore it from an export or build the version again")


class _Gone(Exception):
    """The file does not exist. Not an OSError, so that `convert_os_errors` does not convert it."""


class SegmentCache:
    """The mapped segments of a store, each mapped once while a reader holds it. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._live: weakref.WeakValueDictionary[str, MappedSegment] = weakref.WeakValueDictionary()

    def get(self, info: SegmentInfo, schema: Schema, whole: bool = True) -> MappedSegment | None:
        """Return the mapped segment; None if its file is missing. whole: see `open_segment`.

        Raises Damaged, FormatTooNew, StoreIO.
        """
        path = self.folder / info.name
        with self._lock:
            found = self._live.get(info.name)
        if found is not None and _is_current(path, found.inode):
            found.check_size()
            check_agreement(found.layout, info, schema)
            return found
        try:
            opened = open_segment(path, info, schema, whole)
        except _Gone:
            return None
        if not whole:
            return opened
        with self._lock:
            # Another thread may have opened the segment meanwhile: keep one mapping.
            other = self._live.get(info.name)
            if other is not None and other.inode == opened.inode:
                return other
            self._live[info.name] = opened
        return opened


def _is_current(path: Path, inode: tuple[int, int]) -> bool:
    """False if a rebuild or import has replaced the mapped file with a new copy."""
    try:
        found = os.stat(path)
    except OSError:
        return True  # the file was collected since, so the mapping is the only copy
    return (found.st_dev, found.st_ino) == inode
