"""A checksum in front of every value, because LMDB itself detects little damage."""

from __future__ import annotations

from typing import Final

import xxhash

SUM_BYTES: Final = 8


def seal(key: bytes, body: bytes) -> bytes:
    """Return the value to store: the xxh3-64 of key and body, then the body."""
    return bytes(xxhash.xxh3_64_digest(key + body)) + body


def unseal(key: bytes, value: bytes) -> bytes | None:
    """Return the body of a stored value, or None if its checksum does not match."""
    body = value[SUM_BYTES:]
    return body if value[:SUM_BYTES] == xxhash.xxh3_64_digest(key + body) else None
