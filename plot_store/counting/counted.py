"""The n-gram counts of a corpus, on disk, and the selection of the n-grams that a PLOT stores.

Coverage is by occurrence: the fewest, most frequent n-grams that make up α% of all occurrences. For each
order and each k, one file holds the n-grams that occur 2ᵏ to 2ᵏ⁺¹ − 1 times, ascending. A histogram of the
counts is kept in memory. It decides which n-grams are selected, and one pass over the files with the
frequent n-grams yields them.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Window, words
from numpy.typing import NDArray

from plot_store.counting.key_counts import KeyCounts
from plot_store.counting.runs import SUFFIX, RunWriter, read_run
from plot_store.counting.windows import unpack
from plot_store.ground.arguments import check_number, check_path
from plot_store.ground.errors import Invalid
from plot_store.ground.files import TEMPORARY, convert_os_errors, remove, sync_folder, write_temporary

SEAL: Final = "counted.json"
FORMATS: Final[dict[int, Window]] = {1: "centred", 2: "causal"}  # of the record, by the window counted in
_OURS: Final = re.compile(
    rf"{re.escape(SEAL)}|\d-(of-2-to-)?\d+{re.escape(SUFFIX)}|[0-9a-f]{{32}}{re.escape(TEMPORARY)}"
)
_SLACK: Final = 1e-6  # in occurrences: the tolerance for rounding in α% of the total

Among = Callable[[NDArray[np.uint32]], NDArray[np.bool_]]  # n-grams [m, order] -> which of them to consider


@dataclass(frozen=True)
class OrderCounts:
    """The counts of the n-grams of one order."""

    order: int
    histogram: dict[int, int]  # number of occurrences -> number of n-grams that occur as often
    files: dict[int, str]  # k -> name of the file of the n-grams that occur 2**k to 2**(k + 1) - 1 times

    @property
    def total(self) -> int:
        """The number of all occurrences."""
        return sum(count * ngrams for count, ngrams in self.histogram.items())

    @property
    def distinct(self) -> int:
        """The number of distinct n-grams."""
        return sum(self.histogram.values())


@dataclass(frozen=True)
class _Cut:
    """A selection by frequency: all n-grams above `count`, and the first `quota` of those at `count`."""

    count: int  # occurrences
    quota: int  # number of n-grams


class CountedNgrams:
    """The counts of one corpus, read-only. Selections are streamed; memory does not grow with the corpus."""

    def __init__(self, folder: Path, n: int, tables: dict[int, OrderCounts], window: Window) -> None:
        self.folder, self.n, self.window = folder, n, window
        self._tables = tables

    @classmethod
    def open(cls, folder: str | Path) -> CountedNgrams | None:
        """Open the counts that `NgramCounter.finish` left in a folder. Returns None if it did not finish.

        Raises Invalid, StoreIO.
        """
        folder = check_path("folder", folder)
        with convert_os_errors(f"reading {SEAL}"):
            raw = (folder / SEAL).read_bytes() if (folder / SEAL).exists() else b""
        body, _, check = raw.rpartition(b"\n")
        if not raw or xxhash.xxh3_64_hexdigest(body).encode() != check:
            return None
        record = json.loads(body)
        if record["format"] not in FORMATS:
            return None
        tables = {
            t["order"]: OrderCounts(t["order"], _int_keys(t["histogram"]), _int_keys(t["files"]))
            for t in record["tables"]
        }
        complete = all((folder / name).exists() for table in tables.values() for name in table.files.values())
        return cls(folder, record["n"], tables, FORMATS[record["format"]]) if complete else None

    @classmethod
    def seal(cls, folder: Path, n: int, tables: Sequence[OrderCounts], window: Window) -> CountedNgrams:
        """Write the record that makes synced tables a complete count, durably. Raises StoreFull, StoreIO."""
        written = next(number for number, counted in FORMATS.items() if counted == window)
        record = {"format": written, "n": n, "tables": [asdict(table) for table in tables]}
        body = json.dumps(record).encode()
        path = write_temporary(folder, [body, b"\n", xxhash.xxh3_64_hexdigest(body).encode()])
        with convert_os_errors(f"sealing {folder}"):
            path.replace(folder / SEAL)
            sync_folder(folder)
        return cls(folder, n, {table.order: table for table in tables}, window)

    @staticmethod
    def clear(folder: Path) -> None:
        """Create the folder, or delete an earlier count in it.

        Raises Invalid (the folder holds other files), StoreIO.
        """
        with convert_os_errors(f"preparing {folder}"):
            folder.mkdir(parents=True, exist_ok=True)
            left = sorted(folder.iterdir())
        for path in left:
            if not _OURS.fullmatch(path.name):
                raise Invalid(
                    f"{folder} holds {path.name}, which no count wrote: pass a folder for counts only"
                )
        for path in left:
            remove(path)

    @property
    def orders(self) -> tuple[int, ...]:
        """The orders that were counted, ascending."""
        return tuple(sorted(self._tables))

    def runs(self, order: int) -> list[Path]:
        """Return the files of an order, each with ascending n-grams. Raises Invalid."""
        return [self.folder / name for name in self._table(order).files.values()]

    def total(self, order: int) -> int:
        """Return the number of occurrences of n-grams of this order. Raises Invalid if it was not counted."""
        return self._table(order).total

    def distinct(self, order: int) -> int:
        """Return the number of distinct n-grams of this order. Raises Invalid."""
        return self._table(order).distinct

    def chosen(self, order: int, alpha: float, min_count: int = 1) -> int:
        """Return the number of n-grams that `covering` would yield, without reading files. Raises Invalid."""
        table = self._table(order)
        cut = _cut(table, alpha)
        if cut is None:
            return 0
        above = sum(
            ngrams for count, ngrams in table.histogram.items() if count > cut.count and count >= min_count
        )
        return above + (cut.quota if cut.count >= min_count else 0)

    def covering(self, order: int, alpha: float, min_count: int = 1) -> Iterator[NDArray[np.uint32]]:
        """Yield the fewest n-grams that cover `alpha` percent of the occurrences.

        Those that occur less than `min_count` times are left out. Yields chunks uint32 [m, order], most
        frequent first: by descending power of two of their occurrences, and ascending within a power. So rows
        that are used together lie together, and the order is deterministic. Of equally frequent n-grams at
        the limit the smaller ones are selected. Raises Invalid, Damaged, StoreIO.
        """
        table = self._table(order)
        yield from self._above(table, _cut(table, alpha), min_count, None)

    def histogram(self, order: int, among: Among | None = None) -> dict[int, int]:
        """Return {number of occurrences: number of n-grams that occur as often}.

        among: a filter uint32 [m, order] -> bool [m]; with one, all files are read. Raises Invalid, and
        with `among` Damaged, StoreIO.
        """
        table = self._table(order)
        if among is None:
            return dict(table.histogram)
        found: Counter[int] = Counter()
        for part in self._parts(table, 1):
            counts, ngrams = np.unique(part.counts[among(unpack(part.keys, order))], return_counts=True)
            found.update(dict(zip(counts.tolist(), ngrams.tolist(), strict=True)))
        return dict(found)

    def most_frequent(
        self, order: int, most: int, min_count: int = 1, among: Among | None = None
    ) -> Iterator[NDArray[np.uint32]]:
        """Yield at most `most` n-grams: the most frequent that `among` accepts, in the order of `covering`.

        With `among` the files are read twice. Raises Invalid, Damaged, StoreIO.
        """
        table = self._table(order)
        yield from self._above(table, _cut_at(self.histogram(order, among), most), min_count, among)

    def _above(
        self, table: OrderCounts, cut: _Cut | None, min_count: int, among: Among | None
    ) -> Iterator[NDArray[np.uint32]]:
        """Yield the n-grams of a cut that occur at least `min_count` times and that `among` accepts."""
        if cut is None:
            return
        quota = cut.quota
        for part in self._parts(table, max(cut.count, min_count)):
            ngrams, counts = unpack(part.keys, table.order), part.counts
            if among is not None:
                accepted = among(ngrams)
                ngrams, counts = ngrams[accepted], counts[accepted]
            edge = np.flatnonzero(counts == cut.count)
            ngrams = np.delete(ngrams, edge[quota:], axis=0)
            quota -= min(quota, edge.size)
            if len(ngrams):
                yield ngrams

    def _parts(self, table: OrderCounts, least: int) -> Iterator[KeyCounts]:
        """Yield the n-grams that occur at least `least` times, in the order of `covering`."""
        for power in sorted(table.files, reverse=True):
            if power < least.bit_length() - 1:
                return
            for part in read_run(self.folder / table.files[power], words(table.order)):
                frequent = part.where(part.counts >= least)
                if len(frequent):
                    yield frequent

    def _table(self, order: int) -> OrderCounts:
        if order not in self._tables:
            raise Invalid(f"order {order} was not counted: use one of {sorted(self._tables)}")
        return self._tables[order]


class TableWriter:
    """Writes one order's table from the merged, ascending stream of its n-grams."""

    def __init__(self, folder: Path, order: int, block: int) -> None:
        self._folder, self._order, self._block = folder, order, block
        self._writers: dict[int, RunWriter] = {}
        self._histogram: Counter[int] = Counter()

    def add(self, part: KeyCounts) -> None:
        """Add n-grams that sort after all before. Raises StoreFull, StoreIO."""
        counts, ngrams = np.unique(part.counts, return_counts=True)
        self._histogram.update(dict(zip(counts.tolist(), ngrams.tolist(), strict=True)))
        powers = np.frexp(part.counts.astype(np.float64))[1] - 1  # exact below 2**53 occurrences
        for power in np.unique(powers).tolist():
            self._writer(power).add(part.where(powers == power))

    def close(self) -> OrderCounts:
        """Sync the files and return the table. Raises StoreFull, StoreIO."""
        # Sorted, since the order in which they came depends on the runs that were merged.
        files = {power: self._writers[power].close(durable=True).name for power in sorted(self._writers)}
        return OrderCounts(self._order, dict(sorted(self._histogram.items())), files)

    def _writer(self, power: int) -> RunWriter:
        if power not in self._writers:
            path = self._folder / f"{self._order}-of-2-to-{power}{SUFFIX}"
            self._writers[power] = RunWriter(path, words(self._order), self._block)
        return self._writers[power]


def _cut(table: OrderCounts, alpha: float) -> _Cut | None:
    """Return the cut for `alpha` percent, or None if it selects nothing. Raises Invalid."""
    check_number("alpha", alpha, "pass the percentage of occurrences to cover, 0..100", least=0, most=100)
    if alpha == 0 or not table.histogram:
        return None
    wanted, covered = alpha / 100 * table.total - _SLACK, 0
    for count in sorted(table.histogram, reverse=True):
        ngrams = table.histogram[count]
        if covered + count * ngrams >= wanted:
            quota = max(1, int((wanted - covered) / count))
            while covered + count * quota < wanted:
                quota += 1
            while quota > 1 and covered + count * (quota - 1) >= wanted:
                quota -= 1
            return _Cut(count, quota)
        covered += count * ngrams
    raise AssertionError("100 percent is all n-grams")


def _cut_at(histogram: Mapping[int, int], most: int) -> _Cut | None:
    """Return the cut for the `most` most frequent n-grams, or None if it selects nothing. Raises Invalid."""
    check_number("most", most, "pass the number of n-grams to select, 0 or more", least=0, whole=True)
    if not most:
        return None
    cut, left = None, most
    for count in sorted(histogram, reverse=True):
        if not left:
            break
        cut = _Cut(count, min(left, histogram[count]))
        left -= cut.quota
    return cut


def _int_keys(pairs: dict[str, Any]) -> dict[int, Any]:
    """Convert keys back to integers, which JSON turned into strings."""
    return {int(key): value for key, value in pairs.items()}
