"""A checksum in front of every value, because LMDB itself detects little damage."""

from __future__ import annotations

from typing import Final

import xxhash

_SUM: Final = 8  # bytes


def seal(key: bytes, body: bytes) -> bytes:
    """Return the value to store: the xxh3-64 of key and body, then the body."""
    return bytes(xxhash.xxh3_64_digest(key + body)) + body


def unseal(key: bytes, value: bytes) -> bytes | None:
    """Return the body of a stored value, or None if its checksum does not match."""
    body = value[_SUM:]
    return body if value[:_SUM] == xxhash.xxh3_64_digest(key + body) else None
