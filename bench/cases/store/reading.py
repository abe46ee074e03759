"""Rows of `bench store`: the fused look-up against a plain gather, and that of rows on the disk against
reading them by default page faults."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from hmi_kernels.lookup.cpu_rows import gather
from numpy.typing import NDArray

from bench.cases.store.chain import BATCH, OFFSETS, REFS, TEXTS_AT_ONCE, Chain, look_up, summed
from bench.cases.store.data import LENGTH
from bench.harness.page_cache import drop_folder
from bench.harness.report import (
    Figure,
    in_turn,
    median_ratio,
    median_seconds,
    paired_ratio,
    rotating,
    seconds,
)
from plot_store import Reader

GATHER = "a prefetching gather of one trigram row a token"


def measure(chain: Chain, runs: int) -> Iterator[Figure]:
    """Yield the look-up rows of one chain. Every row has been read and checked once before it is timed."""
    t, dim = chain.tables, chain.dim
    hits, count = t.batches, len(t.batches)
    plain = copying(chain)
    first = first_use(chain)
    for name, reader, batches, goals, one_text_goals in (
        ("depth_1_hits", chain.shallow, hits, (1.5, 1.25), (40.0, 30.0)),
        ("depth_4_hits", chain.deep, hits, (1.9, 1.5), None),
        ("depth_4_natural", chain.deep, t.natural_batches, (2.2, 1.8), (60.0, 45.0)),
    ):
        work = look_up(reader, batches)
        for i in range(len(batches)):  # checks rows that have not been looked up yet
            work(i)
        value = paired_ratio(rotating(work, len(batches)), rotating(plain, count, count // 2), runs)
        peer = f"{GATHER}; {served(reader, batches)}"
        row = f"fused_over_gather_{name}_d{dim}"
        yield Figure(row, value, "x", goals[0], False, runs, peer, stretch=goals[1])
        if one_text_goals is not None:
            goal, stretch = one_text_goals if dim == 384 else (None, None)  # the goals were set at d = 384
            took = one_text(reader, batches, runs)
            yield Figure(f"one_text_{name}_d{dim}", took, "µs", goal, False, runs, stretch=stretch)
    yield Figure(f"first_use_over_later_d{dim}", first, "x", peer="the same look-ups again")


def copying(chain: Chain) -> Callable[[int], None]:
    """Return the limit to compare with: copying a batch's vectors together from known addresses.

    Raises AssertionError if these are not the rows that a look-up sums.
    """
    rows, numbers = chain.rows(), chain.tables.rows_of
    given = chain.shallow.lookup(chain.tables.batches[0], OFFSETS)[0]
    np.testing.assert_allclose(given, summed(rows.plain(numbers[0]), chain.dim), rtol=1e-4, atol=1e-4)
    addresses = rows.addresses(numbers.ravel()).reshape(numbers.shape)
    out = np.empty((BATCH, rows.vectors_bytes), np.uint8)

    def work(i: int) -> None:
        assert rows.maps  # the addresses point into them, so they must live
        gather(addresses[i], out)

    for i in range(len(addresses)):
        work(i)
    return work


def first_use(chain: Chain) -> float:
    """Return the time of look-ups that check each row for the first time, over that of the same again.

    The times are totals of up to 64 batches.
    """
    some = chain.tables.batches[:64]
    work = look_up(chain.shallow, some)

    def all_of_them() -> None:
        for i in range(len(some)):
            work(i)

    return seconds(all_of_them) / seconds(all_of_them)


def served(reader: Reader, batches: NDArray[np.int32]) -> str:
    """Return which order answered the tokens, in percent, as text."""
    tokens = batches[: min(len(batches), 8)].reshape(-1)
    counts = reader.lookup(tokens, np.arange(0, tokens.size + 1, LENGTH, dtype=np.int64))[1].counts()
    shares = ", ".join(f"{100 * n / tokens.size:.0f}% {name}" for name, n in counts.items() if n)
    return f"{shares} hits"


def one_text(reader: Reader, batches: NDArray[np.int32], runs: int) -> float:
    """Return the median microseconds of `Reader.lookup` for a text of LENGTH tokens.

    A sample is sixteen texts.
    """
    texts = batches.reshape(len(batches), TEXTS_AT_ONCE, LENGTH)
    offsets = np.array([0, LENGTH], np.int64)
    out = np.empty((LENGTH, reader.version.schema.dim), np.float32)

    def sixteen(i: int) -> None:
        for text in texts[i]:
            reader.lookup(text, offsets, out=out)

    return 1e6 * median_seconds(rotating(sixteen, len(batches)), runs) / TEXTS_AT_ONCE


def cold(chain: Chain, runs: int) -> Iterator[Figure]:
    """Time two ways to read a batch from the disk, with its pages dropped before each.

    This closes the chain's readers for good.
    """
    chain.unmap()
    name = f"default_faults_over_cold_lookup_d{chain.dim}"
    why = drop_folder(chain.folder / "segments")
    if why is not None:
        yield Figure(name, None, "x", 10.0, why=why, stretch=20.0)
        return
    ways = {"faults": partial(_default_faults, chain), "lookup": partial(_cold_lookup, chain)}
    count = len(chain.tables.batches)
    times = in_turn({way: rotating(read, count) for way, read in ways.items()}, runs)
    peer = f"a default memory map, {BATCH} rows gathered; wall time"
    yield Figure(name, median_ratio(times, "faults", "lookup"), "x", 10.0, True, runs, peer, stretch=20.0)
    yield Figure(f"cold_lookup_d{chain.dim}", 1e3 * statistics.median(times["lookup"]), "ms", runs=runs)


def _default_faults(chain: Chain, batch: int) -> float:
    drop_folder(chain.folder / "segments")
    rows = chain.rows()
    addresses = rows.addresses(chain.tables.rows_of[batch])
    out = np.empty((BATCH, rows.vectors_bytes), np.uint8)
    return seconds(lambda: gather(addresses, out), time.perf_counter)


def _cold_lookup(chain: Chain, batch: int) -> float:
    drop_folder(chain.folder / "segments")
    tokens = chain.tables.batches[batch]
    out = np.empty((BATCH, chain.dim), np.float32)
    with chain.store.reader(REFS[0]) as reader:

        def read() -> None:
            reader.prefetch(tokens, OFFSETS)
            reader.lookup(tokens, OFFSETS, out=out)

        return seconds(read, time.perf_counter)
