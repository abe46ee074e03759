"""Reading ahead: a look-up of a cold reader first asks for all its rows, instead of waiting for each in turn.

The indexes, in memory since the segment was opened, tell which rows a batch touches. A few calls ask the
operating system for their pages, so that the disk reads them in parallel. A reader does this while it is
cold: from its opening, or from a slow look-up that read from the disk, until enough look-ups in a row have
read nothing from the disk.
"""

from __future__ import annotations

import itertools
import resource
import threading
from time import perf_counter
from typing import Final

import numpy as np
from hmi_kernels.lookup import ops
from numpy.typing import NDArray

from plot_store.segments.mapping import will_need

_PAGE: Final = resource.getpagesize()
_PART: Final = 4096  # tokens whose rows are asked for together: while these are looked up, the next are read
_QUIET_LOOKUPS: Final = 4  # this many in a row, and this many tokens, without a read prove a reader warm
_QUIET_TOKENS: Final = 2048
_SLOW_S: Final = (
    200e-6  # a look-up that takes longer than this and so much a token may have waited for a disk
)
_SLOW_S_A_TOKEN: Final = 2e-6
_THREAD = threading.local()  # .reads: what `disk_reads` last said in this thread
Out = NDArray[np.float32] | NDArray[np.uint16]


class ReadAhead:
    """A reader's look-ups, which ask for rows ahead while it is cold. Shared by threads: a lost update costs
    one look-up's speed only."""

    def __init__(self, table: ops.LevelTable) -> None:
        views = sorted(
            {v.rows.ctypes.data: v for run in table.runs for v in run.segments if len(v.rows)}.items()
        )
        self.cold = bool(views)
        self._table = table
        # Where each segment's rows begin.
        self._starts = np.array([address for address, _ in views], np.int64)
        self._strides = np.array([view.rows.shape[1] for _, view in views], np.int64)
        self._lookups = self._tokens = 0  # in a row that read nothing

    def ask(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> int:
        """Begin to read every row that this batch touches; how many. Reads no row itself. Raises
        ValueError."""
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
        """`ops.lookup`, rows asked for first while the reader is cold. Raises what it raises."""
        if self.cold:
            before = disk_reads()
            self._lookup_in_parts(tokens, offsets, vocab, out, order, depth)
            _THREAD.reads = disk_reads()
            self._after_cold(_THREAD.reads == before, tokens.size)
            return
        start = perf_counter()
        ops.lookup(self._table, tokens, offsets, vocab, out, order, depth)
        if perf_counter() - start > _SLOW_S + _SLOW_S_A_TOKEN * tokens.size:
            self._after_slow()

    def _lookup_in_parts(
        self,
        tokens: NDArray[np.int32],
        offsets: NDArray[np.int64],
        vocab: int,
        out: Out,
        order: NDArray[np.int8],
        depth: NDArray[np.int16],
    ) -> None:
        """The look-up of one part while the disk reads the rows of the next: bounded, however large the
        batch."""
        parts = text_parts(offsets, tokens.size)
        spans = [slice(int(offsets[a]), int(offsets[b])) for a, b in parts] or [slice(None)]
        ragged = [
            (tokens[at], offsets[a : b + 1] - at.start) for (a, b), at in zip(parts, spans, strict=False)
        ]
        ragged = ragged or [(tokens, offsets)]  # one part: as they came, whatever they are
        self.ask(*ragged[0])
        for i, at in enumerate(spans):
            if i + 1 < len(ragged):
                self.ask(*ragged[i + 1])
            ops.lookup(self._table, *ragged[i], vocab, out[at], order[at], depth[at])

    def _after_cold(self, quiet: bool, tokens: int) -> None:
        self._lookups = self._lookups + 1 if quiet else 0
        self._tokens = self._tokens + tokens if quiet else 0
        self.cold = self._lookups < _QUIET_LOOKUPS or self._tokens < _QUIET_TOKENS

    def _after_slow(self) -> None:
        """Slow for the disk's sake, or because the processor was busy elsewhere? Only the first makes a
        reader cold."""
        now = disk_reads()
        before = getattr(_THREAD, "reads", now)
        _THREAD.reads = now
        if now != before:
            self._lookups = self._tokens = 0
            self.cold = True


def disk_reads() -> int:
    """What this thread has made the system read from disks so far: blocks it asked for, and faults that
    waited."""
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_inblock + usage.ru_majflt


def text_parts(offsets: NDArray[np.int64], tokens: int) -> list[tuple[int, int]]:
    """Runs of whole texts, (first, end), of about _PART tokens each; none for a small batch, or a malformed
    one."""
    if (
        tokens <= _PART
        or offsets.size < 3
        or offsets[0] != 0
        or offsets[-1] != tokens
        or (np.diff(offsets) < 0).any()
    ):
        return []
    marks = np.arange(_PART, tokens, _PART)
    cuts = np.unique([0, *np.searchsorted(offsets, marks).tolist(), offsets.size - 1]).tolist()
    return list(itertools.pairwise(cuts))


def page_ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The pages under [starts, ends), as few ranges as they make: uint64 [k, 2] of address and bytes,
    ascending."""
    order = np.argsort(starts)
    first = starts[order] // _PAGE * _PAGE
    last = np.maximum.accumulate(-(-ends[order] // _PAGE) * _PAGE)
    begins = np.append(True, first[1:] > last[:-1])  # a gap before this one; touching ranges are one
    at = np.flatnonzero(begins)
    stops = last[np.append(at[1:], len(first)) - 1]
    return np.stack([first[at], stops - first[at]], axis=1).astype(np.uint64)
