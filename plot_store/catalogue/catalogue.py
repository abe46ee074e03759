"""The LMDB catalogue: short transactions over checksummed JSON records. Only this file and `lmdb_errors` know lmdb.

Keys: see docs/plot-format.md. A value is an xxh3-64 of key and JSON, then the JSON, since LMDB itself notices little
damage. LMDB's lock serialises writers across processes. Under the same lock the store renames and registers files, and
checks and unlinks them, so that the two exclude each other.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import lmdb
import xxhash

from plot_store.catalogue import records
from plot_store.catalogue.probe import check_length
from plot_store.database.lmdb_errors import Grow, TableFull, translated
from plot_store.database.writer_lock import WriterLock
from plot_store.ground.errors import Closed, Damaged, Forked, FormatTooNew, NotFound, ReadOnly, StoreIO

FORMAT: Final = 3
FIRST_MAP: Final = 1 << 26
READERS: Final = 4096  # places in the table of transactions that read; a process keeps one, and more for threads
_LONGEST_PAUSE_S: Final = 30.0
_SUM: Final = 8
T = TypeVar("T")


class Txn:
    """One transaction: get, put, delete and list records by key."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def get(self, key: str) -> Any | None:
        """The record's JSON value, None if absent. Raises Damaged."""
        value = self._raw.get(key.encode())
        return None if value is None else _open_value(key.encode(), value)

    def has(self, key: str) -> bool:
        """Whether there is such a record; it is not read."""
        with self._raw.cursor() as cursor:
            return bool(cursor.set_key(key.encode()))

    def put(self, key: str, value: Any) -> None:
        body = records.dump(value)
        self._raw.put(key.encode(), xxhash.xxh3_64_digest(key.encode() + body) + body)

    def delete(self, key: str) -> bool:
        return bool(self._raw.delete(key.encode()))

    def keys(self, prefix: str) -> list[str]:
        """The rest of every key with this prefix, sorted."""
        found: list[str] = []
        with self._raw.cursor() as cursor:
            more = cursor.set_range(prefix.encode())
            while more and cursor.key().startswith(prefix.encode()):
                found.append(cursor.key().decode()[len(prefix) :])
                more = cursor.next()
        return found

    def damaged_keys(self) -> list[str]:
        """Every key whose record does not match its checksum."""
        bad: list[str] = []
        with self._raw.cursor() as cursor:
            for key, value in cursor:
                try:
                    _open_value(key, value)
                except Damaged:
                    bad.append(key.decode(errors="replace"))
        return bad


def _open_value(key: bytes, value: bytes) -> Any:
    body = value[_SUM:]
    if value[:_SUM] != xxhash.xxh3_64_digest(key + body):
        raise Damaged(f"the catalogue's record {key!r} is damaged: restore the store from an export or a backup")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Damaged(
            f"the catalogue's record {key!r} is not JSON ({error}): restore the store from an export or a backup"
        ) from error


class Catalogue:
    """The environment of one store in this process. Raises Forked when used after a fork."""

    def __init__(self, folder: Path, *, create: bool, read_only: bool, first_map: int = FIRST_MAP) -> None:
        self._pid = os.getpid()
        self._gate = threading.Condition()
        self._active = 0
        self._resizing = False
        self._read_only = read_only
        self._folder = folder
        self._writer = WriterLock(folder, f"the store at {folder.parent}")
        if not create and not (folder / "data.mdb").exists():
            raise NotFound(f"there is no PLOT store at {folder.parent}: open it with create=True, or fix the path")
        try:
            with translated("opening the catalogue", folder):
                check_length(folder / "data.mdb")
                self._env: Any = lmdb.open(
                    str(folder), map_size=max(first_map, _size(folder)), create=create, readonly=read_only,
                    **open_options(),
                )  # fmt: skip
        except TableFull as full:
            raise self._too_many() from full
        try:
            self._env.reader_check()  # who died in a transaction since the last opening or change gives up its slot
            self._check_format(create and not read_only)
        except BaseException:
            self._env.close()
            raise

    def _check_format(self, create: bool) -> None:
        found = self.read(lambda txn: txn.get("format"))
        older = found is not None and found["format"] < FORMAT and not self._read_only
        if (found is None and create) or older:
            found = self.write(_stamp)
        if found is None:
            raise Damaged("the catalogue has no format record: restore the store from an export or a backup")
        if found["format"] > FORMAT:
            raise FormatTooNew(
                f"the store has format {found['format']}, this release reads up to {FORMAT}: upgrade the release"
            )

    def read(self, body: Callable[[Txn], T]) -> T:
        """Run `body` in a read transaction; it must not keep anything of it."""
        return self._run(body, write=False)

    def write(self, body: Callable[[Txn], T]) -> T:
        """Run `body` in the one write transaction and commit durably; an exception aborts it.

        `body` may run again after the map has grown, so its effects outside the catalogue must be idempotent.
        """
        if self._read_only:
            raise ReadOnly("the store was opened read-only: open it with read_only=False to change it")
        self._check_process()
        with self._writer.held():  # before `_enter`, so that who waits for another process holds up nothing in this one
            return self._run(body, write=True)

    def _run(self, body: Callable[[Txn], T], *, write: bool) -> T:
        checked = False
        while True:
            self._enter()
            try:
                with translated("using the catalogue", self._folder):
                    if write:
                        self._env.reader_check()  # readers that died keep pages from being used again
                    with self._env.begin(write=write) as raw:
                        return body(Txn(raw))
            except Grow as grow:
                ours = grow.ours
            except TableFull as full:
                if checked:
                    raise self._too_many() from full
                self._env.reader_check()
                checked = True
                continue
            finally:
                self._leave()
            self._resize(ours)

    def _too_many(self) -> StoreIO:
        return StoreIO(
            f"all places for transactions at {self._folder.parent} are taken: run fewer processes; where many were "
            "killed at once, any change by one that has the store open frees their places"
        )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise Forked("this store was opened before a fork: open it again in the child process")

    def _enter(self) -> None:
        self._check_process()
        with self._gate:
            while self._resizing:
                self._gate.wait()
            if self._env is None:
                raise Closed("the store has been closed: open it again")
            self._active += 1

    def _leave(self) -> None:
        with self._gate:
            self._active -= 1
            self._gate.notify_all()

    def _resize(self, ours: bool) -> None:
        """Grow the map (ours: it is full) or take over another process's size, with no transaction of ours open."""
        with self._gate:
            while self._resizing:
                self._gate.wait()
            self._resizing = True
            while self._active:
                self._gate.wait()
            try:
                if self._env is not None:
                    size = self._env.info()["map_size"]
                    self._env.set_mapsize(size * 2 if ours else 0)
            finally:
                self._resizing = False
                self._gate.notify_all()

    def forget_dead_readers(self) -> int:
        """Free the reader slots of processes that died; how many."""
        self._enter()
        try:
            return int(self._env.reader_check())
        finally:
            self._leave()

    def pause(self) -> None:
        """Wait until no transaction of this process runs and let none begin; `resume` ends it.

        Raises StoreIO when one goes on for too long (it may wait for another process); nothing is paused then.
        """
        with self._gate:
            if not self._gate.wait_for(lambda: not self._active and not self._resizing, _LONGEST_PAUSE_S):
                raise StoreIO(
                    f"a transaction at {self._folder.parent} ran for more than {_LONGEST_PAUSE_S:g} s while this "
                    "process forked: use the store only in processes that were spawned, or fork when it is idle"
                )
            self._resizing = True

    def resume(self) -> None:
        with self._gate:
            self._resizing = False
            self._gate.notify_all()

    def abandon(self) -> None:
        """In a child process: drop the parent's environment, so that the child may open one of its own."""
        assert os.getpid() != self._pid
        if self._env is not None:
            self._env.close()
            self._env = None

    def close(self) -> None:
        """Close the environment after the running transactions. In a forked child only forget it."""
        if os.getpid() != self._pid:
            return
        with self._gate:
            while self._active or self._resizing:
                self._gate.wait()
            if self._env is not None:
                self._env.close()
                self._env = None


def open_options() -> dict[str, Any]:
    """How LMDB is opened: every commit is synced, nothing is written through the map."""
    return {"sync": True, "metasync": True, "writemap": False, "readahead": False, "max_readers": READERS}


def _stamp(txn: Txn) -> dict[str, Any]:
    """Record this release's format: what is written from now on, an older release must refuse, not misread."""
    found = txn.get("format") or {"format": 0, "created": time.time()}
    if found["format"] < FORMAT:
        found = {**found, "format": FORMAT}
        txn.put("format", found)
    assert isinstance(found, dict)
    return found


def _size(folder: Path) -> int:
    try:
        return os.stat(folder / "data.mdb").st_size
    except FileNotFoundError:
        return 0
