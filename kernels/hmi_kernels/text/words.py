"""numba bodies that map the features of words, given as 64-bit codes, to buckets of a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled

NEAR, FAR = 6, 2  # how many features of a word its direct neighbours get, and the words next to those
BOUNDARY = np.uint64(0x9E3779B97F4A7C15)  # the code of the missing words before the first and after the last
PAIR = np.uint64(0xD6E8FEB86659FD93)
HALF = np.uint64(32)


@compiled
def mixed(code: Any, place: Any) -> Any:
    """Hash a feature of the word at distance `place`, -2 to 2, from the word described:
    splitmix64's finaliser."""
    x = code + np.uint64(place + 3) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def bucket_of(hashed: Any, buckets: Any) -> Any:
    """The bucket of a hash, 0..buckets-1."""
    return np.int64(((hashed >> HALF) * np.uint64(buckets)) >> HALF)


@compiled
def word_features(codes: Any, starts: Any, buckets: Any, ids: Any, offsets: Any) -> Any:
    """Fill ids int64 and offsets int64 [words + 1]: word w's buckets are ids[offsets[w]:offsets[w + 1]].

    codes uint64: word w's own features are codes[starts[w]:starts[w + 1]], the most telling first. `ids`
    must have room for len(codes) + words · (2 · NEAR + 2 · FAR + 1) buckets. Returns the number written.
    """
    at, words = 0, starts.size - 1
    for w in range(words):
        offsets[w] = at
        for i in range(starts[w], starts[w + 1]):
            ids[at] = bucket_of(mixed(codes[i], 0), buckets)
            at += 1
        for place in (-2, -1, 1, 2):
            other = w + place
            if other < 0 or other >= words:
                ids[at] = bucket_of(mixed(BOUNDARY, place), buckets)
                at += 1
                continue
            lent = NEAR if place * place == 1 else FAR
            for i in range(starts[other], min(starts[other] + lent, starts[other + 1])):
                ids[at] = bucket_of(mixed(codes[i], place), buckets)
                at += 1
        before = codes[starts[w - 1]] if w > 0 else BOUNDARY
        ids[at] = bucket_of(mixed(codes[starts[w]] ^ (before * PAIR), 0), buckets)
        at += 1
    offsets[words] = at
    return at
