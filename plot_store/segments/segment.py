"""Immutable segments, named by the hash of their content: mapped and validated.

A file holds one segment, or several, each at a multiple of 4096 bytes. It is mapped once, as a whole, however
many of its segments are open: a process may have only some 65,000 mappings.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Bytes, Keys, row_keys
from hmi_kernels.lookup.ops import RowsView, check_rows, index_filter
from numpy.typing import NDArray

from plot_store.ground.errors import Damaged
from plot_store.ground.files import convert_os_errors
from plot_store.ground.nouns import Place, Schema, SegmentInfo
from plot_store.segments import format as fmt
from plot_store.segments.mapping import fault_in, map_read_only, read_soon

_ALL = np.uint64((1 << 64) - 1)
MapFile = Callable[[Path, int], "MappedFile"]  # (path, descriptor)


@dataclass(frozen=True, eq=False)
class MappedFile:
    """A whole file mapped into memory. Its array stays valid after the file is unlinked."""

    path: Path
    inode: tuple[int, int]  # (device, inode number)
    raw: Bytes  # uint8 [file]

    @property
    def is_current(self) -> bool:
        """False if a rebuild or import has replaced the file with a new copy."""
        try:
            found = os.stat(self.path)
        except OSError:
            return True  # the file was collected since, so the mapping is the only copy
        return (found.st_dev, found.st_ino) == self.inode


class MappedSegment:
    """A segment of a mapped file."""

    def __init__(self, file: MappedFile, at: int, info: SegmentInfo, layout: fmt.SegmentHeader) -> None:
        self.file = file
        self.at = at  # bytes before it in the file
        self.info = info
        self.layout = layout
        self._cut = False  # its file has become shorter, and may have been replaced since
        self.raw = file.raw[at : at + info.bytes]
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
            found = os.stat(self.file.path)
        except OSError:  # collected
            found = None
        if found is not None and found.st_size < self.at + self.info.bytes:
            self._cut |= (found.st_dev, found.st_ino) == self.file.inode
        if self._cut:
            raise Damaged(
                f"segment {self.info.name} has been cut to fewer than {self.info.bytes} bytes: restore it "
                "with an import of an export, or build the version again"
            )

    def check_whole(self) -> None:
        """Raises Damaged unless the whole segment matches the hash in its name."""
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


def open_segment(
    path: Path,
    info: SegmentInfo,
    schema: Schema,
    at: int = 0,
    whole: bool = True,
    map_file: MapFile | None = None,
) -> MappedSegment:
    """Map a segment, after checking its size, header and checksum table against the manifest.

    whole: True reads an index whole and compares it with the hash in its name. False compares only the blocks
    before its slots with their checksums. Rows are checked at their first use. at: bytes before the segment
    in the file. map_file: returns the mapping; by default a new one. Raises Damaged, FormatTooNew, StoreIO,
    and _Gone if there is no such file.
    """
    with convert_os_errors(f"opening segment {info.name}"):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            raise _Gone(str(path)) from None
        try:
            check_size(path, os.fstat(fd).st_size, info, at)
            layout = fmt.parse(os.pread(fd, fmt.HEADER_BYTES, at), info.name)
            check_agreement(layout, info, schema)
            if info.kind == "index" and whole:
                _check_content(fd, info, at)
            file = (map_file or map_whole)(path, fd)
        finally:
            os.close(fd)
    segment = MappedSegment(file, at, info, layout)
    if not whole:
        segment.check_front()
    elif info.kind == "index":
        fault_in(segment.raw)
    segment.sums()
    return segment


def map_whole(path: Path, fd: int) -> MappedFile:
    """Map an open file. Raises OSError, StoreIO (too many mappings)."""
    status = os.fstat(fd)
    return MappedFile(path, (status.st_dev, status.st_ino), map_read_only(fd, status.st_size))


def check_size(path: Path, size: int, info: SegmentInfo, at: int) -> None:
    """Raises Damaged unless a file of `size` bytes can hold the segment there.

    A file that has the segment's own name holds nothing else.
    """
    whole = size == info.bytes if path.name == info.name else size >= at + info.bytes
    if not whole or info.bytes < fmt.HEADER_BYTES:
        raise Damaged(
            f"the file {path.name} of segment {info.name} has {size} bytes, the manifest says "
            f"{at + info.bytes}: restore it with an import of an export, or build the version again"
        )


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


def _check_content(fd: int, info: SegmentInfo, at: int) -> None:
    """Compare a whole segment with the hash in its name. Raises Damaged, OSError.

    The file is read, not mapped: a bad sector then gives an error instead of a fatal signal.
    """
    whole, block, end = xxhash.xxh3_128(), memoryview(bytearray(fmt.BLOCK)), at + info.bytes
    while read := os.preadv(fd, [block[: end - at]], at):
        whole.update(block[:read])
        at += read
    if whole.hexdigest() != info.digest:
        raise _damaged(info)


def _damaged(info: SegmentInfo) -> Damaged:
    return Damaged(f"segment {info.name} is damaged: restore it from an export or build the version again")


class _Gone(Exception):
    """The file does not exist. Not an OSError, so that `convert_os_errors` does not convert it."""


class SegmentCache:
    """The mapped files and segments of a store, each once while a reader holds it. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._segments: weakref.WeakValueDictionary[str, MappedSegment] = weakref.WeakValueDictionary()
        self._files: weakref.WeakValueDictionary[str, MappedFile] = weakref.WeakValueDictionary()

    def get(
        self, info: SegmentInfo, schema: Schema, place: Place, whole: bool = True
    ) -> MappedSegment | None:
        """Return the mapped segment; None if its file is missing. whole: see `open_segment`.

        Raises Damaged, FormatTooNew, StoreIO.
        """
        path = self._folder / place.file
        with self._lock:
            found = self._segments.get(info.name)
        if found is not None and (found.file.path, found.at) == (path, place.at) and found.file.is_current:
            return self.mapped(info, schema)
        try:
            opened = open_segment(path, info, schema, place.at, whole, self._map)
        except _Gone:
            return None
        if not whole:
            return opened
        with self._lock:
            # Another thread may have opened the segment meanwhile: keep one, for its checked rows.
            other = self._segments.get(info.name)
            if other is not None and (other.file, other.at) == (opened.file, opened.at):
                return other
            self._segments[info.name] = opened
        return opened

    def mapped(self, info: SegmentInfo, schema: Schema) -> MappedSegment | None:
        """Return the segment if it is mapped, wherever it lay. Raises Damaged."""
        with self._lock:
            found = self._segments.get(info.name)
        if found is not None:
            found.check_size()
            check_agreement(found.layout, info, schema)
        return found

    def _map(self, path: Path, fd: int) -> MappedFile:
        """Map an open file, unless it is mapped already. Raises OSError, StoreIO."""
        status = os.fstat(fd)
        with self._lock:
            found = self._files.get(path.name)
            # A file that was cut and became whole again is mapped anew.
            if (
                found is None
                or found.inode != (status.st_dev, status.st_ino)
                or found.raw.size < status.st_size
            ):
                found = self._files[path.name] = map_whole(path, fd)
        return found
