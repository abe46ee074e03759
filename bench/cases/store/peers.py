"""Rows of `bench store`: the same batches looked up in other stores with the same keys and rows."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from hmi_kernels.lookup.layout import pack_keys

from bench.cases.store.build import build_rows
from bench.cases.store.chain import BATCH, Chain, look_up, rotating, summed
from bench.cases.store.data import LENGTH, VOCAB, trigrams
from bench.cases.store.stores import PEERS, Batch, Gather, Lmdb, Peer
from bench.harness.report import Row, paired_ratio, seconds
from hmi.errors import Unavailable
from plot_store import Schema

CHUNK = 1 << 13
"""Rows given to a peer in one call."""
WARM = 24
"""Batches read before a mode is timed."""


def measure(chain: Chain, folder: Path, runs: int) -> Iterator[Row]:
    """Measure each peer in turn, deleting its files before the next is built."""
    suffix = f"d{chain.dim}"
    ours = build_rows(folder / "ours", chain.tables.root, Schema(dim=chain.dim, vocab=VOCAB))
    took, size = ours.seconds, ours.bytes
    yield _speed(
        "plot_store", suffix, look_up(chain.shallow, chain.tables.batches), len(chain.tables.batches), runs
    )
    for make in PEERS:
        at = folder / "peer"
        try:
            peer = make(at, len(chain.tables.root), chain.rows().plain(np.zeros(1, np.int64)).shape[1])
        except Unavailable as error:
            yield Row(f"{make.__name__.lower()}_{suffix}", None, "x", why=error.message)
            continue
        try:
            spent = fill(peer, chain)
            yield from _compared(peer, chain, runs)
            yield _against(peer, "build_time", spent / took, suffix)
            yield _against(peer, "bytes", peer.bytes() / size, suffix)
        finally:
            peer.close()
            shutil.rmtree(at)


def fill(peer: Peer, chain: Chain) -> float:
    """Put every trigram row of the root into the peer, sorted by key. Returns the peer's own wall seconds."""
    keys = pack_keys(chain.tables.root)[:, 0]
    order, rows = np.argsort(keys), chain.rows()
    spent = 0.0
    for at in range(0, len(order), CHUNK):
        some = order[at : at + CHUNK]
        plain, (packed, numbers) = rows.plain(some), batch_of(keys[some])
        spent += seconds(partial(peer.put, packed, numbers, plain), time.perf_counter)
    return spent + seconds(peer.finish, time.perf_counter)


def batch_of(keys: np.ndarray[tuple[int], np.dtype[np.uint64]]) -> Batch:
    """Return keys as bytes that sort like the numbers, and as Python integers."""
    raw = keys.astype(">u8").tobytes()
    return [raw[i : i + 8] for i in range(0, len(raw), 8)], keys.tolist()


def _compared(peer: Peer, chain: Chain, runs: int) -> Iterator[Row]:
    """Compare the peer's fastest mode with the fused look-up: for the rows alone, and for a look-up's sum."""
    suffix, t = f"d{chain.dim}", chain.tables
    batches = [batch_of(pack_keys(trigrams(tokens.reshape(-1, LENGTH)))[:, 0]) for tokens in t.batches]
    name, read = fastest(peer, batches)
    _check(read, batches[0], chain)
    fused, count = look_up(chain.shallow, t.batches), len(batches)
    rows = paired_ratio(rotating(lambda i: read(batches[i]), count), rotating(fused, count, count // 2), runs)
    whole = paired_ratio(
        rotating(lambda i: summed(read(batches[i]), chain.dim), count),
        rotating(fused, count, count // 2),
        runs,
    )
    goal, stretch = (8.0, 10.0) if isinstance(peer, Lmdb) else (None, None)
    slug = _slug(peer)
    against = f"{peer.name} ({name}), rows gathered only, over the fused look-up, rows summed"
    yield Row(
        f"{slug}_rows_over_fused_{suffix}", round(rows, 2), "x", goal, True, runs, against, stretch=stretch
    )
    against = f"{peer.name} ({name}) and numpy for the sum"
    yield Row(f"{slug}_sums_over_fused_{suffix}", round(whole, 2), "x", runs=runs, peer=against)
    yield _speed(slug, suffix, lambda i: read(batches[i]), count, runs)


def fastest(peer: Peer, batches: list[Batch]) -> tuple[str, Gather]:
    """Return a peer's fastest mode, by the median of some batches after others have warmed its caches."""
    modes = peer.modes()
    some = batches[: 2 * WARM]
    medians: dict[str, float] = {}
    for name, read in modes.items():
        for batch in batches:
            read(batch)
        medians[name] = statistics.median(seconds(partial(read, batch)) for batch in some)
    best = min(medians, key=lambda name: medians[name])
    return best, modes[best]


def _check(read: Gather, batch: Batch, chain: Chain) -> None:
    """Check that the peer returns the rows that it was given. Raises AssertionError."""
    wanted = chain.rows().plain(chain.tables.rows_of[0])
    np.testing.assert_array_equal(read(batch), wanted)


def _speed(name: str, suffix: str, work: Callable[[int], object], count: int, runs: int) -> Row:
    turn = rotating(work, count)
    turn()
    took = statistics.median(seconds(turn) for _ in range(runs))
    return Row(f"{name}_lookups_{suffix}", round(BATCH / took), "/s", runs=runs)


def _against(peer: Peer, what: str, value: float, suffix: str) -> Row:
    about = f"{peer.name}, given quantised rows; ours quantises float32, too"
    return Row(f"{_slug(peer)}_{what}_over_ours_{suffix}", round(value, 3), "x", runs=1, peer=about)


def _slug(peer: Peer) -> str:
    return type(peer).__name__.lower()
