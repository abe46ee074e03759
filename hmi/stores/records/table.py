"""Pydantic records in the registry: key prefixes, and a cache of parsed records.

The comment beside a prefix says what follows it in a key, then the value if it is not the record itself.
"""

from __future__ import annotations

from typing import TypeVar, cast

from pydantic import ValidationError

from hmi.core import Record
from hmi.errors import Damaged
from hmi.stores.records.sealed import RegistryTxn

ROOT = "root/"
TENANT = "tenant/"
MODEL = "model/"  # + tenant.name
JOB = "job/"
LIVE = "live/"  # + job, while it has not ended; without background jobs
BACKGROUND_LIVE = "backlive/"  # + state / tenant (or nothing) / job, while a background job has not ended
JOB_OF = "jobof/"  # + tenant (or nothing) / job -> nothing, or BEHIND for a background job
BEHIND = b"background"
JOB_COUNT = "jobcount/"  # + state -> number of jobs
BACKGROUND_COUNT = "backcount/"  # + state -> how many of them are background jobs
JOBS_INDEXED = "jobsindexed"  # exists once JOB_OF and JOB_COUNT cover every job
GONE = "gone/"  # + job whose tenant was deleted while it ran
KEY = "key/"  # + sha256
KEY_OF = "keyof/"  # + tenant (or nothing) / key_id -> sha256
KEY_USED = "keyused/"  # + key_id -> when the key was last used, about
KEY_ID = "keyid/"  # + key_id -> tenant (or nothing)
FILE = "file/"
FILE_OF = "fileof/"  # + tenant (or nothing) / file
ONCE = "once/"
ONCE_UNTIL = "onceuntil/"  # + expiry / the rest of the ONCE key

CACHED = 2_048
"""The most records in each of the cache's two parts. A model's record takes 2 kB there, and parsing one takes
40 µs, some 3% of the time of an answer. A larger cache would grow with each tenant that comes."""
R = TypeVar("R", bound=Record)
_NAMES: dict[frozenset[str], set[str]] = {}


class RecordTable:
    """Reads and writes records. A cached record is used only if the stored bytes are unchanged. Thread-safe.

    The cache has two parts, so that records in use stay: one that is read goes to the new part, and when that
    is full, it becomes the old part, and what was the old part is dropped.
    """

    def __init__(self) -> None:
        self._new: dict[str, tuple[bytes, Record]] = {}
        self._old: dict[str, tuple[bytes, Record]] = {}

    def get(self, txn: RegistryTxn, key: str, kind: type[R]) -> R | None:
        raw = txn.get(key)
        return None if raw is None else self._parse(key, raw, kind)

    def put(self, txn: RegistryTxn, key: str, record: Record) -> None:
        txn.put(key, record.model_dump_json().encode())

    def all(
        self,
        txn: RegistryTxn,
        prefix: str,
        kind: type[R],
        *,
        below: str = "",
        after: str | None = None,
        limit: int | None = None,
        tolerant: bool = False,
    ) -> list[R]:
        """Records whose key begins with `prefix + below`, ascending; `after` is relative to `prefix`.

        Raises Damaged if one is damaged or lost; a tolerant call skips it.
        """
        found: list[R] = []
        if after is not None and not after.startswith(below):
            if after > below:
                return found
            after = None
        start = None if after is None else after.removeprefix(below)
        for key, raw in txn.items(prefix + below, start, tolerant=tolerant):
            if limit is not None and len(found) >= limit:
                break
            try:
                found.append(self._parse(prefix + below + key, raw, kind))
            except Damaged:
                if not tolerant:
                    raise
        return found

    def _parse(self, key: str, raw: bytes, kind: type[R]) -> R:
        new = self._new
        cached = new.get(key)
        if cached is not None and cached[0] == raw:
            return cast(R, cached[1])
        cached = self._old.get(key)
        if cached is None or cached[0] != raw:
            cached = raw, parsed(key, raw, kind)
        if len(new) >= CACHED:
            self._old, self._new = new, (new := {})
        new[key] = cached
        return cast(R, cached[1])


def parsed(key: str, raw: bytes | str, kind: type[R]) -> R:
    """Return the record that a body holds. Raises Damaged, also for one of a newer release."""
    try:
        record = kind.model_validate_json(raw)
        _share_names(record)
        return record
    except ValidationError as error:
        raise Damaged(
            f"the registry's record {key!r} cannot be read ({error.error_count()} problems): it was "
            "written by a newer release, or is damaged; upgrade, or restore <data>/registry from a backup"
        ) from error


def _share_names(record: Record) -> None:
    """Let stored records of a kind share the set of their fields' names, which pydantic keeps in each.

    That of a model's version takes 2 kB, half of the record. Few such sets exist: all fields are stored.
    """
    names = record.__pydantic_fields_set__
    object.__setattr__(record, "__pydantic_fields_set__", _NAMES.setdefault(frozenset(names), names))
    for value in record.__dict__.values():
        for inner in value if isinstance(value, tuple) else (value,):
            if isinstance(inner, Record):
                _share_names(inner)
