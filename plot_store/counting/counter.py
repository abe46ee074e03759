"""Counting the n-grams of a corpus larger than memory, by external sorting.

Keys are collected in a buffer. A full buffer is sorted, counted and written to disk as a run while the next
one fills. At the end the runs are merged as streams into the tables from which `CountedNgrams` selects.
Counts of parts of a corpus are merged in the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
from hmi_kernels.lookup.layout import MAX_N, Window, words
from numpy.typing import NDArray

from plot_store.counting.counted import CountedNgrams, OrderCounts, TableWriter
from plot_store.counting.key_counts import count_keys
from plot_store.counting.runs import BLOCK_ENTRIES, SUFFIX, Merged, RunWriter, merge
from plot_store.counting.windows import Keys, Strip, check_texts, starts_of
from plot_store.ground.arguments import check_number, check_path
from plot_store.ground.errors import Closed, Invalid
from plot_store.ground.files import convert_os_errors
from plot_store.ground.nouns import Progress, check_window

MEMORY_BYTES: Final = 256 << 20
MIN_MEMORY_BYTES: Final = 1 << 20
FAN_IN: Final = 64  # runs of one level that are merged into one of the next
MOST_OPEN: Final = 256  # files of finished counts that are merged at a time: a process may open about 1,000
SLICE_TOKENS: Final = 1 << 18  # tokens that are cut into n-grams at a time


class NgramCounter:
    """Counts n-grams of several orders, in files in `folder` and about `memory_bytes` of memory.

    For order n it counts every window centred on a token, with 0 outside the text; for lower orders, and for
    order n in a causal window, runs of tokens inside a text. A token of id 0 is never a centre, and never in
    such a run. Not thread-safe. Close it, or use it as a context manager; `finish` also closes it.
    """

    def __init__(
        self,
        n: int,
        orders: Iterable[int],
        folder: str | Path,
        memory_bytes: int = MEMORY_BYTES,
        *,
        window: Window = "centred",
    ) -> None:
        """Create the folder, or delete an earlier count in it.

        Raises Invalid (also if the folder holds other files), StoreIO.
        """
        self.n, self.orders, self.window = n, _checked(n, orders), check_window(window)
        self._block = _block(memory_bytes)
        self.folder = check_path("folder", folder)
        CountedNgrams.clear(self.folder)
        self._slice_tokens = min(SLICE_TOKENS, memory_bytes // 512)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="ngram-runs")
        room = _room(memory_bytes // 2, [words(order) for order in self.orders])
        self._runs = {
            order: _RunBuilder(order, room, self._block, self.folder, self._pool) for order in self.orders
        }
        self._open = True
        self._failure: BaseException | None = None

    def add(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        """Count the n-grams of a ragged batch: text t is tokens[offsets[t]:offsets[t + 1]].

        tokens int32 [total], offsets int64 [texts + 1]. Raises Invalid, Closed, StoreFull, StoreIO. The last
        two may come from an earlier call's buffer, written in the background; the counts are then incomplete,
        and every later call raises the error again.
        """
        self._check_open()
        check_texts(tokens, offsets)
        with self._remembered():
            # In slices, because the extraction of n-grams takes memory too.
            for begin in range(0, tokens.size, self._slice_tokens):
                self._cut(tokens, offsets, begin, min(begin + self._slice_tokens, tokens.size))

    def finish(self, progress: Progress = lambda _done, _all: None) -> CountedNgrams:
        """Merge everything into durable tables in `folder`, and close the counter.

        progress(entries merged, entries in total). Raises StoreFull, StoreIO, Damaged, Closed,
        and what `progress` raises.
        """
        self._check_open()
        entries = done = 0

        def merged(count: int) -> None:
            nonlocal done
            done += count
            progress(done, entries)

        with contextlib.closing(self), self._remembered():
            finished = {order: builder.flush() for order, builder in self._runs.items()}
            entries = sum(run.entries for runs in finished.values() for run in runs)
            tables = []
            for order, runs in finished.items():
                paths = [run.path for run in runs]
                tables.append(_table(self.folder, order, self._block, paths, merged))
                _remove(paths)
            return CountedNgrams.seal(self.folder, self.n, tables, self.window)

    def close(self) -> None:
        """Wait for the background work and free the buffers. Idempotent."""
        self._open = False
        self._pool.shutdown()
        self._runs.clear()

    def _cut(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], begin: int, end: int) -> None:
        """Count the windows centred on tokens[begin:end], and the runs that begin there."""
        for order, builder in self._runs.items():
            centred = order == self.n and self.window == "centred"
            # The cut may be inside a text, so the windows at its ends need the neighbouring tokens.
            low = max(begin - self.n + 1, 0) if centred else begin
            high = min(end + order - 1, tokens.size)
            strip = self._strip(tokens, offsets, low, high)
            if centred:
                chosen = np.zeros(high - low, np.bool_)
                chosen[begin - low : end - low] = True
                builder.add(strip.windows(order, chosen))
            else:
                builder.add(strip.grams(order))

    def _strip(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], low: int, high: int) -> Strip:
        """Return tokens[low:high] as a strip that knows the texts' beginnings."""
        first, last = np.searchsorted(offsets, [low, high])
        starts = starts_of(np.append(offsets[first:last], high) - low)
        starts[0] = True
        return Strip(tokens[low:high], starts, self.n)

    @contextlib.contextmanager
    def _remembered(self) -> Iterator[None]:
        """Keep an error of the block, which may have lost counts, so that every later call raises it."""
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


class _RunBuilder:
    """The keys of one order: a buffer that fills, one that is sorted in the background, and runs on disk.

    Runs have levels: FAN_IN runs of one level are merged into one of the next.
    """

    def __init__(self, order: int, room: int, block: int, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._order, self._words, self._room, self._block = order, words(order), room, block
        self._folder, self._pool = folder, pool
        self._buffer = np.empty((room, self._words), np.uint64)
        self._used = self._created = 0
        self._levels: list[list[RunWriter]] = [[]]
        self._busy: Future[None] | None = None

    def add(self, keys: Keys) -> None:
        """Add keys uint64 [m, words]. Raises the error of an earlier buffer: StoreFull, StoreIO."""
        done = 0
        while done < len(keys):
            take = min(len(keys) - done, self._room - self._used)
            self._buffer[self._used : self._used + take] = keys[done : done + take]
            self._used += take
            done += take
            if self._used == self._room:
                self._hand_over()

    def flush(self) -> list[RunWriter]:
        """Write the rest to disk and wait. Returns all runs, which are then complete."""
        self._hand_over()
        self._wait()
        return [run for level in self._levels for run in level]

    def _hand_over(self) -> None:
        """Have the buffer sorted and written in the background, and start a new one."""
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
        """Write a sorted run, and merge each level that is full. Runs in the background."""
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
            _remove([run.path for run in runs])
            self._levels[level] = []
            if level + 1 == len(self._levels):
                self._levels.append([])
            self._levels[level + 1].append(into)

    def _new_run(self) -> RunWriter:
        self._created += 1
        return RunWriter(self._folder / f"{self._order}-{self._created}{SUFFIX}", self._words, self._block)


def _checked(n: int, orders: Iterable[int]) -> tuple[int, ...]:
    """Return the distinct orders, ascending. Raises Invalid."""
    cure = f"it cannot be counted; use n of 1..{MAX_N}, and a list of orders of 1..n"
    check_number("n", n, cure, least=1, most=MAX_N, whole=True)
    listed = list(orders) if isinstance(orders, Iterable) else []
    for order in listed:
        check_number("orders", order, cure, least=1, most=n, whole=True)
    if not listed:
        raise Invalid(f"orders = {orders!r}: {cure}")
    return tuple(sorted(set(listed)))


def _room(budget: int, key_words: list[int]) -> int:
    """Return the number of keys per buffer for `budget` bytes. key_words: words per key, by order.

    Each order has two buffers, and one buffer at a time is sorted and counted.
    """
    # Bytes per key while counting: a mask, the starts of distinct keys, these keys, counts, a sort order.
    counting = 25 if max(key_words) == 1 else 65
    return max(1024, budget // (16 * sum(key_words) + counting))


def _block(memory_bytes: int) -> int:
    """Return the number of entries of a block, for a count in so much memory. Raises Invalid."""
    cure = f"that is too little; pass at least {MIN_MEMORY_BYTES}"
    check_number("memory_bytes", memory_bytes, cure, least=MIN_MEMORY_BYTES, whole=True)
    return min(BLOCK_ENTRIES, memory_bytes // (FAN_IN * 256))


def _table(folder: Path, order: int, block: int, runs: Sequence[Path], merged: Merged) -> OrderCounts:
    """Merge runs into the table of an order. Raises StoreFull, StoreIO, Damaged."""
    writer = TableWriter(folder, order, block)
    for part in merge(runs, words(order), merged):
        writer.add(part)
    return writer.close()


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        with convert_os_errors(f"removing {path.name}"):
            path.unlink()


def merge_counts(
    parts: Sequence[CountedNgrams],
    folder: str | Path,
    memory_bytes: int = MEMORY_BYTES,
    progress: Progress = lambda _done, _all: None,
) -> CountedNgrams:
    """Merge the counts of the parts of a corpus into the count of all of it, in `folder`.

    The files are those that one `NgramCounter` with this `memory_bytes` writes for all texts, byte for byte.
    The parts stay. progress(entries merged, entries in total). Raises Invalid (there are no parts; they
    differ in n, orders or window; the folder is a part's or holds other files), StoreFull, StoreIO, Damaged,
    and what `progress` raises.
    """
    folder, block = check_path("folder", folder), _block(memory_bytes)
    if len({(part.n, part.orders, part.window) for part in parts}) != 1:
        raise Invalid(
            "only parts of one corpus are merged: pass one or more, all of the same n, orders and window"
        )
    if any(part.folder.resolve() == folder.resolve() for part in parts):
        raise Invalid(f"{folder} holds a part: pass another folder")
    CountedNgrams.clear(folder)
    first, done = parts[0], 0
    entries = sum(part.distinct(order) for part in parts for order in part.orders)

    def merged(count: int) -> None:
        nonlocal done
        done += count
        progress(min(done, entries), entries)

    tables = []
    for order in first.orders:
        runs, made = [path for part in parts for path in part.runs(order)], list[Path]()
        while len(runs) > MOST_OPEN:
            into = RunWriter(folder / f"{order}-{len(made) + 1}{SUFFIX}", words(order), block)
            for piece in merge(runs[:MOST_OPEN], words(order), merged):
                into.add(piece)
            made.append(into.close())
            runs = [*runs[MOST_OPEN:], made[-1]]
        tables.append(_table(folder, order, block, runs, merged))
        _remove(made)
    return CountedNgrams.seal(folder, first.n, tables, first.window)
