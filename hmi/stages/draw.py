"""Random draws that depend on a key alone: on a request's id, so that the same request always gets the same
draw, or on a number that no sender knows (`Text.nonce`), where a sender must not be able to choose it."""

from __future__ import annotations

import xxhash

PURPOSE_SEPARATOR = "\0"
"""Between the purpose and the key, so that no key of one purpose equals a key of another."""


def draw(purpose: str, key: str) -> float:
    """A number in [0, 1) that is uniform over keys: the xxh3 hash of both strings.

    Draws of different purposes are independent, so audits are a random sample of re-routed requests too.
    """
    both = f"{purpose}{PURPOSE_SEPARATOR}{key}".encode(errors="surrogatepass")
    return (xxhash.xxh3_64_intdigest(both) >> 11) / 2.0**53
