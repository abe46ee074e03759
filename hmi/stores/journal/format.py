"""The objects of a journal: their names, and their bytes.

head            the last position, the last entries, and the names of the objects that hold what came before
parts/<hash>    entries that follow each other
whole/<hash>    some of the records at one position; the head names all objects of that position

Only a compare-and-swap changes the head. Other objects never change, and have the hash of their bytes in
their names. Each object is JSON, compressed with zstandard.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, TypeVar

import xxhash
import zstandard

from hmi.errors import Damaged

FORMAT: Final = 1
HEAD: Final = "head"
PARTS, WHOLE = "parts", "whole"
CURE: Final = "restore it from the bucket's older versions"
_INLINE: Final = 1 << 16
"""The most bytes of entries in the head, which each change writes anew."""
_MOST: Final = 1 << 30
T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """The changes of one transaction."""

    at: int
    """The position. Positions follow each other without gaps."""
    by: str
    """A random token. It tells this transaction from another one that wanted the same position."""
    before: str
    """The token of the entry at the position before."""
    changes: Mapping[str, str | None]
    """Records' bodies by key; None: the record was deleted."""

    @property
    def bytes(self) -> int:
        """About the size of the entry, before compression."""
        return 64 + sum(len(key) + len(body or "") for key, body in self.changes.items())


@dataclass(frozen=True)
class Part:
    """An object with the entries from the position `first` to `last`."""

    name: str
    first: int
    last: int
    bytes: int


@dataclass(frozen=True)
class Whole:
    """All records at one position."""

    at: int
    names: tuple[str, ...]
    bytes: int


@dataclass(frozen=True)
class Head:
    """The state of a journal."""

    journal: str
    """The journal's random id."""
    at: int
    by: str
    """The token of the entry at `at`."""
    whole: Whole
    parts: tuple[Part, ...] = ()
    """From the position after `whole` on."""
    recent: tuple[Entry, ...] = ()
    """From the position after `parts` on."""

    @property
    def names(self) -> set[str]:
        """The names of the objects that the head needs."""
        return {*self.whole.names, *(part.name for part in self.parts)}

    def appended(self, entry: Entry, put: Callable[[str, bytes], None]) -> Head:
        """Return the head with one more entry. `put` stores an object, if the head would become too large."""
        assert (entry.at, entry.before) == (self.at + 1, self.by)
        recent, parts = (*self.recent, entry), self.parts
        if sum(one.bytes for one in recent) > _INLINE:
            data = dump([asdict(one) for one in recent])
            part = Part(named(PARTS, data), recent[0].at, entry.at, len(data))
            put(part.name, data)
            recent, parts = (), (*parts, part)
        return replace(self, at=entry.at, by=entry.by, parts=parts, recent=recent)

    def based_on(self, whole: Whole) -> Head:
        """Return the head without the parts that the records `whole` make needless."""
        return replace(
            self,
            whole=whole,
            parts=tuple(part for part in self.parts if part.last > whole.at),
            recent=tuple(entry for entry in self.recent if entry.at > whole.at),
        )


def named(folder: str, data: bytes) -> str:
    """The name of an object with these bytes."""
    return f"{folder}/{xxhash.xxh3_128_hexdigest(data)}"


def dump(value: Any) -> bytes:
    """The bytes of an object."""
    raw = json.dumps({"format": FORMAT, "value": value}, ensure_ascii=False, separators=(",", ":"))
    return zstandard.ZstdCompressor(level=3).compress(raw.encode())


def dump_head(head: Head) -> bytes:
    return dump(asdict(head))


def parse_head(data: bytes) -> Head:
    """Raises Damaged, also for a journal of a newer release."""

    def parse(raw: dict[str, Any]) -> Head:
        whole = Whole(raw["whole"]["at"], tuple(raw["whole"]["names"]), raw["whole"]["bytes"])
        parts = tuple(Part(**part) for part in raw["parts"])
        head = Head(raw["journal"], raw["at"], raw["by"], whole, parts, tuple(_entries(raw["recent"])))
        last = whole.at
        for first, end in [*((p.first, p.last) for p in parts), *((e.at, e.at) for e in head.recent)]:
            # After a new whole, the first part may begin before it.
            if first != last + 1 and not (last == whole.at and first <= last):
                raise ValueError(f"position {last + 1} is missing")
            last = end
        if last != head.at:
            raise ValueError(f"it ends at position {last}, not at {head.at}")
        return head

    return _parsed(data, HEAD, parse)


def parse_entries(data: bytes, part: Part) -> list[Entry]:
    """Raises Damaged."""
    return _parsed(_checked(data, part.name), part.name, lambda raw: list(_entries(raw)))


def parse_records(data: bytes, name: str) -> dict[str, str]:
    """Raises Damaged."""
    return _parsed(_checked(data, name), name, dict)


def _entries(raw: list[dict[str, Any]]) -> Iterator[Entry]:
    for one in raw:
        yield Entry(one["at"], one["by"], one["before"], dict(one["changes"]))


def _checked(data: bytes, name: str) -> bytes:
    if xxhash.xxh3_128_hexdigest(data) != name.rpartition("/")[2]:
        raise Damaged(f"the journal's object {name} does not match the hash in its name: {CURE}")
    return data


def _parsed(data: bytes, name: str, parse: Callable[[Any], T]) -> T:
    try:
        if zstandard.frame_content_size(data) > _MOST:
            raise ValueError("it claims to be larger than any object of a journal")
        raw = json.loads(zstandard.ZstdDecompressor().decompress(data, max_output_size=_MOST))
        found = raw["format"]
        if type(found) is not int or found > FORMAT:
            raise Damaged(
                f"the journal's object {name} has format {found!r}, and this release reads up to {FORMAT}: "
                "upgrade hmi-server"
            )
        return parse(raw["value"])
    except (zstandard.ZstdError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"the journal's object {name} is damaged ({error}): {CURE}") from error
