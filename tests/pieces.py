"""Where segments of a PLOT store lie in its files, for tests that damage them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from plot_store import Store
from plot_store.catalogue import places


@dataclass(frozen=True)
class Piece:
    """The bytes of one segment in its file, to be damaged."""

    name: str  # of the segment
    file: Path
    at: int
    size: int

    def read_bytes(self) -> bytes:
        return self.file.read_bytes()[self.at : self.at + self.size]

    def write_bytes(self, data: bytes) -> None:
        """Put other bytes there. If there are fewer, the file ends with them."""
        before = self.file.read_bytes()
        after = before[self.at + self.size :] if len(data) == self.size else b""
        replace(self.file, before[: self.at] + data + after)

    def flip(self, at: int, bit: int = 0) -> None:
        """Flip one bit."""
        data = bytearray(self.read_bytes())
        data[at] ^= 1 << bit
        self.write_bytes(bytes(data))


def replace(file: Path, data: bytes) -> None:
    """Replace a file by other bytes; a process that has mapped the old file still sees the old bytes."""
    beside = file.with_name("beside")
    beside.write_bytes(data)
    beside.replace(file)


def piece(store: Store, name: str) -> Piece:
    """The bytes of a segment in the store's files."""
    info = next(s for ref in store.refs() for v in store.history(ref) for s in v.segments if s.name == name)
    place = store._env().places([info])[name]
    return Piece(name, store.path / "segments" / place.file, place.at, info.bytes)


def files(store: Store, names: Iterable[str]) -> set[str]:
    """The names of the files in which these segments lie."""
    return store._env().catalogue.read(lambda txn: {places.find(txn, name).file for name in names})
