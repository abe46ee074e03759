"""A registry that several nodes share: each node's database follows one journal.

A change first goes to the journal, and then into this node's database, both inside one write transaction of
the database. If the process dies in between, the database takes the change from the journal later, as it
takes those of other nodes.
"""

from __future__ import annotations

import json
import logging
import random
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeVar

from hmi.errors import Conflict, Damaged, HmiError, InvalidInput, Unavailable
from hmi.stores.journal.format import Entry, Head
from hmi.stores.journal.journal import Gone, Journal, Missing
from hmi.stores.records.claims import Fence, by_primary
from hmi.stores.records.nodes import NODE, PRIMARY, new_node
from hmi.stores.records.sealed import RegistryTxn, records
from hmi.stores.records.table import KEY_USED
from plot_store.database.database import Database

log = logging.getLogger("hmi.stores")
POSITION: Final = "journal"
"""The key of the record that says which journal the database follows, and up to where."""
LOCAL: Final = (POSITION, NODE, KEY_USED)
"""The beginnings of the keys of records that other nodes do not get."""
_TURNS: Final = 50
"""Attempts of one change. One fails only if another node's change came first, or removed what it read."""
_PAUSE_S: Final = 0.05
"""The longest pause between two of them."""
_AWAY_S: Final = 5.0
"""Seconds after a failure for which changes are refused at once. An attempt may wait long for an answer, and
it holds the write lock meanwhile."""
T = TypeVar("T")


@dataclass(frozen=True)
class Position:
    """The last change of a journal that a database has."""

    journal: str
    at: int
    by: str


class _Moved(Exception):
    """Another node's change came first."""


@dataclass(frozen=True)
class _News:
    """The part of a journal that a database lacks: entries, or all records if the entries are gone."""

    entries: Sequence[Entry]
    whole: Mapping[str, str] | None


def position_of(raw: Any) -> Position | None:
    """Return the position of a database; None if it follows no journal. `raw` is LMDB's transaction."""
    found = RegistryTxn(raw).get(POSITION)
    return None if found is None else Position(**json.loads(found))


class Journaled:
    """The changes of one node's database, by a journal. Thread-safe; other processes may do the same."""

    def __init__(self, database: Database, journal: Journal, fence: Fence = by_primary) -> None:
        """fence: says which changes are refused."""
        self._database, self._journal, self._fence = database, journal, fence
        self._away_until = 0.0  # on the monotonic clock
        self._rebasing = threading.Lock()

    def join(self) -> None:
        """Follow the journal: begin it with this database's records, or take over its records.

        If the place does not answer, a database that followed the journal before stays as it is. Raises
        InvalidInput if the database has records of its own or follows another journal; Unavailable, Damaged.
        """
        mine = self._database.read(position_of)
        try:
            found = self._journal.head()
        except Unavailable as error:
            if mine is None:
                raise
            log.warning("%s; answers come from what this node has", error)
            return
        if found is None:
            if mine is not None:
                raise self._foreign()
            self._journal.begin(self._database.read(_shared))
            found = self._journal.need_head()
        if mine is None:
            self._take_over(found[0])
        self.catch_up()

    def _take_over(self, head: Head) -> None:
        """Put the position before the journal's first one into a database without one."""
        theirs = self._journal.records(head.whole)

        def body(raw: Any) -> None:
            if position_of(raw) is not None:
                return  # another process of this node was faster
            own = _shared(raw)
            if own and own != theirs:
                raise self._foreign()
            new_node(RegistryTxn(raw))
            _put_position(raw, Position(head.journal, -1, ""))

        self._database.write(body)

    def _foreign(self) -> InvalidInput:
        return InvalidInput(
            f"this data folder has a registry of its own, and {self._journal.place} has another one: give "
            "an empty data folder to a new node, or an empty place to a registry that is to be shared",
            field="bucket",
        )

    def write(self, body: Callable[[RegistryTxn], T], fence: Fence | None = None) -> T:
        """Run `body` in a write transaction after all changes of other nodes, and publish what it changes.

        `body` may run several times. fence: in place of the one that all changes pass. Raises Unavailable if
        the place does not answer: then this node has changed nothing, and others have not either, unless the
        message says so; and what the fence returns. Raises Conflict if other nodes' changes come first all
        the time.
        """
        self._check_away()
        sent: dict[str, T] = {}

        def attempt(raw: Any) -> T:
            head, tag = self._head()
            brought = self._bring(raw, head)
            for by in sent.keys() & brought:  # the memory map had to grow between the journal and the commit
                return sent[by]
            txn = RegistryTxn(raw)
            refused = (fence or self._fence)(txn)
            result = body(txn)
            changes = {key: value for key, value in txn.changes.items() if not key.startswith(LOCAL)}
            if changes:
                if refused is not None and PRIMARY not in changes:
                    raise refused
                entry = Entry(head.at + 1, secrets.token_hex(16), head.by, _texts(changes))
                sent[entry.by] = result
                self._append(head, tag, entry)
                _put_position(raw, Position(head.journal, entry.at, entry.by))
            return result

        result = _in_turns((_Moved, Missing), lambda: self._database.write(attempt))
        self._rebase()
        return result

    def catch_up(self) -> bool:
        """Take over the changes of other nodes. Returns whether there were any.

        Raises Unavailable, Damaged (the journal is damaged, or older than this database).
        """
        return _in_turns(Missing, self._catch_up)

    def _catch_up(self) -> bool:
        head, _ = self._journal.need_head()
        mine = self._database.read(position_of)
        if mine is not None and (mine.journal, mine.at, mine.by) == (head.journal, head.at, head.by):
            return False

        def body(raw: Any) -> None:
            mine = position_of(raw)
            # Another process of this node may have gone on since the head was read. None can do so now.
            late = mine is not None and mine.at > head.at
            self._bring(raw, self._journal.need_head()[0] if late else head)

        self._database.write(body)
        return True

    def _bring(self, raw: Any, head: Head) -> set[str]:
        """Take over what the database lacks of the journal. Returns the tokens of the entries."""
        mine = position_of(raw)
        if mine is None or mine.journal != head.journal:
            raise self._foreign()
        if mine.at > head.at or (mine.at == head.at and mine.by != head.by):
            raise self._parted()
        if mine.at == head.at:
            return set()
        news = self._news(head, mine.at)
        if news.whole is None and news.entries[0].before != mine.by:
            raise self._parted()
        if news.whole is not None:
            _replace(raw, news.whole)
        txn = RegistryTxn(raw)
        for entry in news.entries:
            for key, body in entry.changes.items():
                if body is None:
                    txn.delete(key)
                else:
                    txn.put(key, body.encode())
        _put_position(raw, Position(head.journal, head.at, head.by))
        return {entry.by for entry in news.entries}

    def _parted(self) -> Damaged:
        return Damaged(
            f"the journal at {self._journal.place} lacks changes that this node's registry has, as if an "
            "older version of its head had been restored: restore the newest one, or start this node with "
            "an empty data folder"
        )

    def _news(self, head: Head, after: int) -> _News:
        try:
            return _News(list(self._journal.entries(head, after)), None)
        except Gone:
            whole = self._journal.records(head.whole)
            return _News(list(self._journal.entries(head, head.whole.at)), whole)

    def _head(self) -> tuple[Head, str]:
        with self._noting():
            return self._journal.need_head()

    def _append(self, head: Head, tag: str, entry: Entry) -> None:
        with self._noting():
            try:
                done = self._journal.append(head, tag, entry)
            except Unavailable as error:
                raise Unavailable(
                    f"{error}; the change may have been made all the same: look before you repeat it"
                ) from error
        if not done:
            raise _Moved

    def _check_away(self) -> None:
        left = self._away_until - time.monotonic()
        if left > 0:
            raise Unavailable(
                f"{self._journal.place} did not answer a moment ago, so nothing was changed: try again",
                retry_after_s=left,
            )

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Note that the place does not answer."""
        try:
            yield
        except Unavailable:
            self._away_until = time.monotonic() + _AWAY_S
            raise

    def _rebase(self) -> None:
        """Write all records to the journal, if a new node would read too many entries. Failures are logged:
        the change that this follows was made."""
        if not self._rebasing.acquire(blocking=False):
            return
        try:
            head, _ = self._journal.need_head()
            if self._journal.is_due(head):
                at, found = self._database.read(_at_position)
                self._journal.rebase(at, found)
        except HmiError as error:
            log.warning("the registry's journal could not be shortened: %s", error)
        finally:
            self._rebasing.release()


def _in_turns(moved: type[Exception] | tuple[type[Exception], ...], body: Callable[[], T]) -> T:
    """Return what `body` returns, in an attempt during which the journal did not move. Raises Conflict."""
    for _ in range(_TURNS):
        try:
            return body()
        except moved as error:
            last = error
            time.sleep(random.uniform(0, _PAUSE_S))  # else the node that came first would come first again
    if isinstance(last, Damaged):
        raise last
    raise Conflict("other nodes change the registry all the time: try again")


def _at_position(raw: Any) -> tuple[int, dict[str, str]]:
    mine = position_of(raw)
    assert mine is not None
    return mine.at, _shared(raw)


def _put_position(raw: Any, position: Position) -> None:
    RegistryTxn(raw).put(POSITION, json.dumps(asdict(position)).encode())


def _shared(raw: Any) -> dict[str, str]:
    """The records that nodes share. Raises Damaged."""
    return {key: body.decode() for key, body in records(raw) if not key.startswith(LOCAL)}


def _replace(raw: Any, new: Mapping[str, str]) -> None:
    txn = RegistryTxn(raw)
    for key in _shared(raw).keys() - new.keys():
        txn.delete(key)
    for key, body in new.items():
        txn.put(key, body.encode())


def _texts(changes: Mapping[str, bytes | None]) -> dict[str, str | None]:
    return {key: None if body is None else body.decode() for key, body in changes.items()}
