"""Other key-value stores that hold rows on one machine, each read through its fastest public batch call."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import lmdb
import numpy as np
from hmi_kernels.lookup.layout import Bytes

from hmi.errors import Unavailable
from plot_store.ground.files import folder_bytes

Batch = tuple[list[bytes], list[int]]  # one batch's keys, as each peer wants them: made before the clock runs
Gather = Callable[[Batch], Bytes]  # -> uint8 [m, row bytes], a copy that the caller owns
KEYS_A_TRANSACTION = 1 << 14


class Peer(Protocol):
    """A key-value store. Rows are put once, in the order of their keys. `finish` makes them durable."""

    name: str

    def put(self, keys: Sequence[bytes], numbers: Sequence[int], rows: Bytes) -> None: ...

    def finish(self) -> None: ...

    def modes(self) -> dict[str, Gather]:
        """Return ways to read a batch, by name. The measurement uses the fastest."""

    def bytes(self) -> int: ...

    def close(self) -> None: ...


class Lmdb:
    """LMDB: the value of a key is its row, loaded in key order and synced once at the end."""

    name = "LMDB"

    def __init__(self, folder: Path, rows: int, row_bytes: int) -> None:
        self._folder, self._row_bytes = folder, row_bytes
        room = (1 << 28) + rows * (row_bytes * 2 + 2 * 4096)
        self._env: Any = lmdb.open(str(folder), map_size=room, sync=False, metasync=False, readahead=False)
        self._txn: Any = None

    def put(self, keys: Sequence[bytes], numbers: Sequence[int], rows: Bytes) -> None:
        for at in range(0, len(keys), KEYS_A_TRANSACTION):
            some = slice(at, at + KEYS_A_TRANSACTION)
            with self._env.begin(write=True) as txn:
                txn.cursor().putmulti(
                    zip(keys[some], [row.data for row in rows[some]], strict=True), append=True
                )

    def finish(self) -> None:
        self._env.sync(True)
        self._txn = self._env.begin(buffers=True)

    def modes(self) -> dict[str, Gather]:
        cursor = self._txn.cursor()
        get = self._txn.get
        return {
            "get": lambda batch: _joined([get(key) for key in batch[0]], self._row_bytes),
            # getmulti skips missing keys. Here none is missing, or `_joined` would fail.
            "getmulti": lambda batch: _joined(
                [value for _, value in cursor.getmulti(batch[0])], self._row_bytes
            ),
        }

    def bytes(self) -> int:
        return folder_bytes(self._folder)

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
        self._options = self._tuned(2 * rows * row_bytes + (1 << 26))
        folder.mkdir()
        self._aside = folder / "aside.sst"
        self._table = self._rocks.SstFileWriter(options=self._options)
        self._table.open(str(self._aside))
        self._db: Any = None

    def _tuned(self, cache_bytes: int) -> Any:
        rocks = self._rocks
        options, blocks = rocks.Options(raw_mode=True), rocks.BlockBasedOptions()
        options.create_if_missing(True)
        options.set_compression_type(rocks.DBCompressionType.none())
        blocks.set_block_cache(rocks.Cache(cache_bytes))
        blocks.set_data_block_index_type(rocks.DataBlockIndexType.binary_and_hash())
        blocks.set_checksum_type(rocks.ChecksumType.xxh3())
        options.set_block_based_table_factory(blocks)
        return options

    def put(self, keys: Sequence[bytes], numbers: Sequence[int], rows: Bytes) -> None:
        table = self._table
        for key, row in zip(keys, rows, strict=True):
            table[key] = row.tobytes()

    def finish(self) -> None:
        self._table.finish()
        self._db = self._rocks.Rdict(str(self._folder / "db"), self._options)
        take = self._rocks.IngestExternalFileOptions()
        take.set_move_files(True)
        self._db.ingest_external_file([str(self._aside)], take)

    def modes(self) -> dict[str, Gather]:
        get = self._db.get
        return {
            "get": lambda batch: _joined([get(key) for key in batch[0]], self._row_bytes),
            "multi-get": lambda batch: _joined(get(batch[0]), self._row_bytes),
        }

    def bytes(self) -> int:
        return folder_bytes(self._folder)

    def close(self) -> None:
        self._db.close()


class MemmapDict:
    """Rows in a numpy.memmap, and a Python dictionary from key to row number in memory.

    The keys are written to a file beside the rows.
    """

    name = "memmap + dict"

    def __init__(self, folder: Path, rows: int, row_bytes: int) -> None:
        folder.mkdir()
        self._folder, self._shape = folder, (rows, row_bytes)
        self._file, self._keys = (folder / "rows").open("wb"), (folder / "keys").open("wb")
        self._row: dict[int, int] = {}
        self._mapped: Any = None

    def put(self, keys: Sequence[bytes], numbers: Sequence[int], rows: Bytes) -> None:
        start = len(self._row)
        self._row.update(zip(numbers, range(start, start + len(numbers)), strict=True))
        self._file.write(rows.data)
        self._keys.write(np.array(numbers, np.uint64).data)

    def finish(self) -> None:
        for file in (self._file, self._keys):
            file.flush()
            os.fsync(file.fileno())
            file.close()
        self._mapped = np.memmap(self._folder / "rows", np.uint8, "r", shape=self._shape)

    def modes(self) -> dict[str, Gather]:
        row, mapped = self._row, self._mapped
        return {
            "take": lambda batch: np.take(mapped, itemgetter(*batch[1])(row), axis=0),
            "index": lambda batch: np.asarray(mapped[[row[key] for key in batch[1]]]),
        }

    def bytes(self) -> int:
        return folder_bytes(self._folder)

    def close(self) -> None:
        del self._mapped


PEERS: tuple[Callable[[Path, int, int], Peer], ...] = (Lmdb, RocksDb, MemmapDict)


def _joined(values: list[Any], row_bytes: int) -> Bytes:
    """Copy values to one array [values, row_bytes]. Fails if a value is missing."""
    return np.frombuffer(b"".join(values), np.uint8).reshape(-1, row_bytes)
