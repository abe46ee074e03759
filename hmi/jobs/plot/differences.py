"""Leaves out entries that are near their fallback, and records which, for a resumed build.

An entry's fallback is what the build's own shorter n-grams and its ancestors give in its place. The
choice needs the computed entry, so it is made batch by batch. It is stored in the job's folder, so
that a resumed build neither computes nor chooses again what is already durable.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from plot_store import Reader, Writer, differences

Ngrams = NDArray[np.uint32]  # [m, order]
Rows = NDArray[np.float32]  # [m, roles, dim]
Mask = NDArray[np.bool_]  # [m]
SIZE_BYTES: Final = 4
"""Width of the batch size that precedes each batch's bits in the file."""


class Decide(Protocol):
    """Decides which entries of one order are stored. For each batch call `known`, and `now` if
    it returned None."""

    def known(self, count: int) -> Mask | None:
        """The recorded choice for the next `count` n-grams; None if there is none."""

    def now(self, ngrams: Ngrams, rows: Rows) -> Mask:
        """Decide, and record the choice."""


class StoreAll:
    """Stores every entry."""

    def known(self, count: int) -> Mask:
        return np.ones(count, np.bool_)

    def now(self, ngrams: Ngrams, rows: Rows) -> Mask:
        raise AssertionError("all is known to be stored")


class Differences:
    """A build's filter. It drops entries whose relative L2 distance to their fallback is below
    `least`; 0 keeps all."""

    def __init__(self, folder: Path, least: float) -> None:
        self._folder, self._least = folder, least
        self.dropped: Counter[int] = Counter()  # order -> entries dropped, earlier attempts included

    @contextmanager
    def of(self, writer: Writer, order: int) -> Iterator[Decide]:
        """Open the filter for one order. The shorter orders must have been added to the writer before.

        Raises OSError (disk full), and as `Writer.so_far`.
        """
        if self._least <= 0 or order == 1:
            yield StoreAll()
            return
        log = _Log(self._folder / f"kept-{order}")
        with writer.so_far() as view:
            deciding = _Deciding(view, order, self._least, log)
            yield deciding
        self.dropped[order] = deciding.dropped


class _Deciding:
    def __init__(self, view: Reader, order: int, least: float, log: _Log) -> None:
        self._view, self._order, self._least, self._log = view, order, least, log
        self.dropped = 0

    def known(self, count: int) -> Mask | None:
        return self._count(self._log.next(count))

    def now(self, ngrams: Ngrams, rows: Rows) -> Mask:
        away, depths = differences(self._view, self._order, ngrams, rows)
        # Entries at depth 0 were stored by an earlier attempt at this build, so they stay.
        kept: Mask = (away >= self._least) | (depths == 0)
        self._log.append(kept)
        self._count(kept)
        return kept

    def _count(self, kept: Mask | None) -> Mask | None:
        self.dropped += 0 if kept is None else int((~kept).sum())
        return kept


class _Log:
    """A file of decisions, with one record for each batch: its size, and a bit for each n-gram.

    A crash may cut the last record short, and a power failure may lose several. Lost decisions
    are made again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self._read = path.read_bytes() if path.exists() else b""

    def next(self, count: int) -> Mask | None:
        """The next batch's decisions. Returns None at the end of the log, or if the next record is
        incomplete or of another batch size."""
        begin = self._at + SIZE_BYTES
        end = begin + (count + 7) // 8
        if self._read[self._at : begin] != count.to_bytes(SIZE_BYTES, "little") or len(self._read) < end:
            self._read = self._read[: self._at]
            return None
        self._at = end
        bits = np.frombuffer(self._read[begin:end], np.uint8)
        return np.unpackbits(bits, count=count).astype(np.bool_)

    def append(self, kept: Mask) -> None:
        record = len(kept).to_bytes(SIZE_BYTES, "little") + np.packbits(kept).tobytes()
        with self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.seek(self._at)
            file.write(record)
            file.truncate()
        self._at += len(record)
