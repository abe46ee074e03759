"""Rows of `bench store`: the same batches in other key-value stores with the same keys and rows, each read
through its fastest public batch call."""

from __future__ import annotations

import importlib
import os
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import lmdb
import numpy as np
from hmi_kernels.lookup.layout import Bytes, pack_keys
from numpy.typing import NDArray

from bench.cases.store.chain import BATCH, SCALES, Chain, look_up, summed
from bench.cases.store.data import LENGTH, trigrams
from bench.cases.store.writing import build_rows
from bench.harness.report import Figure, in_turn, median_seconds, paired_ratio, rotating, seconds
from hmi.errors import Unavailable
from plot_store.ground.files import folder_bytes

Keys = list[bytes]
Gather = Callable[[Keys], Bytes]
"""Returns rows, uint8 [m, row bytes]: a copy that the caller owns."""
KEYS_AT_ONCE = 1 << 13
"""Rows given to a peer in one call."""
WARM = 24
"""Batches that a mode is timed with."""


class StorePeer(Protocol):
    """A key-value store in a folder. Rows are put once, in the order of their keys; `finish` syncs them."""

    name: str

    def put(self, keys: Keys, rows: Bytes) -> None: ...

    def finish(self) -> None: ...

    def modes(self) -> dict[str, Gather]:
        """Return ways to read a batch, by name. The measurement uses the fastest."""

    def close(self) -> None: ...


class Lmdb:
    """LMDB: the value of a key is its row, loaded in key order and synced once at the end."""

    name = "LMDB"

    def __init__(self, folder: Path, rows: int, row_bytes: int) -> None:
        self._row_bytes = row_bytes
        room = (1 << 28) + rows * (row_bytes * 2 + 2 * 4096)
        self._env: Any = lmdb.open(str(folder), map_size=room, sync=False, metasync=False, readahead=False)

    def put(self, keys: Keys, rows: Bytes) -> None:
        with self._env.begin(write=True) as txn:
            txn.cursor().putmulti(zip(keys, [row.data for row in rows], strict=True), append=True)

    def finish(self) -> None:
        self._env.sync(True)
        self._txn = self._env.begin(buffers=True)

    def modes(self) -> dict[str, Gather]:
        get, getmulti = self._txn.get, self._txn.cursor().getmulti
        return {
            "get": lambda keys: _joined([get(key) for key in keys], self._row_bytes),
            # getmulti skips missing keys. Here none is missing, or `_check` would fail.
            "getmulti": lambda keys: _joined([value for _, value in getmulti(keys)], self._row_bytes),
        }

    def close(self) -> None:
        self._txn.abort()
        self._env.close()


class RocksDb:
    """RocksDB through rocksdict: one sorted table, written aside and ingested, all in the block cache."""

    name = "RocksDB"

    def __init__(self, folder: Path, rows: int, row_bytes: int) -> None:
        self._folder, self._row_bytes = folder, row_bytes
        try:
            self._rocks: Any = importlib.import_module("rocksdict")
        except ImportError as error:
            raise Unavailable("rocksdict is not installed: pip install 'hmi-server[bench]'") from error
        rocks = self._rocks
        self._options, blocks = rocks.Options(raw_mode=True), rocks.BlockBasedOptions()
        self._options.create_if_missing(True)
        self._options.set_compression_type(rocks.DBCompressionType.none())
        blocks.set_block_cache(rocks.Cache(2 * rows * row_bytes + (1 << 26)))
        blocks.set_data_block_index_type(rocks.DataBlockIndexType.binary_and_hash())
        blocks.set_checksum_type(rocks.ChecksumType.xxh3())
        self._options.set_block_based_table_factory(blocks)
        folder.mkdir()
        self._table = rocks.SstFileWriter(options=self._options)
        self._table.open(str(folder / "aside.sst"))

    def put(self, keys: Keys, rows: Bytes) -> None:
        for key, row in zip(keys, rows, strict=True):
            self._table[key] = row.tobytes()

    def finish(self) -> None:
        self._table.finish()
        self._db = self._rocks.Rdict(str(self._folder / "db"), self._options)
        take = self._rocks.IngestExternalFileOptions()
        take.set_move_files(True)
        self._db.ingest_external_file([str(self._folder / "aside.sst")], take)

    def modes(self) -> dict[str, Gather]:
        get = self._db.get
        return {
            "get": lambda keys: _joined([get(key) for key in keys], self._row_bytes),
            "multi-get": lambda keys: _joined(get(keys), self._row_bytes),
        }

    def close(self) -> None:
        self._db.close()


class MemmapDict:
    """Rows in a numpy.memmap, and a Python dictionary in memory from key to row number.

    The keys are written to a file beside the rows.
    """

    name = "memmap + dict"

    def __init__(self, folder: Path, rows: int, row_bytes: int) -> None:
        folder.mkdir()
        self._path, self._shape = folder / "rows", (rows, row_bytes)
        self._files = [(folder / name).open("wb") for name in ("rows", "keys")]
        self._row: dict[bytes, int] = {}

    def put(self, keys: Keys, rows: Bytes) -> None:
        start = len(self._row)
        self._row.update(zip(keys, range(start, start + len(keys)), strict=True))
        for file, data in zip(self._files, (rows.tobytes(), b"".join(keys)), strict=True):
            file.write(data)

    def finish(self) -> None:
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self._mapped = np.memmap(self._path, np.uint8, "r", shape=self._shape)

    def modes(self) -> dict[str, Gather]:
        row, mapped = self._row, self._mapped
        return {
            "take": lambda keys: np.take(mapped, itemgetter(*keys)(row), axis=0),
            "index": lambda keys: np.asarray(mapped[[row[key] for key in keys]]),
        }

    def close(self) -> None:
        del self._mapped


PEERS: tuple[Callable[[Path, int, int], StorePeer], ...] = (Lmdb, RocksDb, MemmapDict)


def _joined(values: Sequence[Any], row_bytes: int) -> Bytes:
    """Copy values to one array [values, row_bytes]. Fails if a value is missing."""
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, row_bytes)


def measure(chain: Chain, folder: Path, runs: int) -> Iterator[Figure]:
    """Measure each peer in turn, deleting its files before the next is built."""
    root, dim = chain.tables.root, chain.dim
    ours = build_rows(folder / "ours", root, dim)
    yield _speed("plot_store", chain, look_up(chain.shallow, chain.tables.batches), runs)
    for make in PEERS:
        slug, at = make.__name__.lower(), folder / "peer"
        try:
            peer = make(at, len(root), SCALES + chain.rows().vectors_bytes)
        except Unavailable as error:
            yield Figure(f"{slug}_d{dim}", None, "x", why=error.message)
            continue
        about = f"{peer.name}, given quantised rows; ours quantises float32, too"
        try:
            spent = fill(peer, chain)
            yield from _compared(peer, slug, chain, runs)
            yield Figure(f"{slug}_build_time_over_ours_d{dim}", spent / ours.seconds, "x", runs=1, peer=about)
            size = folder_bytes(at) / ours.bytes
            yield Figure(f"{slug}_bytes_over_ours_d{dim}", size, "x", runs=1, peer=about)
        finally:
            peer.close()
            shutil.rmtree(at)


def fill(peer: StorePeer, chain: Chain) -> float:
    """Put every trigram row of the root into the peer, sorted by key. Returns the peer's own wall seconds."""
    numbers = pack_keys(chain.tables.root)[:, 0]
    order, rows, spent = np.argsort(numbers), chain.rows(), 0.0
    for at in range(0, len(order), KEYS_AT_ONCE):
        some = order[at : at + KEYS_AT_ONCE]
        put = partial(peer.put, keys_of(numbers[some]), rows.plain(some))
        spent += seconds(put, time.perf_counter)
    return spent + seconds(peer.finish, time.perf_counter)


def keys_of(numbers: NDArray[np.uint64]) -> Keys:
    """Return keys as bytes that sort like the numbers."""
    raw = numbers.astype(">u8").tobytes()
    return [raw[i : i + 8] for i in range(0, len(raw), 8)]


def _compared(peer: StorePeer, slug: str, chain: Chain, runs: int) -> Iterator[Figure]:
    """Compare the peer's fastest mode with the fused look-up: for the rows alone, and for a look-up's sum."""
    t, dim, count = chain.tables, chain.dim, len(chain.tables.batches)
    batches = [keys_of(pack_keys(trigrams(tokens.reshape(-1, LENGTH)))[:, 0]) for tokens in t.batches]
    name, read = fastest(peer, batches)
    np.testing.assert_array_equal(read(batches[0]), chain.rows().plain(t.rows_of[0]))
    fused = rotating(look_up(chain.shallow, t.batches), count, count // 2)
    rows = paired_ratio(rotating(lambda i: read(batches[i]), count), fused, runs)
    sums = paired_ratio(rotating(lambda i: summed(read(batches[i]), dim), count), fused, runs)
    goal, stretch = (8.0, 10.0) if isinstance(peer, Lmdb) else (None, None)
    about = f"{peer.name} ({name}), rows gathered only, over the fused look-up, rows summed"
    yield Figure(f"{slug}_rows_over_fused_d{dim}", rows, "x", goal, True, runs, about, stretch=stretch)
    about = f"{peer.name} ({name}) and numpy for the sum"
    yield Figure(f"{slug}_sums_over_fused_d{dim}", sums, "x", runs=runs, peer=about)
    yield _speed(slug, chain, lambda i: read(batches[i]), runs)


def fastest(peer: StorePeer, batches: list[Keys]) -> tuple[str, Gather]:
    """Return a peer's fastest mode, by the median of some batches after all have warmed its caches."""
    modes = peer.modes()
    for read in modes.values():
        for keys in batches:
            read(keys)

    def works_of(read: Gather) -> Callable[[], float]:
        return partial(seconds, rotating(lambda i: read(batches[i]), len(batches)))

    times = in_turn({name: works_of(read) for name, read in modes.items()}, WARM)
    best = min(times, key=lambda name: statistics.median(times[name]))
    return best, modes[best]


def _speed(name: str, chain: Chain, work: Callable[[int], object], runs: int) -> Figure:
    took = median_seconds(rotating(work, len(chain.tables.batches)), runs)
    return Figure(f"{name}_lookups_d{chain.dim}", round(BATCH / took), "/s", runs=runs)
