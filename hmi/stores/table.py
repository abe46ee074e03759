"""Pydantic records of the registry: the key of each kind, and a cache so that an unchanged value is parsed
once."""

from __future__ import annotations

from typing import TypeVar, cast

from pydantic import ValidationError

from hmi.core import Record
from hmi.errors import Damaged
from hmi.stores.sealed import RegistryTxn

ROOT = "root/"
TENANT = "tenant/"
MODEL = "model/"  # + tenant.name
JOB = "job/"
LIVE = "live/"  # + job: those that have not ended
JOB_OF = "jobof/"  # + tenant (or nothing) / job
JOB_COUNT = "jobcount/"  # + state -> how many there are
JOBS_INDEXED = "jobsindexed"  # there once JOB_OF and JOB_COUNT hold every job
GONE = "gone/"  # + job: their tenant was deleted while they ran
KEY = "key/"  # + sha256
KEY_OF = "keyof/"  # + tenant (or nothing) / key_id -> sha256
KEY_ID = "keyid/"  # + key_id -> tenant (or nothing)
ONCE = "once/"
ONCE_UNTIL = "onceuntil/"  # + expiry / what ONCE has

CACHED = 16_384
R = TypeVar("R", bound=Record)


class Table:
    """Reads and writes records. The cache compares bytes, so it can never give an older value."""

    def __init__(self) -> None:
        self._cache: dict[str, tuple[bytes, Record]] = {}

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

        Raises Damaged where one is damaged or lost; a tolerant call leaves it out.
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
        cached = self._cache.get(key)
        if cached is not None and cached[0] == raw:
            return cast(R, cached[1])
        try:
            record = kind.model_validate_json(raw)
        except ValidationError as error:
            raise Damaged(
                f"the registry's record {key!r} cannot be read ({error.error_count()} problems): it was "
                "written by a "
                "newer release, or is damaged; upgrade, or restore <data>/registry from a backup"
            ) from error
        if len(self._cache) >= CACHED:
            self._cache.clear()
        self._cache[key] = (raw, record)
        return record
