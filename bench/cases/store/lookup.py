"""Rows of `bench store`: the fused look-up of a batch and of one text, against a plain gather."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator

import numpy as np
from hmi_kernels.lookup.gather import gather
from numpy.typing import NDArray

from bench.cases.store.chain import BATCH, TEXTS_AT_ONCE, Chain, FlatRows, look_up, rotating, summed
from bench.cases.store.data import LENGTH
from bench.harness.report import Row, paired_ratio, seconds
from plot_store import Reader

GATHER = "a prefetching gather of one trigram row a token"


def measure(chain: Chain, runs: int) -> Iterator[Row]:
    """Yield the look-up rows of one chain. Every row has been read and checked once before it is timed."""
    t, suffix = chain.tables, f"d{chain.dim}"
    hits, natural = t.batches, t.natural_batches
    rows = chain.rows()
    check(chain, rows)
    plain, count = copying(rows, t.rows_of), len(hits)
    cold = first_use(chain, hits)
    cases = [
        ("depth_1_hits", chain.shallow, hits, 1.5, 1.25),
        ("depth_4_hits", chain.deep, hits, 1.9, 1.5),
        ("depth_4_natural", chain.deep, natural, 2.2, 1.8),
    ]
    for name, reader, batches, goal, stretch in cases:
        work = look_up(reader, batches)
        for i in range(len(batches)):  # checks rows that have not been looked up yet
            work(i)
        value = paired_ratio(rotating(work, len(batches)), rotating(plain, count, count // 2), runs)
        peer = f"{GATHER}; {served(reader, batches)}"
        yield Row(
            f"fused_over_gather_{name}_{suffix}",
            round(value, 3),
            "x",
            goal,
            False,
            runs,
            peer,
            stretch=stretch,
        )
    yield Row(
        f"gather_one_row_{suffix}", round(1e9 * _median(plain, count, runs) / BATCH, 1), "ns", runs=runs
    )
    yield Row(
        f"first_use_over_later_{suffix}", round(cold, 3), "x", runs=count, peer="the same look-ups again"
    )
    # The absolute goals were set at d = 384.
    at_384 = chain.dim == 384
    for name, reader, batches, goal, stretch in (
        ("depth_1_hits", chain.shallow, hits, 40.0, 30.0),
        ("depth_4_natural", chain.deep, natural, 60.0, 45.0),
    ):
        took = one_text(reader, batches, runs)
        wanted = (goal, stretch) if at_384 else (None, None)
        yield Row(
            f"one_text_{name}_{suffix}", round(took, 1), "µs", wanted[0], False, runs, stretch=wanted[1]
        )


def check(chain: Chain, rows: FlatRows) -> None:
    """Check that both sides of the comparison read the same rows. Raises AssertionError."""
    numbers, tokens = chain.tables.rows_of[0], chain.tables.batches[0]
    wanted = summed(rows.plain(numbers), chain.dim)
    for reader in (chain.shallow, chain.deep):
        # If a branch stores the trigram as well, the branch's vector is used.
        given, found = reader.lookup(tokens, np.arange(TEXTS_AT_ONCE + 1, dtype=np.int64) * LENGTH)
        assert (found.order == 3).all()
        last = len(reader.chain) - 1
        own = (found.depth == last).reshape(TEXTS_AT_ONCE, LENGTH)
        whole = own & np.pad(own, ((0, 0), (1, 0)), constant_values=True)[:, :-1]
        whole &= np.pad(own, ((0, 0), (0, 1)), constant_values=True)[:, 1:]
        assert whole.any()
        np.testing.assert_allclose(given[whole.ravel()], wanted[whole.ravel()], rtol=1e-4, atol=1e-4)


def copying(rows: FlatRows, numbers: NDArray[np.int64]) -> Callable[[int], object]:
    """Return the limit to compare with: copying a batch's vectors together from known addresses."""
    addresses = rows.addresses(numbers.ravel()).reshape(numbers.shape)
    out = np.empty((BATCH, rows.vectors_bytes), np.uint8)

    def work(i: int) -> object:
        # This keeps `rows` alive, since the addresses point into its mappings.
        assert rows.maps
        gather(addresses[i], out)
        return out

    for i in range(len(addresses)):
        work(i)
    return work


def first_use(chain: Chain, batches: NDArray[np.int32]) -> float:
    """Return the time of look-ups that check each row for the first time, divided by that of the same
    look-ups again.

    The times are totals of up to 64 batches.
    """
    some = batches[:64]
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

    return 1e6 * _median(sixteen, len(batches), runs) / TEXTS_AT_ONCE


def _median(work: Callable[[int], object], count: int, runs: int) -> float:
    """Return the median CPU seconds of `work` over rotating batches."""
    turn = rotating(work, count)
    turn()
    return statistics.median(seconds(turn) for _ in range(runs))
