"""Counting n-grams of a corpus larger than memory.

Keys are collected in a buffer. A full buffer is sorted, counted and written to disk as a run while the next
one fills. At the end the runs are merged as streams into the tables from which `CountedNgrams` selects.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from hmi_kernels.lookup.layout import MAX_N, words
from numpy.typing import NDArray

from plot_store.counting.counted import CountedNgrams, TableWriter
from plot_store.counting.key_counts import count_keys
from plot_store.counting.runs import BLOCK_ENTRIES, SUFFIX, RunWriter, merge
from plot_store.counting.windows import Keys, Strip, check_texts, starts_of
from plot_store.ground.arguments import check_number, check_path
from plot_store.ground.errors import Closed, Invalid
from plot_store.ground.files import guarded
from plot_store.ground.nouns import Progress

MEMORY_BYTES: Final = 256 << 20
LEAST_MEMORY: Final = 1 << 20
FAN_IN: Final = 64  # runs of one level that are merged into one of the next
AT_ONCE: Final = 1 << 18  # tokens cut at once


class NgramCounter:
    """Counts n-grams of several orders.

    Files lie in `folder`; memory stays below about `memory_bytes`. For order n it counts every window centred
    on a token, with 0 outside the text; for lower orders, runs of tokens inside a text. A token of id 0 is no
    centre and in no n-gram of a lower order. Not thread-safe. Close it, or use it as a context; `finish`
    closes it.
    """

    def __init__(
        self, n: int, orders: Iterable[int], folder: str | Path, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        """Takes over `folder` and deletes what an earlier count left there.

        Raises Invalid (also for a folder that holds anything else), StoreIO.
        """
        self.n, self.orders = n, _checked(n, orders)
        cure = f"that is too little; give at least {LEAST_MEMORY}"
        check_number("memory_bytes", memory_bytes, cure, least=LEAST_MEMORY, whole=True)
        self.folder = check_path("folder", folder)
        CountedNgrams.clear(self.folder)
        self._at_once = min(AT_ONCE, memory_bytes // 512)
        self._block = min(BLOCK_ENTRIES, memory_bytes // (FAN_IN * 256))
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ngram-runs")
        room = _room(memory_bytes // 2, [words(order) for order in self.orders])
        self._piles = {
            order: _Pile(order, room, self._block, self.folder, self._pool) for order in self.orders
        }
        self._open = True
        self._failure: BaseException | None = None

    def add(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        """Count the texts t = tokens[offsets[t]:offsets[t + 1]].

        Raises Invalid, Closed, StoreFull, StoreIO (also of what was spilled before). After any but Invalid
        the counts are incomplete: every later call raises it again.
        """
        self._check_open()
        check_texts(tokens, offsets)
        with self._remembered():
            # What is being cut takes memory, too.
            for begin in range(0, tokens.size, self._at_once):
                self._cut(tokens, offsets, begin, min(begin + self._at_once, tokens.size))

    def finish(self, progress: Progress = lambda _done, _all: None) -> CountedNgrams:
        """Merge everything into durable tables in `folder`. progress(entries merged, of all)

        Raises StoreFull, StoreIO, Damaged, Closed, and whatever `progress` raises.
        """
        self._check_open()
        entries = done = 0

        def merged(count: int) -> None:
            nonlocal done
            done += count
            progress(done, entries)

        with contextlib.closing(self), self._remembered():
            runs = {order: pile.settled() for order, pile in self._piles.items()}
            entries = sum(run.entries for pile in runs.values() for run in pile)
            tables = []
            for order, pile in runs.items():
                writer = TableWriter(self.folder, order, self._block)
                for part in merge([run.path for run in pile], words(order), merged):
                    writer.add(part)
                tables.append(writer.close())
                _remove(pile)
            return CountedNgrams.seal(self.folder, self.n, tables)

    def close(self) -> None:
        """Stop the background work. Again: nothing."""
        self._open = False
        self._pool.shutdown()
        self._piles.clear()

    def _cut(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], begin: int, end: int) -> None:
        """Count the windows centred on tokens[begin:end], and the shorter n-grams that begin there."""
        for order, pile in self._piles.items():
            # With so much of the neighbours that no window ends at the cut: a text may be cut anywhere.
            low = max(begin - self.n + 1, 0) if order == self.n else begin
            high = min(end + order - 1, tokens.size)
            strip = self._strip(tokens, offsets, low, high)
            if order == self.n:
                chosen = np.zeros(high - low, np.bool_)
                chosen[begin - low : end - low] = True
                pile.add(strip.windows(order, chosen))
            else:
                pile.add(strip.grams(order))

    def _strip(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], low: int, high: int) -> Strip:
        first, last = np.searchsorted(offsets, [low, high])
        starts = starts_of(np.append(offsets[first:last], high) - low)
        starts[0] = True
        return Strip(tokens[low:high], starts, self.n)

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        """Remembers a failure of the block, which has lost counts; every later call raises it."""
        try:
            yield
        except BaseException as error:
            self._failure = error
            raise

    def _check_open(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._open:
            raise Closed("the counter has been closed: begin another one")

    def __enter__(self) -> NgramCounter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Pile:
    """One order's keys: a buffer that fills, one that is sorted in the background, and runs on disk by
    level."""

    def __init__(self, order: int, room: int, block: int, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._order, self._words, self._room, self._block = order, words(order), room, block
        self._folder, self._pool = folder, pool
        self._buffer = np.empty((room, self._words), np.uint64)
        self._used = self._made = 0
        self._levels: list[list[RunWriter]] = [[]]
        self._busy: Future[None] | None = None

    def add(self, keys: Keys) -> None:
        done = 0
        while done < len(keys):
            take = min(len(keys) - done, self._room - self._used)
            self._buffer[self._used : self._used + take] = keys[done : done + take]
            self._used += take
            done += take
            if self._used == self._room:
                self._hand_over()

    def settled(self) -> list[RunWriter]:
        """Everything on disk: the runs, all finished."""
        self._hand_over()
        self._wait()
        return [run for level in self._levels for run in level]

    def _hand_over(self) -> None:
        self._wait()
        full, self._buffer = self._buffer[: self._used], np.empty((self._room, self._words), np.uint64)
        self._used = 0
        if len(full):
            self._busy = self._pool.submit(self._spill, full)

    def _wait(self) -> None:
        busy, self._busy = self._busy, None
        if busy is not None:
            busy.result()

    def _spill(self, keys: Keys) -> None:
        """In the background: a sorted run, and a merge of each level that is full."""
        run = self._new_run()
        counted = count_keys(keys)
        for at in range(0, len(counted), self._block):
            run.add(counted.part(at, at + self._block))
        run.close()
        self._levels[0].append(run)
        for level, runs in enumerate(self._levels):
            if len(runs) < FAN_IN:
                return
            into = self._new_run()
            for part in merge([run.path for run in runs], self._words):
                into.add(part)
            into.close()
            _remove(runs)
            self._levels[level] = []
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(into)

    def _new_run(self) -> RunWriter:
        self._made += 1
        return RunWriter(self._folder / f"{self._order}-{self._made}{SUFFIX}", self._words, self._block)


def _checked(n: int, orders: Iterable[int]) -> tuple[int, ...]:
    """The orders to count, ascending. Raises Invalid."""
    cure = f"it cannot be counted; use n of 1..{MAX_N}, and a list of orders of 1..n"
    check_number("n", n, cure, least=1, most=MAX_N, whole=True)
    listed = list(orders) if isinstance(orders, Iterable) else []
    for order in listed:
        check_number("orders", order, cure, least=1, most=n, whole=True)
    if not listed:
        raise Invalid(f"orders = {orders!r}: {cure}")
    return tuple(sorted(set(listed)))


def _room(budget: int, key_words: list[int]) -> int:
    """Keys in a buffer: each order has two of them, and one is counted at a time."""
    # A mask, where keys begin, the distinct ones and their counts; an order.
    counting = 25 if max(key_words) == 1 else 65
    return max(1024, budget // (16 * sum(key_words) + counting))


def _remove(runs: list[RunWriter]) -> None:
    for run in runs:
        with guarded(f"removing {run.path.name}"):
            run.path.unlink()
