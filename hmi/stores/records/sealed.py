"""Sealed records: a look-up detects that a record is damaged or lost.

A value is the xxh3-64 of key and body, then the body. Every record has a mark, written and deleted in the
same transaction. The mark is a second record; its key is "=" and the record's key with the high bit of each
byte set. A mark without its record shows that the record was lost. Marks lie in another part of the tree than
their records, in the same order, so that one bad page rarely destroys both.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hmi.errors import Damaged
from plot_store.database.checksum import seal, unseal

MARK = b"="
FORMAT_KEY, FORMAT = b"format", b"2"
"""The record of the format. Format 1 has neither checksums nor marks, and no such record."""
CURE = "restore <data>/registry from a backup"
_HIGH = bytes(b | 0x80 for b in range(256))
_LOW = bytes(b & 0x7F for b in range(256))


class RegistryTxn:
    """One transaction, valid only while its body runs. Keys are ASCII text."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self.changes: dict[str, bytes | None] = {}
        """The changes of the transaction: bodies of records by key. None stands for a deleted record."""

    def get(self, key: str) -> bytes | None:
        """Return a record's body, None if there is none. Raises Damaged if it is damaged or lost."""
        name = key.encode()
        value = self._raw.get(name)
        if value is not None:
            return unsealed(name, value)
        if self._raw.get(mark_of(name)) is not None:
            raise lost(name)
        return None

    def put(self, key: str, value: bytes) -> None:
        self.changes[key] = value
        put(self._raw, key.encode(), value)

    def delete(self, key: str) -> bool:
        """Delete a record. Returns whether it existed, or its mark shows that it did."""
        marked = bool(self._raw.delete(mark_of(key.encode())))
        deleted = bool(self._raw.delete(key.encode())) or marked
        if deleted:
            self.changes[key] = None
        return deleted

    def items(
        self, prefix: str, after: str | None = None, *, tolerant: bool = False
    ) -> Iterator[tuple[str, bytes]]:
        """Records whose key has the prefix, ascending and past `after`. Keys are yielded without the prefix.

        Raises Damaged if one is damaged or lost; a tolerant call skips it.
        """
        head, first = prefix.encode(), (prefix if after is None else prefix + after).encode()
        past = None if after is None else first
        marks = iter(()) if tolerant else _marks(self._raw, head, first, past)
        mark = next(marks, None)
        for name, value in _scan(self._raw, head, first):
            if name == past:
                continue
            if mark is not None and mark < name:
                raise lost(mark)
            if mark == name:
                mark = next(marks, None)
            try:
                body = unsealed(name, value)
            except Damaged:
                if tolerant:
                    continue
                raise
            yield name.decode()[len(prefix) :], body
        if mark is not None:
            raise lost(mark)

    def names_back(self, prefix: str, before: str | None = None) -> Iterator[str]:
        """Keys with the prefix, descending and below `before`. Both are without the prefix.

        Skips damaged records, and does not notice lost ones.
        """
        head = prefix.encode()
        # Keys are ASCII, so every key with the prefix sorts before the prefix followed by the highest byte.
        end = head + (b"\xff" if before is None else before.encode())
        with self._raw.cursor() as cursor:
            more = cursor.prev() if cursor.set_range(end) else cursor.last()
            while more and cursor.key().startswith(head):
                name = cursor.key()
                if unseal(name, cursor.value()) is not None:
                    yield name.decode()[len(prefix) :]
                more = cursor.prev()

    def keys(self, prefix: str, *, tolerant: bool = False) -> list[str]:
        return [key for key, _ in self.items(prefix, tolerant=tolerant)]


def records(raw: Any) -> Iterator[tuple[str, bytes]]:
    """Yield the key and the body of every record but that of the format. Raises Damaged if one is damaged or
    lost."""
    marked: set[bytes] = set()
    for name, value in _scan(raw, b"", b""):
        if name.startswith(MARK):  # marks lie before all records
            if value == seal(name, b""):
                marked.add(_marked(name))
            continue
        marked.discard(name)
        if name != FORMAT_KEY:
            yield name.decode(), unsealed(name, value)
    if marked := marked - {FORMAT_KEY}:
        raise lost(min(marked))


def put(raw: Any, name: bytes, body: bytes) -> None:
    """Write a record and its mark. `raw` is LMDB's own transaction."""
    raw.put(name, seal(name, body))
    raw.put(mark_of(name), seal(mark_of(name), b""), overwrite=False)


def mark_of(name: bytes) -> bytes:
    return MARK + name.translate(_HIGH)


def _marked(mark: bytes) -> bytes:
    """The key of a mark's record."""
    return mark[len(MARK) :].translate(_LOW)


def unsealed(name: bytes, value: bytes) -> bytes:
    """The body. Raises Damaged."""
    body = unseal(name, value)
    if body is None:
        raise Damaged(f"the registry's record {_shown(name)} is damaged: {CURE}")
    return body


def lost(name: bytes) -> Damaged:
    return Damaged(f"the registry has lost its record {_shown(name)}: {CURE}")


def problems(raw: Any) -> list[str]:
    """Check all records of LMDB's transaction `raw`; returns one sentence for each damaged or lost one."""
    found: list[str] = []
    held: set[bytes] = set()
    marked: set[bytes] = set()
    with raw.cursor() as cursor:
        for name, value in cursor:
            if raw.get(name) != value:  # a look-up uses branch pages, which this walk does not read
                found.append(f"the registry's record {_shown(name)} is not found where it lies: {CURE}")
            try:
                unsealed(name, value)
            except Damaged as error:
                found.append(error.message)
                if name.startswith(MARK):
                    continue
            marked.add(_marked(name)) if name.startswith(MARK) else held.add(name)
    found += [lost(name).message for name in sorted(marked - held)]
    return found + [
        f"the registry has lost the mark of its record {_shown(n)}: {CURE}" for n in sorted(held - marked)
    ]


def is_sealed(raw: Any) -> bool:
    """Return whether the table has this format; False if it has format 1 or is empty. Raises Damaged."""
    value = raw.get(FORMAT_KEY)
    if value is not None:
        found = unsealed(FORMAT_KEY, value)
        if found != FORMAT:
            raise Damaged(
                f"the registry has format {_shown(found)}, this release reads 2: upgrade hmi-server"
            )
        return True
    if next(_scan(raw, MARK, MARK), None) is not None:
        raise lost(FORMAT_KEY)
    return False


def upgrade(raw: Any) -> None:
    """Seal every record of a table of format 1, in the transaction `raw`. Idempotent."""
    if is_sealed(raw):
        return
    with raw.cursor() as cursor:
        records = list(cursor)
    for name, value in records:
        put(raw, name, value)
    put(raw, FORMAT_KEY, FORMAT)


def _marks(raw: Any, head: bytes, first: bytes, past: bytes | None) -> Iterator[bytes]:
    """Keys of records that must exist, by their marks. Ignores damaged marks."""
    for name, value in _scan(raw, mark_of(head), mark_of(first)):
        if _marked(name) != past and value == seal(name, b""):
            yield _marked(name)


def _scan(raw: Any, head: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    with raw.cursor() as cursor:
        more = cursor.set_range(first)
        while more and cursor.key().startswith(head):
            yield cursor.key(), cursor.value()
            more = cursor.next()


def _shown(name: bytes) -> str:
    return repr(name.decode("ascii", "backslashreplace"))
