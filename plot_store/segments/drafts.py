"""Writing segments: the files of a build before they have their names.

The segments that a build writes together lie in one file, so a small domain costs one file, one sync and one
mapping. A segment of `OWN_BYTES` or more has a file of its own. Merges never rewrite such a segment, so in a
shared file it would keep the bytes of dead segments for good.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import xxhash

from plot_store.ground.files import Buffer, TemporaryFile
from plot_store.ground.nouns import Kind, SegmentInfo
from plot_store.segments import format as fmt

OWN_BYTES: Final = 32 << 20


@dataclass(frozen=True)
class Draft:
    """A written and synced file of segments that still has its temporary name."""

    path: Path
    pieces: tuple[tuple[SegmentInfo, int], ...]  # each segment, and where it begins in the file

    @property
    def file(self) -> str:
        """The name that the file will get: that of its only segment, or a hash of its segments' names."""
        names = [info.name for info, _ in self.pieces]
        return names[0] if len(names) == 1 else f"{xxhash.xxh3_128_hexdigest(''.join(names).encode())}.pack"


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

    def table(self) -> bytes:
        """Finish the last block, and return the table of block checksums, which ends a segment."""
        self.close()
        tail = fmt.table(self.sums)
        self.whole.update(tail)
        return tail


class Drafts:
    """Writes segments into as few files as `OWN_BYTES` allows.

    The caller ends it by `finish` or `discard`. Every method raises StoreFull, StoreIO.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: list[TemporaryFile] = []
        self._shared: TemporaryFile | None = None  # the file of the small segments
        self._pieces: list[tuple[SegmentInfo, int]] = []  # of the shared file
        self._done: list[Draft] = []

    def add(self, base: fmt.SegmentHeader, data: memoryview, covers: list[tuple[str, int]]) -> SegmentInfo:
        """Write rows or index slots.

        base: the independent fields of the header. covers: (digest, rows) of the segments an index covers.
        """
        layout = fmt.layout_of(base)
        assert data.nbytes == layout.data_bytes
        assert len(covers) == layout.covers
        file = self._file(layout.file_bytes)
        at, sums = file.size, _Sums()
        front = (fmt.header(layout) + fmt.pack_covers(covers)).ljust(layout.data_at, b"\0")
        gap = bytes(layout.checks_at - layout.data_at - layout.data_bytes)
        for part in (memoryview(front), data.cast("B"), memoryview(gap)):
            for piece in sums.pieces(part):
                file.write(piece)
        file.write(sums.table())
        kind: Kind = "rows" if layout.kind == fmt.ROWS else "index"
        name = f"{sums.whole.hexdigest()}.{layout.suffix}"
        return self._keep(file, at, SegmentInfo(name, kind, layout.order, layout.count, layout.file_bytes))

    def copy(self, info: SegmentInfo, chunks: Iterable[Buffer]) -> None:
        """Write a segment that has a name already. The caller compares the bytes with the name."""
        file = self._file(info.bytes)
        at = file.size
        for chunk in chunks:
            file.write(chunk)
        self._keep(file, at, info)

    def finish(self) -> list[Draft]:
        """Make everything durable. Returns the files."""
        if self._shared is not None:
            self._done.append(Draft(self._shared.sync(), tuple(self._pieces)))
            self._shared = None
        return self._done

    def touch(self) -> None:
        """Make the files look young, so that no collection takes them for what a crash left."""
        for file in self._files:
            file.touch()

    def discard(self) -> None:
        """Remove the files that were not renamed."""
        for file in self._files:
            file.discard()

    def _file(self, size: int) -> TemporaryFile:
        """Return the file for a segment of this many bytes, at whose end it begins."""
        if self._shared is not None and size < OWN_BYTES:
            self._shared.write(bytes(-self._shared.size % fmt.PAGE))
            return self._shared
        file = TemporaryFile(self._folder)
        self._files.append(file)
        if size < OWN_BYTES:
            self._shared = file
        return file

    def _keep(self, file: TemporaryFile, at: int, info: SegmentInfo) -> SegmentInfo:
        if file is self._shared:
            self._pieces.append((info, at))
        else:
            self._done.append(Draft(file.sync(), ((info, 0),)))
        return info
