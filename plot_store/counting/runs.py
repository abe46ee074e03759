"""Runs: temporary files of ascending n-gram keys with their counts, and the merge of many runs.

A file begins with magic, u16 format and u16 words. Blocks follow: u32 entries, u32 packed bytes, u64 xxh3-64
of those bytes, and one zstd frame. The frame holds the block's keys (each less its predecessor) and counts as
byte planes: all lowest bytes, then all second lowest, and so on, since most of the upper bytes are zero. An
empty block ends the file, so truncation is detected.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

import numpy as np
import xxhash
import zstandard
from numpy.typing import NDArray

from plot_store.counting.key_counts import KeyCounts, combined, empty, up_to
from plot_store.ground.errors import Damaged
from plot_store.ground.files import convert_os_errors, sync_file

MAGIC: Final = b"PLOTRUN\0" + struct.pack("<H", 1)
SUFFIX: Final = ".run"
BLOCK: Final = struct.Struct("<IIQ")
BLOCK_ENTRIES: Final = 1 << 15
_LEVEL: Final = 1

Merged = Callable[[int], None]  # called with the number of input entries just merged


class RunWriter:
    """Writes one run. Raises StoreFull, StoreIO. Not thread-safe."""

    def __init__(self, path: Path, words: int, block: int = BLOCK_ENTRIES) -> None:
        self.path, self.entries = path, 0
        self._words, self._block = words, min(block, BLOCK_ENTRIES)
        self._buffered: list[KeyCounts] = []
        self._held = 0
        self._packer = zstandard.ZstdCompressor(level=_LEVEL)
        with convert_os_errors(f"writing {path.name}"):
            self._file: BinaryIO = path.open("wb")
        self._write(MAGIC + struct.pack("<H", words))

    def add(self, part: KeyCounts) -> None:
        """Append entries that sort after all before."""
        if len(part):
            self._buffered.append(part)
            self._held += len(part)
            if self._held >= self._block:
                self._drain(whole=False)

    def close(self, *, durable: bool = False) -> Path:
        """Finish the file; `durable` also syncs it. Returns its path."""
        self._drain(whole=True)
        self._write(BLOCK.pack(0, 0, 0))
        with convert_os_errors(f"writing {self.path.name}"), self._file as file:
            file.flush()
            if durable:
                sync_file(file.fileno())
        return self.path

    def _drain(self, *, whole: bool) -> None:
        """Write the buffered entries in full blocks; with `whole`, also the incomplete last one."""
        buffered = self._buffered or [empty(self._words)]
        keys = np.concatenate([part.keys for part in buffered])
        counts = np.concatenate([part.counts for part in buffered])
        end = len(keys) if whole else len(keys) - len(keys) % self._block
        for at in range(0, end, self._block):
            to = min(at + self._block, end)
            self._put(KeyCounts(keys[at:to], counts[at:to]))
        rest = KeyCounts(keys[end:].copy(), counts[end:].copy())
        self._buffered, self._held = ([rest], len(rest)) if len(rest) else ([], 0)

    def _put(self, part: KeyCounts) -> None:
        packed = self._packer.compress(_planes(part))
        self._write(BLOCK.pack(len(part), len(packed), xxhash.xxh3_64_intdigest(packed)))
        self._write(packed)
        self.entries += len(part)

    def _write(self, data: bytes) -> None:
        with convert_os_errors(f"writing {self.path.name}"):
            self._file.write(data)


def read_run(path: Path, words: int) -> Iterator[KeyCounts]:
    """Yield the run's entries, block by block. Raises Damaged, StoreIO."""
    unpacker = zstandard.ZstdDecompressor()
    with convert_os_errors(f"reading {path.name}"), path.open("rb") as file:
        if file.read(len(MAGIC) + 2) != MAGIC + struct.pack("<H", words):
            raise _damaged(path)
        while True:
            head = file.read(BLOCK.size)
            if len(head) < BLOCK.size:
                raise _damaged(path)
            entries, size, check = BLOCK.unpack(head)
            if (entries, size, check) == (0, 0, 0):
                return
            packed = file.read(size) if size <= 32 * BLOCK_ENTRIES else b""
            if entries > BLOCK_ENTRIES or xxhash.xxh3_64_intdigest(packed) != check:
                raise _damaged(path)
            try:
                planes = unpacker.decompress(packed, max_output_size=entries * 8 * (words + 1))
                part = _from_planes(planes, entries, words)
            except (zstandard.ZstdError, ValueError) as error:
                raise _damaged(path) from error
            yield part


def merge(paths: Sequence[Path], words: int, merged: Merged = lambda _: None) -> Iterator[KeyCounts]:
    """Yield the sum of several runs, ascending, in chunks. Memory holds about one block of each run.

    Raises Damaged, StoreIO.
    """
    sources = [_Source(read_run(path, words)) for path in paths]
    while sources := [source for source in sources if source.fill()]:
        # No later block of any run has a key up to the smallest of the last keys.
        bound = min(source.last for source in sources)
        parts = [part for part in (source.take(bound) for source in sources) if len(part)]
        yield combined(parts)
        merged(sum(map(len, parts)))


class _Source:
    """The rest of the current block of a run."""

    def __init__(self, blocks: Iterator[KeyCounts]) -> None:
        self._blocks = blocks
        self._left: KeyCounts | None = None

    def fill(self) -> bool:
        """Read the next block if the current one is used up. Returns False at the end of the run."""
        while self._left is None or not len(self._left):
            self._left = next(self._blocks, None)
            if self._left is None:
                return False
        return True

    @property
    def last(self) -> tuple[int, ...]:
        """The last key of the block."""
        assert self._left is not None
        return tuple(map(int, self._left.keys[-1]))

    def take(self, bound: tuple[int, ...]) -> KeyCounts:
        """Remove and return the entries up to the key `bound`."""
        assert self._left is not None
        keys, counts = self._left.keys, self._left.counts
        end = up_to(keys, bound)
        self._left = KeyCounts(keys[end:], counts[end:])
        return KeyCounts(keys[:end], counts[:end])


def _planes(part: KeyCounts) -> bytes:
    """Encode entries as byte planes. Differences wrap around modulo 2⁶⁴, so any keys can be decoded."""
    differences = part.keys.copy()
    differences[1:] -= part.keys[:-1]
    table = np.concatenate([differences, part.counts[:, None].view(np.uint64)], axis=1)
    return _as_bytes(table).T.tobytes()


def _from_planes(planes: bytes, entries: int, words: int) -> KeyCounts:
    """Decode byte planes. Raises ValueError if their size is wrong."""
    columns = np.frombuffer(planes, np.uint8).reshape(8 * (words + 1), entries)
    table = np.ascontiguousarray(columns.T).view("<u8").astype(np.uint64)
    keys = np.cumsum(table[:, :words], axis=0, dtype=np.uint64)
    return KeyCounts(keys, table[:, words].astype(np.int64))


def _as_bytes(table: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """uint64 [m, k] -> uint8 [m, 8k], little-endian."""
    return np.ascontiguousarray(table.astype("<u8", copy=False)).view(np.uint8)


def _damaged(path: Path) -> Damaged:
    return Damaged(
        f"the file of counts {path.name} is damaged: check the disk, remove its folder and count again"
    )
