"""Decoding of tags: the best path under a tag scheme and learnt transitions, and the probability of each tag.

If each word's tag is chosen independently, the result may be illegal, such as I-Disease after O, or two
types within one entity. The best path is always legal and costs next to nothing. This module also detects
the scheme that rows follow and converts between schemes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np
from hmi_kernels.text.paths import forward_backward, viterbi
from numpy.typing import NDArray

Scheme = Literal["bio", "iob1", "io", "free"]
"""A tag scheme.

- bio: B-x begins an entity and I-x continues it.
- iob1: I-x begins an entity too; B-x is used only directly after another entity of the same type.
- io: only I-x is used.
- free: any tag may follow any other, as with parts of speech or any other scheme.

Models that are trained on IOB1 or IO rows use BIO labels, which mark where entities begin, and answer
in the scheme of the rows.
"""
Floats = NDArray[np.float32]

FORBIDDEN = -1e9
"""The score of an illegal transition."""
MIN_LOG_RATIO = -80.0
"""`marginals` bounds each tag's log-probability, relative to its word's best tag, from below by this. So
some legal path always has a probability above 0."""

MAX_SLIPS = 0.01
"""Rows count as BIO although up to this fraction of their entities begins with I-."""


def scheme_of(rows: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that rows of tags follow, up to a fraction MAX_SLIPS of slips."""
    entities = broken = begun = 0
    iob1 = True
    for tags in rows:
        before = "O"
        for tag in tags:
            if tag != "O" and tag[:2] not in ("B-", "I-"):
                return "free"
            legal = _may_follow(before, tag)
            broken += not legal
            entities += tag[:2] == "B-" or not legal
            begun += tag[:2] == "B-"
            iob1 &= tag[:2] != "B-" or before[2:] == tag[2:]
            before = tag
    if entities and broken <= MAX_SLIPS * entities:
        return "bio"
    if not entities or not iob1:
        return "free"
    return "iob1" if begun else "io"


def to_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """Convert IOB1 or IO to BIO: each tag that begins an entity becomes B-x."""
    pairs = pairwise(["O", *tags])
    return tuple(tag if _may_follow(before, tag) else f"B-{tag[2:]}" for before, tag in pairs)


def in_labels(tags: Sequence[str], scheme: Scheme) -> tuple[str, ...]:
    """The tags of a row in `scheme`, in the terms of its task's labels. The inverse of `from_bio`."""
    return to_bio(tags) if scheme in ("iob1", "io") else tuple(tags)


def from_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """Convert BIO to `scheme`. IOB1 keeps B-x only directly after an entity of type x, IO never."""
    if scheme not in ("iob1", "io"):
        return list(tags)
    pairs = pairwise(["O", *tags])
    keeps = scheme == "iob1"
    return [t if t[:2] != "B-" or (keeps and before[2:] == t[2:]) else f"I-{t[2:]}" for before, t in pairs]


def breaks(rows: Iterable[Sequence[str]]) -> Iterator[tuple[int, int, str, str]]:
    """Yield (row, word, tag before, tag) for each I-x that follows neither B-x nor I-x; both count from 1.

    Yields nothing if a tag is neither O nor B- nor I-, since such rows follow another scheme.
    """
    every = list(rows)
    if any(tag != "O" and tag[:2] not in ("B-", "I-") for tags in every for tag in tags):
        return
    for row, tags in enumerate(every, 1):
        for word, (before, tag) in enumerate(pairwise(["O", *tags]), 1):
            if not _may_follow(before, tag):
                yield row, word, before, tag


@lru_cache(maxsize=256)
def rules(labels: tuple[str, ...], scheme: Scheme) -> Floats | None:
    """The scores of transitions, [labels + 1, labels]: 0 if legal, FORBIDDEN if not.

    Row i is for the tags after label i, the last row for a text's first tag. None if every transition is
    legal. For IOB1 and IO the labels are those of BIO, too.
    """
    if scheme == "free":
        return None
    allowed = [[_may_follow(before, tag) for tag in labels] for before in [*labels, "O"]]
    return np.where(np.array(allowed), np.float32(0), np.float32(FORBIDDEN))


def best_path(scores: Floats, moves: Floats | None) -> NDArray[np.int64]:
    """The path with the greatest sum of scores (Viterbi), as label ids int64 [words].

    scores [words, labels]: log-probabilities, or other scores that add up. moves [labels + 1, labels]: the
    scores of transitions, laid out as in `rules`; None for none.
    """
    if moves is None or len(scores) == 0:
        return np.asarray(scores.argmax(-1), np.int64)
    path = np.empty(len(scores), np.int64)
    viterbi(np.ascontiguousarray(scores), moves, np.empty(scores.shape, np.int32), path)
    return path


def marginals(scores: Floats, moves: Floats) -> Floats:
    """The probability of each tag at each word over all paths, [words, labels] (forward-backward algorithm).

    The arguments are those of `best_path`, with at least one word.
    """
    words = np.exp(np.maximum(scores - scores.max(-1, keepdims=True), MIN_LOG_RATIO), dtype=np.float64)
    weights, out = np.exp(moves, dtype=np.float64), np.empty(words.shape)
    forward_backward(words, weights[-1], weights[:-1], out)
    return out.astype(np.float32)


def _may_follow(before: str, tag: str) -> bool:
    return tag[:2] != "I-" or (before[:2] in ("B-", "I-") and before[2:] == tag[2:])
