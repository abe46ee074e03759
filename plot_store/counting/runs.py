"""Runs: temporary files of ascending n-gram keys with their counts, and merging many of them in little
memory.

A file is magic, u16 format, u16 words, then blocks: u32 entries, u32 packed bytes, u64 xxh3-64 of those
bytes, and one zstd frame of the block's keys (each less its predecessor) and counts as planes: all lowest
bytes, then all second lowest, …, since most of the upper ones are zero. An empty block ends the file, so a
lost tail is noticed.
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
from plot_store.ground.files import guarded, sync_file

MAGIC: Final = b"PLOTRUN\0" + struct.pack("<H", 1)
SUFFIX: Final = ".run"
BLOCK: Final = struct.Struct("<IIQ")
BLOCK_ENTRIES: Final = 1 << 15
_LEVEL: Final = 1

Merged = Callable[[int], None]  # told how many entries of the inputs have been merged


class RunWriter:
    """Writes one run. Raises StoreFull, StoreIO. Not thread-safe."""

    def __init__(self, path: Path, words: int, block: int = BLOCK_ENTRIES) -> None:
        self.path, self.entries = path, 0
        self._words, self._block = words, min(block, BLOCK_ENTRIES)
        self._waiting: list[KeyCounts] = []
        self._held = 0
        self._packer = zstandard.ZstdCompressor(level=_LEVEL)
        with guarded(f"writing {path.name}"):
            self._file: BinaryIO = path.open("wb")
        self._write(MAGIC + struct.pack("<H", words))

    def add(self, part: KeyCounts) -> None:
        """Append entries, all above those before."""
        if len(part):
            self._waiting.append(part)
            self._held += len(part)
            if self._held >= self._block:
                self._drain(whole=False)

    def close(self, *, durable: bool = False) -> Path:
        """Finish the file; `durable` also syncs it."""
        self._drain(whole=True)
        self._write(BLOCK.pack(0, 0, 0))
        with guarded(f"writing {self.path.name}"), self._file as file:
            file.flush()
            if durable:
                sync_file(file.fileno())
        return self.path

    def _drain(self, *, whole: bool) -> None:
        keys = (
            np.concatenate([part.keys for part in self._waiting])
            if self._waiting
            else empty(self._words).keys
        )
        counts = np.concatenate([part.counts for part in self._waiting]) if self._waiting else empty(1).counts
        end = len(keys) if whole else len(keys) - len(keys) % self._block
        for at in range(0, end, self._block):
            to = min(at + self._block, end)
            self._put(KeyCounts(keys[at:to], counts[at:to]))
        rest = KeyCounts(keys[end:].copy(), counts[end:].copy())
        self._waiting, self._held = ([rest], len(rest)) if len(rest) else ([], 0)

    def _put(self, part: KeyCounts) -> None:
        packed = self._packer.compress(_planes(part))
        self._write(BLOCK.pack(len(part), len(packed), xxhash.xxh3_64_intdigest(packed)))
        self._write(packed)
        self.entries += len(part)

    def _write(self, data: bytes) -> None:
        with guarded(f"writing {self.path.name}"):
            self._file.write(data)


def read_run(path: Path, words: int) -> Iterator[KeyCounts]:
    """The run's entries, block by block. Raises Damaged, StoreIO."""
    unpacker = zstandard.ZstdDecompressor()
    with guarded(f"reading {path.name}"), path.open("rb") as file:
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
    """The sum of several runs, ascending, in chunks; holds about one block of each. Raises Damaged,
    StoreIO."""
    sources = [_Source(read_run(path, words)) for path in paths]
    while sources := [source for source in sources if source.fill()]:
        # Whatever is at most the smallest last key cannot turn up in a later block of anybody.
        bound = min(source.last for source in sources)
        parts = [part for part in (source.take(bound) for source in sources) if len(part)]
        yield combined(parts)
        merged(sum(map(len, parts)))


class _Source:
    """One run's current block."""

    def __init__(self, blocks: Iterator[KeyCounts]) -> None:
        self._blocks = blocks
        self._left: KeyCounts | None = None

    def fill(self) -> bool:
        """Have entries; False at the end of the run."""
        while self._left is None or not len(self._left):
            self._left = next(self._blocks, None)
            if self._left is None:
                return False
        return True

    @property
    def last(self) -> tuple[int, ...]:
        assert self._left is not None
        return tuple(map(int, self._left.keys[-1]))

    def take(self, bound: tuple[int, ...]) -> KeyCounts:
        assert self._left is not None
        keys, counts = self._left.keys, self._left.counts
        end = up_to(keys, bound)
        self._left = KeyCounts(keys[end:], counts[end:])
        return KeyCounts(keys[:end], counts[:end])


def _planes(part: KeyCounts) -> bytes:
    """Differences wrap around modulo 2⁶⁴, so any keys come back."""
    lessened = part.keys.copy()
    lessened[1:] -= part.keys[:-1]
    table = np.concatenate([lessened, part.counts[:, None].view(np.uint64)], axis=1)
    return _as_bytes(table).T.tobytes()


def _from_planes(planes: bytes, entries: int, words: int) -> KeyCounts:
    """Raises ValueError where the size is another."""
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
