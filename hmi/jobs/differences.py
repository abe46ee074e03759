"""Leaving out entries that are near their fallback, and recording the choice for a resumed build.

An entry's fallback is what the build's own shorter n-grams and its ancestors give in its place. The
choice needs the computed entry, so it is made batch by batch and stored in the job's folder: a
resumed build neither computes nor chooses again what is durable.
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
"""Bytes of a batch's size, which stands before its bits in the file."""


class Decide(Protocol):
    """Which entries of each batch of one order are stored. Call `known` and `now` in turn, batch by batch."""

    def known(self, count: int) -> Mask | None:
        """The earlier choice for the next `count` n-grams; None: call `now` with their rows."""

    def now(self, ngrams: Ngrams, rows: Rows) -> Mask:
        """Decide, and remember it."""


class StoreAll:
    """Every entry is worth storing."""

    def known(self, count: int) -> Mask:
        return np.ones(count, np.bool_)

    def now(self, ngrams: Ngrams, rows: Rows) -> Mask:
        raise AssertionError("all is known to be stored")


class Differences:
    """A build's filter. It drops entries nearer to their fallback than `least` (relative L2
    distance); 0 keeps all."""

    def __init__(self, folder: Path, least: float) -> None:
        self._folder, self._least = folder, least
        self.dropped: Counter[int] = Counter()  # by order, those of earlier attempts included

    @contextmanager
    def of(self, writer: Writer, order: int) -> Iterator[Decide]:
        """For the entries of one order, once those of the shorter orders are added to the writer.

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
        # At depth 0 is what an earlier attempt at this build has stored: it was worth it then.
        kept: Mask = (away >= self._least) | (depths == 0)
        self._log.append(kept)
        self._count(kept)
        return kept

    def _count(self, kept: Mask | None) -> Mask | None:
        self.dropped += 0 if kept is None else int((~kept).sum())
        return kept


class _Log:
    """Decisions in a file, one record a batch: its size, and a bit for each n-gram.

    A crash may cut the last record short, and a power failure may lose several; lost decisions
    are made again.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._at = path, 0
        self._read = path.read_bytes() if path.exists() else b""

    def next(self, count: int) -> Mask | None:
        """The next batch's decisions; None where they, or it, are not there: that is the end of
        what is known."""
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
