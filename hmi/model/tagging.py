"""From tag scores to tags: the best path that breaks no rule of the scheme (BIO), and whether rows keep the scheme.

An independent choice for each word can answer I-Disease after O, which names no entity: the best legal path costs
nothing at inference and gains one to three points of entity F1 at any quality of the scores.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Scheme = Literal["bio", "free"]
"""bio: I-x follows B-x or I-x only. free: anything may follow anything (IOB1, one tag a word, any other scheme)."""

FORBIDDEN = -1e9


MAY_BREAK = 0.01
"""One entity in a hundred may begin with I-, by a slip, and the rows still count as BIO."""


def scheme_of(rows: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that these rows of tags keep, but for slips."""
    entities = broken = 0
    for tags in rows:
        before = "O"
        for tag in tags:
            if tag != "O" and tag[:2] not in ("B-", "I-"):
                return "free"
            legal = _may_follow(before, tag)
            broken += not legal
            entities += tag[:2] == "B-" or not legal
            before = tag
    return "bio" if entities and broken <= MAY_BREAK * entities else "free"


def breaks(rows: Iterable[Sequence[str]]) -> Iterator[tuple[int, int, str, str]]:
    """(row, word, tag before, tag), both from 1, of each I-x that follows neither B-x nor I-x.

    Nothing where a tag is neither O nor B- nor I-: such rows follow another scheme.
    """
    kept = list(rows)
    if any(tag != "O" and tag[:2] not in ("B-", "I-") for tags in kept for tag in tags):
        return
    for row, tags in enumerate(kept, 1):
        for word, (before, tag) in enumerate(pairwise(["O", *tags]), 1):
            if not _may_follow(before, tag):
                yield row, word, before, tag


@lru_cache(maxsize=256)
def rules(labels: tuple[str, ...], scheme: Scheme) -> NDArray[np.float32] | None:
    """[labels + 1, labels]: 0 where a tag may follow another (the last row: at the beginning), FORBIDDEN elsewhere.

    None where everything is allowed.
    """
    if scheme == "free":
        return None
    allowed = [[_may_follow(before, tag) for tag in labels] for before in [*labels, "O"]]
    return np.where(np.array(allowed), np.float32(0), np.float32(FORBIDDEN))


def best_path(scores: NDArray[np.float32], allowed: NDArray[np.float32] | None) -> NDArray[np.int64]:
    """Log-probabilities [words, labels] -> label ids int64 [words] of the likeliest legal path (Viterbi)."""
    if allowed is None or len(scores) == 0:
        return np.asarray(scores.argmax(-1), np.int64)
    steps = allowed[:-1]
    reached = scores[0] + allowed[-1]
    came = np.empty(scores.shape, np.int64)
    for i in range(1, len(scores)):
        candidates = reached[:, None] + steps
        came[i] = candidates.argmax(0)
        reached = candidates.max(0) + scores[i]
    path = np.empty(len(scores), np.int64)
    path[-1] = reached.argmax()
    for i in range(len(scores) - 1, 0, -1):
        path[i - 1] = came[i, path[i]]
    return path


def _may_follow(before: str, tag: str) -> bool:
    return tag[:2] != "I-" or (before[:2] in ("B-", "I-") and before[2:] == tag[2:])
