"""Random draws that depend on a request alone, so that the same request always gets the same draw."""

from __future__ import annotations

import xxhash

PURPOSE_SEPARATOR = "\0"
"""Between the purpose and the id, so that no id of one purpose equals an id of another."""


def draw(purpose: str, request: str) -> float:
    """A number in [0, 1) that is uniform over requests: the xxh3 hash of both strings.

    Draws of different purposes are independent, so audits are a random sample of re-routed requests too.
    """
    key = f"{purpose}{PURPOSE_SEPARATOR}{request}".encode(errors="surrogatepass")
    return (xxhash.xxh3_64_intdigest(key) >> 11) / 2.0**53
