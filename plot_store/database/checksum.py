"""A checksum in front of every value, since LMDB itself notices little damage."""

from __future__ import annotations

from typing import Final

import xxhash

_SUM: Final = 8  # bytes


def seal(key: bytes, body: bytes) -> bytes:
    """The value to store: the xxh3-64 of key and body, then the body."""
    return bytes(xxhash.xxh3_64_digest(key + body)) + body


def unseal(key: bytes, value: bytes) -> bytes | None:
    """The body of a stored value; None if it is not what was written under this key."""
    body = value[_SUM:]
    return body if value[:_SUM] == xxhash.xxh3_64_digest(key + body) else None
