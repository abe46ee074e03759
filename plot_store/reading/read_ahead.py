"""Read-ahead: a cold reader requests all rows of a look-up at once, instead of waiting for each in turn.

The indexes are in memory, and give the rows that a batch touches. A few system calls request their pages, so
that the disk reads them in parallel. A reader is cold from its opening, and again from a slow look-up that
read from the disk, until enough look-ups in a row have read nothing from the disk.
"""

from __future__ import annotations

import itertools
import resource
import threading
from time import perf_counter
from typing import Final, NamedTuple

import numpy as np
from hmi_kernels.lookup import ops
from numpy.typing import NDArray

from plot_store.segments.mapping import will_need

_PAGE: Final = resource.getpagesize()
_PART_TOKENS: Final = 4096  # tokens of a part; the next part's rows are read while one is looked up
# A reader is warm after this many look-ups in a row, with this many tokens in total, without a disk read.
_QUIET_LOOKUPS: Final = 4
_QUIET_TOKENS: Final = 2048
# A look-up that takes longer than _SLOW_S + tokens * _SLOW_S_PER_TOKEN may have waited for a disk.
_SLOW_S: Final = 200e-6
_SLOW_S_PER_TOKEN: Final = 2e-6
_THREAD = threading.local()  # .reads: the last result of `disk_reads` in this thread
Out = NDArray[np.float32] | NDArray[np.uint16]


class BatchPart(NamedTuple):
    """Some whole texts of a batch, as a batch of their own."""

    at: slice  # their tokens in the batch
    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]


class ReadAhead:
    """A reader's look-ups, with read-ahead while it is cold.

    Threads share it without a lock: a lost update only slows one look-up down.
    """

    def __init__(self, table: ops.LevelTable) -> None:
        views = sorted(
            {v.rows.ctypes.data: v for run in table.runs for v in run.segments if len(v.rows)}.items()
        )
        self.cold = bool(views)
        self._table = table
        # The address of each segment's rows, ascending.
        self._starts = np.array([address for address, _ in views], np.int64)
        self._strides = np.array([view.rows.shape[1] for _, view in views], np.int64)
        self._lookups = self._tokens = 0  # since the last disk read

    def ask(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> int:
        """Start reading every row that this batch touches, without waiting. Returns their number.

        Raises ValueError for a malformed batch.
        """
        addresses = ops.candidates(self._table, tokens, offsets)
        if addresses.size:
            strides = self._strides[np.searchsorted(self._starts, addresses, "right") - 1]
            will_need(page_ranges(addresses, addresses + strides))
        return int(addresses.size)

    def lookup(
        self,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        vocab: int,
        out: Out,
        order: NDArray[np.int8],
        depth: NDArray[np.int16],
    ) -> None:
        """Run `ops.lookup` with the same arguments and errors.

        While the reader is cold, a large batch runs in parts: the disk reads the rows of the next part while
        one is looked up.
        """
        if not self.cold:
            start = perf_counter()
            ops.lookup(self._table, tokens, offsets, vocab, out, order, depth)
            if perf_counter() - start > _SLOW_S + _SLOW_S_PER_TOKEN * tokens.size:
                self._after_slow()
            return
        before = disk_reads()
        parts = parts_of(tokens, offsets)
        self.ask(parts[0].tokens, parts[0].offsets)
        for part, following in itertools.zip_longest(parts, parts[1:]):
            if following is not None:
                self.ask(following.tokens, following.offsets)
            at = part.at
            ops.lookup(self._table, part.tokens, part.offsets, vocab, out[at], order[at], depth[at])
        _THREAD.reads = disk_reads()
        self._after_cold(_THREAD.reads == before, tokens.size)

    def _after_cold(self, quiet: bool, tokens: int) -> None:
        """Count look-ups in a row without disk reads (`quiet`). Enough of them make the reader warm."""
        self._lookups = self._lookups + 1 if quiet else 0
        self._tokens = self._tokens + tokens if quiet else 0
        self.cold = self._lookups < _QUIET_LOOKUPS or self._tokens < _QUIET_TOKENS

    def _after_slow(self) -> None:
        """Make the reader cold if this thread has read from the disk since its last call of `disk_reads`."""
        now = disk_reads()
        before = getattr(_THREAD, "reads", now)
        _THREAD.reads = now
        if now != before:
            self._lookups = self._tokens = 0
            self.cold = True


def disk_reads() -> int:
    """Return this thread's disk reads so far: blocks read plus major page faults."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_inblock + usage.ru_majflt


def parts_of(tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> list[BatchPart]:
    """Cut a batch at texts into parts of about _PART_TOKENS tokens. A small or malformed one stays whole."""
    cuts = text_parts(offsets, tokens.size)
    spans = [(slice(int(offsets[a]), int(offsets[b])), offsets[a : b + 1]) for a, b in cuts]
    return [BatchPart(at, tokens[at], part - at.start) for at, part in spans] or [
        BatchPart(slice(None), tokens, offsets)
    ]


def text_parts(offsets: NDArray[np.int64], tokens: int) -> list[tuple[int, int]]:
    """Return runs of whole texts (first, end) of about _PART_TOKENS tokens each.

    Empty for a batch that is no larger, or malformed.
    """
    if (
        tokens <= _PART_TOKENS
        or offsets.size < 3
        or offsets[0] != 0
        or offsets[-1] != tokens
        or (np.diff(offsets) < 0).any()
    ):
        return []
    marks = np.arange(_PART_TOKENS, tokens, _PART_TOKENS)
    cuts = np.unique([0, *np.searchsorted(offsets, marks).tolist(), offsets.size - 1]).tolist()
    return list(itertools.pairwise(cuts))


def page_ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the pages under the address ranges [starts, ends), merged where they touch.

    uint64 [k, 2]: address and bytes of each range, ascending.
    """
    order = np.argsort(starts)
    first = starts[order] // _PAGE * _PAGE
    last = np.maximum.accumulate(-(-ends[order] // _PAGE) * _PAGE)
    begins = np.append(True, first[1:] > last[:-1])  # whether a gap lies before this range
    at = np.flatnonzero(begins)
    stops = last[np.append(at[1:], len(first)) - 1]
    return np.stack([first[at], stops - first[at]], axis=1).astype(np.uint64)
