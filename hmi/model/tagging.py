"""From tag scores to tags: the best path through a text under the scheme's rules and the learnt transitions,
the probability of each tag on the path, and the scheme that a set of rows follows.

Choosing each word's tag independently can give I-Disease after O, which is no entity, or two types within one
entity. The best path avoids that and costs next to nothing.
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
"""bio: B-x begins an entity and I-x continues it.

iob1: I-x also begins one, and B-x only begins an entity directly after another of its type. io: I-x alone.
free: any tag may follow any (one tag a word, any other scheme). Models of IOB1 and IO rows have BIO's labels,
which say where an entity begins, and answer in the rows' scheme.
"""
Floats = NDArray[np.float32]

FORBIDDEN = -1e9
LEAST = -80.0
"""A tag is never less likely than this in itself, beside the best one of its word: some legal path is always
left."""

MAY_BREAK = 0.01
"""One entity in a hundred may begin with I-, by a slip, and the rows still count as BIO."""


def scheme_of(rows: Iterable[Sequence[str]]) -> Scheme:
    """The scheme that these rows of tags keep, but for slips."""
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
    if entities and broken <= MAY_BREAK * entities:
        return "bio"
    if not entities or not iob1:
        return "free"
    return "iob1" if begun else "io"


def to_bio(tags: Sequence[str]) -> tuple[str, ...]:
    """IOB1 or IO -> BIO: what begins an entity says so."""
    pairs = pairwise(["O", *tags])
    return tuple(tag if _may_follow(before, tag) else f"B-{tag[2:]}" for before, tag in pairs)


def from_bio(tags: Sequence[str], scheme: Scheme) -> list[str]:
    """BIO -> the scheme: in IOB1 B-x stays only right behind an entity of its type, in IO nowhere."""
    if scheme not in ("iob1", "io"):
        return list(tags)
    pairs = pairwise(["O", *tags])
    keeps = scheme == "iob1"
    return [t if t[:2] != "B-" or (keeps and before[2:] == t[2:]) else f"I-{t[2:]}" for before, t in pairs]


def breaks(rows: Iterable[Sequence[str]]) -> Iterator[tuple[int, int, str, str]]:
    """(row, word, tag before, tag), row and word from 1, of each I-x that follows neither B-x nor I-x.

    Empty if a tag is neither O nor B- nor I-: such rows follow another scheme.
    """
    kept = list(rows)
    if any(tag != "O" and tag[:2] not in ("B-", "I-") for tags in kept for tag in tags):
        return
    for row, tags in enumerate(kept, 1):
        for word, (before, tag) in enumerate(pairwise(["O", *tags]), 1):
            if not _may_follow(before, tag):
                yield row, word, before, tag


@lru_cache(maxsize=256)
def rules(labels: tuple[str, ...], scheme: Scheme) -> Floats | None:
    """[labels + 1, labels]: 0 where a tag may follow another (the last row: at the beginning), FORBIDDEN
    elsewhere.

    None where everything is allowed. Labels are BIO's for IOB1 and IO, too.
    """
    if scheme == "free":
        return None
    allowed = [[_may_follow(before, tag) for tag in labels] for before in [*labels, "O"]]
    return np.where(np.array(allowed), np.float32(0), np.float32(FORBIDDEN))


def best_path(scores: Floats, moves: Floats | None) -> NDArray[np.int64]:
    """The path of the greatest sum (Viterbi), label ids int64 [words].

    scores [words, labels]: log-probabilities, or any scores that are added; moves [labels + 1, labels]: what
    a tag gets after another, the last row at the beginning.
    """
    if moves is None or len(scores) == 0:
        return np.asarray(scores.argmax(-1), np.int64)
    path = np.empty(len(scores), np.int64)
    viterbi(np.ascontiguousarray(scores), moves, np.empty(scores.shape, np.int32), path)
    return path


def marginals(scores: Floats, moves: Floats) -> Floats:
    """The probability of each tag at each word over all paths [words, labels], at least one word: the
    forward-backward algorithm."""
    words = np.exp(np.maximum(scores - scores.max(-1, keepdims=True), LEAST), dtype=np.float64)
    weights, out = np.exp(moves, dtype=np.float64), np.empty(words.shape)
    forward_backward(words, weights[-1], weights[:-1], out)
    return out.astype(np.float32)


def _may_follow(before: str, tag: str) -> bool:
    return tag[:2] != "I-" or (before[:2] in ("B-", "I-") and before[2:] == tag[2:])
