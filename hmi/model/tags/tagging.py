"""Decoding of tags: the best path under a tag scheme and learnt transitions, and the probability of each tag.

If each word's tag is chosen independently, the result may be illegal, such as I-Disease after O, or two
types within one entity. The best path is always legal and costs next to nothing.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from hmi_kernels.text.paths import forward_backward, viterbi
from numpy.typing import NDArray

from hmi.model.tags.tag_schemes import Scheme, may_follow

Floats = NDArray[np.float32]

FORBIDDEN = -1e9
"""The score of an illegal transition."""
MIN_LOG_RATIO = -80.0
"""`marginals` bounds each tag's log-probability, relative to its word's best tag, from below by this. So
some legal path always has a probability above 0."""


@lru_cache(maxsize=256)
def rules(labels: tuple[str, ...], scheme: Scheme) -> Floats | None:
    """The scores of transitions, [labels + 1, labels]: 0 if legal, FORBIDDEN if not.

    Row i is for the tags after label i, the last row for a text's first tag. None if every transition is
    legal. The labels are those of BIO, whatever the scheme.
    """
    if scheme == "free":
        return None
    allowed = [[may_follow(before, tag) for tag in labels] for before in [*labels, "O"]]
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
