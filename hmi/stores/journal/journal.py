"""`Journal`: the changes of a registry, one after the other, in object storage.

A change is appended by a compare-and-swap of the journal's head. So of two writers that follow the same
position, one succeeds, and the other finds the head changed. A writer that was paused for however long
changes nothing, since it holds the tag of a head that is gone. No clock and no lease decides.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Final

from hmi.errors import Damaged, NotFound, Unavailable
from hmi.stores.journal import format as fmt
from hmi.stores.journal.format import Entry, Head, Whole
from hmi.stores.plot.plots import as_hmi
from plot_store import PlotStoreError
from plot_store.remote.objects import Objects, open_objects, threaded

log = logging.getLogger("hmi.stores")
_PIECE: Final = 8 << 20
"""About the bytes of records in one object."""
_LEAST: Final = 1 << 20
"""Bytes of parts from which on all records are written anew, so that a new node need not read the parts."""
_AGE_S: Final = 3600.0
"""Objects that no head names are removed when they are older than this, by the clock of the place."""


class Gone(Exception):
    """The journal no longer has the entries after this position, only all records of a later one."""


class Missing(Damaged):
    """The journal lacks an object that a head names. Another node may have removed it after a change."""


class Journal:
    """The journal at one place. Thread-safe. Every method raises Unavailable if the place does not answer."""

    def __init__(self, url: str) -> None:
        """Raises InvalidInput for a URL that names no place. Nothing is contacted yet."""
        with _errors():
            self._objects: Objects = open_objects(url)
        self.place = self._objects.place

    def head(self) -> tuple[Head, str] | None:
        """Return the head and its tag; None if there is no journal yet. Raises Damaged."""
        with _errors():
            found = self._objects.get(fmt.HEAD)
        return None if found is None else (fmt.parse_head(found[0]), found[1])

    def need_head(self) -> tuple[Head, str]:
        """The same. Raises Unavailable if there is no journal: a folder may not be mounted."""
        found = self.head()
        if found is None:
            raise Unavailable(
                f"the journal's head is gone from {self.place}: mount the folder, or restore the head from "
                "the bucket's older versions"
            )
        return found

    def begin(self, records: Mapping[str, str]) -> None:
        """Make a journal whose first position has these records, unless another node made one meanwhile."""
        head = Head(secrets.token_hex(16), 0, secrets.token_hex(16), self._put_records(0, records))
        with _errors():
            self._objects.swap(fmt.HEAD, fmt.dump_head(head), None)
            # A server that ignores the condition would let two writers lose each other's changes.
            for tag in (None, '"00000000000000000000000000000000"'):
                if self._objects.swap(fmt.HEAD, fmt.dump_head(head), tag):
                    raise Damaged(
                        f"{self.place} ignores the condition of a put (If-None-Match, If-Match), so two "
                        "nodes could lose each other's changes: use a server that keeps it"
                    )

    def append(self, head: Head, tag: str, entry: Entry) -> bool:
        """Append an entry to this head. Returns False if another one came first.

        After Unavailable the outcome is unknown.
        """
        with _errors():
            new = head.appended(entry, lambda name, data: self._objects.put(name, memoryview(data)))
            try:
                done = self._objects.swap(fmt.HEAD, fmt.dump_head(new), tag)
            except PlotStoreError:
                if self._has(entry):
                    return True
                raise
        # A library may have sent the request twice, and then reports that the second one found a change.
        return done or self._has(entry)

    def _has(self, entry: Entry) -> bool:
        head, _ = self.need_head()
        if head.at < entry.at:
            return False
        try:
            return next(iter(self.entries(head, entry.at - 1))).by == entry.by
        except Gone:
            log.warning("a change of the registry has an unknown outcome: its entry is no longer kept")
            return False

    def entries(self, head: Head, after: int) -> Iterator[Entry]:
        """Yield the entries from the position `after` + 1 on. Raises Gone, Missing, Damaged."""
        if after < head.whole.at and not any(part.first <= after + 1 for part in head.parts):
            raise Gone
        parts = [part for part in head.parts if part.last > after]
        for part, data in zip(parts, self._read_all([part.name for part in parts]), strict=True):
            yield from (one for one in fmt.parse_entries(data, part) if one.at > after)
        yield from (one for one in head.recent if one.at > after)

    def records(self, whole: Whole) -> dict[str, str]:
        """Return all records at one position. Raises Missing, Damaged."""
        pieces = zip(whole.names, self._read_all(whole.names), strict=True)
        return dict(chain.from_iterable(fmt.parse_records(data, name).items() for name, data in pieces))

    def state(self) -> dict[str, str]:
        """Return all records as of now. Raises Damaged; NotFound if there is no journal."""
        found = self.head()
        if found is None:
            raise NotFound(f"there is no journal at {self.place}: check the address")
        state = self.records(found[0].whole)
        for entry in self.entries(found[0], found[0].whole.at):
            for key, body in entry.changes.items():
                if body is None:
                    state.pop(key, None)
                else:
                    state[key] = body
        return state

    def is_due(self, head: Head) -> bool:
        """Return whether a new node would read too many entries."""
        return sum(part.bytes for part in head.parts) > max(_LEAST, head.whole.bytes)

    def rebase(self, at: int, records: Mapping[str, str]) -> None:
        """Let the journal begin with these records, which are those at the position `at`, and remove what
        nobody needs then. Does nothing if another node comes first."""
        whole = self._put_records(at, records)
        head, tag = self.need_head()
        if head.whole.at >= at or head.at < at:
            return
        with _errors():
            if self._objects.swap(fmt.HEAD, fmt.dump_head(head.based_on(whole)), tag):
                self._tidy()

    def _tidy(self) -> None:
        """Remove old objects that the head does not need.

        A writer may have stored an object for a head to come. If it is so slow that its object counts as old,
        its head has changed meanwhile, and its swap fails.
        """
        head, _ = self.need_head()
        listed = [one for folder in (fmt.PARTS, fmt.WHOLE) for one in self._objects.listed(folder)]
        newest = max((one.modified for one in listed), default=0.0)
        old = [one.name for one in listed if one.modified < newest - _AGE_S and one.name not in head.names]
        self._objects.remove(old)

    def _put_records(self, at: int, records: Mapping[str, str]) -> Whole:
        names, size = [], 0
        with _errors():
            for piece in _pieces(records):
                data = fmt.dump(piece)
                names.append(fmt.named(fmt.WHOLE, data))
                size += len(data)
                self._objects.put(names[-1], memoryview(data))
        return Whole(at, tuple(names), size)

    def _read_all(self, names: Sequence[str]) -> Iterator[bytes]:
        """Yield the bytes of objects, in order. Raises Missing."""
        with _errors():
            for name, found in zip(names, threaded(self._objects.get, names), strict=True):
                if found is None:
                    raise Missing(f"the journal's object {name} is missing at {self.place}: {fmt.CURE}")
                yield found[0]


def _pieces(records: Mapping[str, str]) -> Iterator[dict[str, str]]:
    piece, size = dict[str, str](), 0
    for key, body in records.items():
        piece[key] = body
        size += len(key) + len(body)
        if size >= _PIECE:
            yield piece
            piece, size = {}, 0
    if piece:
        yield piece


@contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except PlotStoreError as error:
        raise as_hmi(error) from error
