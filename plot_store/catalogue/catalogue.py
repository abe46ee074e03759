"""The catalogue: short transactions over checksummed JSON records.

docs/plot-format.md lists the keys. LMDB's lock serialises writers across processes. The store also renames
and unlinks segment files inside write transactions, so the two exclude each other.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from plot_store.catalogue import records
from plot_store.database.checksum import seal, unseal
from plot_store.database.database import Database
from plot_store.database.lmdb_errors import DatabaseLabel
from plot_store.ground.errors import Damaged, FormatTooNew, NotFound
from plot_store.ground.files import io_error

FORMAT: Final = 5  # the catalogue's own; segments and archives have formats of theirs
ERASING_CATALOGUE_FORMAT: Final = 6  # of a catalogue that has records of erased segments
FIRST_MAP: Final = 1 << 26
CURE: Final = "restore the store from an export or a backup"
T = TypeVar("T")


class CatalogueTxn:
    """A transaction on the catalogue: get, put, delete and list JSON records by key."""

    def __init__(self, raw: Any, *, writes: bool = False) -> None:
        self._raw, self._writes = raw, writes

    @property
    def commit(self) -> int:
        """The number of the last commit that this transaction sees. Each commit of any process adds one.

        Do not compare it with a number from an earlier opening: a copy of a store counts anew.
        """
        return int(self._raw.id()) - self._writes  # a write transaction has the number of its own commit

    def get(self, key: str) -> Any | None:
        """Return the record's JSON value, or None if it is absent. Raises Damaged."""
        value = self._raw.get(key.encode())
        return None if value is None else _open_value(key.encode(), value)

    def raw(self, key: str) -> bytes | None:
        """Return the record's stored bytes, or None if it is absent. Parses nothing."""
        value = self._raw.get(key.encode())
        return None if value is None else bytes(value)

    def has(self, key: str) -> bool:
        """Return whether the record exists. Does not read or check it."""
        with self._raw.cursor() as cursor:
            return bool(cursor.set_key(key.encode()))

    def has_any(self, prefix: str) -> bool:
        """Return whether a record's key has this prefix."""
        with self._raw.cursor() as cursor:
            return bool(cursor.set_range(prefix.encode())) and cursor.key().startswith(prefix.encode())

    def put(self, key: str, value: Any) -> None:
        """Write a record. Raises Invalid if the value is not JSON."""
        body = records.dump(value)
        self._raw.put(key.encode(), seal(key.encode(), body))

    def delete(self, key: str) -> bool:
        """Remove a record. Returns whether it existed."""
        return bool(self._raw.delete(key.encode()))

    def keys(self, prefix: str) -> list[str]:
        """Return all keys with this prefix, sorted, without the prefix."""
        skipped = len(prefix.encode())
        return [key[skipped:].decode() for key in self.raw_keys(prefix)]

    def raw_keys(self, prefix: str) -> list[bytes]:
        """Return all keys with this prefix, sorted, as stored."""
        found: list[bytes] = []
        start = prefix.encode()
        with self._raw.cursor() as cursor:
            if cursor.set_range(start):
                for key in cursor.iternext(keys=True, values=False):
                    if not key.startswith(start):
                        break
                    found.append(key)
        return found

    def raw_items(self, prefix: str) -> list[tuple[bytes, bytes]]:
        """Return key and value of all records with this prefix, sorted, as stored. Parses nothing."""
        found: list[tuple[bytes, bytes]] = []
        start = prefix.encode()
        with self._raw.cursor() as cursor:
            if cursor.set_range(start):
                for item in cursor.iternext(keys=True, values=True):
                    if not item[0].startswith(start):
                        break
                    found.append(item)
        return found

    def damaged_keys(self) -> list[str]:
        """Return the keys of all records that do not match their checksum."""
        bad: list[str] = []
        with self._raw.cursor() as cursor:
            for key, value in cursor:
                try:
                    _open_value(key, value)
                except Damaged:
                    bad.append(key.decode(errors="replace"))
        return bad


def _open_value(key: bytes, value: bytes) -> Any:
    body = unseal(key, value)
    if body is None:
        raise Damaged(f"the catalogue's record {key!r} is damaged: {CURE}")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"the catalogue's record {key!r} is not JSON ({error}): {CURE}") from error


class Catalogue:
    """The catalogue database of one store in this process. Raises Forked if used after a fork."""

    def __init__(self, folder: Path, *, create: bool, read_only: bool, first_map: int = FIRST_MAP) -> None:
        if not create and not (folder / "data.mdb").exists():
            raise NotFound(
                f"there is no PLOT store at {folder.parent}: open it with create=True, or fix the path"
            )
        label = DatabaseLabel("the catalogue", f"the store at {folder.parent}", CURE)
        self._database = Database(folder, label, create=create, read_only=read_only, first_map=first_map)
        try:
            self._check_format(create and not read_only, read_only)
        except BaseException:
            self._database.close()
            raise

    def _check_format(self, create: bool, read_only: bool) -> None:
        found = self.read(lambda txn: txn.get("format"))
        older = found is not None and found["format"] < FORMAT and not read_only
        if (found is None and create) or older:
            found = self.write(lambda txn: stamp(txn, FORMAT))
        if found is None:
            raise Damaged(f"the catalogue has no format record: {CURE}")
        if found["format"] > ERASING_CATALOGUE_FORMAT:
            raise FormatTooNew(
                f"the store has format {found['format']}, this release reads up to "
                f"{ERASING_CATALOGUE_FORMAT}: upgrade the release"
            )

    def read(self, body: Callable[[CatalogueTxn], T]) -> T:
        """Run `body` in a read transaction. It must not keep a reference to the transaction."""
        try:
            return self._database.read(lambda raw: body(CatalogueTxn(raw)))
        except OSError as error:
            raise io_error(error, "using the catalogue") from error

    def follow(self, body: Callable[[CatalogueTxn], T]) -> T:
        """Run `read` for a caller that waits for changes. Raises Closed if the file is not in its place."""
        self._database.check_place()
        return self.read(body)

    def write(self, body: Callable[[CatalogueTxn], T]) -> T:
        """Run `body` in a write transaction and commit durably; see `Database.write`."""
        try:
            return self._database.write(lambda raw: body(CatalogueTxn(raw, writes=True)))
        except OSError as error:
            raise io_error(error, "using the catalogue") from error

    def copy(self, folder: Path, look: Callable[[CatalogueTxn], T]) -> T:
        """Write a copy of one snapshot into the empty `folder`; see `Database.copy`."""
        return self._database.copy(folder, lambda raw: look(CatalogueTxn(raw)))

    def forget_dead_readers(self) -> int:
        """See `Database.forget_dead_readers`."""
        return self._database.forget_dead_readers()

    def abandon(self) -> None:
        """See `Database.abandon`."""
        self._database.abandon()

    def close(self) -> None:
        """See `Database.close`."""
        self._database.close()


def stamp(txn: CatalogueTxn, number: int) -> dict[str, Any]:
    """Record that a store has at least this format, so that older releases refuse it. Returns the record."""
    found: dict[str, Any] = txn.get("format") or {"format": 0, "created": time.time()}
    if found["format"] < number:
        found = {**found, "format": number}
        txn.put("format", found)
    return found
