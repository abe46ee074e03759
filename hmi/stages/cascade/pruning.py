"""Word pruning: the words that the large level need not read, from the small level's attention.

Tabi, section 4.2. A word is dropped only if all its pieces are. Here rows are dropped after retrieval:
cutting words out of the text itself would make new n-grams, and with them misses.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hmi.model.tenant.calibration import Floats

Mask = NDArray[np.bool_]


def received(attention: ArrayLike) -> Floats:
    """The attention that each token receives: [..., queries, tokens] -> [tokens], summed over all else.

    For all heads and layers at once, or to be added up layer by layer. Queries must be tokens, not padding.
    """
    weights = np.asarray(attention, np.float64)
    out: Floats = weights.reshape(-1, weights.shape[-1]).sum(0)
    return out


def kept_tokens(importance: ArrayLike, words: ArrayLike, segments: ArrayLike, scale: float) -> Mask:
    """Equation (5): the tokens that stay, bool [tokens], of one text or pair.

    importance [tokens]: of `received`. words int [tokens]: the index of each token's word within its segment,
    −1 for special tokens and padding, which always stay and do not count in the mean. segments int [tokens]:
    0 in the first text, 1 in the second. scale: α, at least 0; 0 drops only words that receive no attention.

    A word stays if a piece of it receives more than α times the mean. If a segment would lose all its words,
    the one with the most important piece stays; of several, the first. NaN keeps every word.
    """
    if not scale >= 0.0:
        raise ValueError(f"scale: {scale} is below 0")
    given, word = np.asarray(importance, np.float64), np.asarray(words, np.int64)
    inside = np.flatnonzero(word >= 0)
    stays = np.ones(len(word), np.bool_)
    if not len(inside) or np.isnan(given[inside]).any():
        return stays
    own = np.asarray(segments, np.int64)[inside]
    pairs, of_word = np.unique(np.stack([own, word[inside]]), axis=1, return_inverse=True)
    most = np.full(pairs.shape[1], -np.inf)
    np.maximum.at(most, of_word, given[inside])
    word_stays = ~(most <= scale * given[inside].mean())
    for segment in np.unique(pairs[0]):
        mine = np.flatnonzero(pairs[0] == segment)
        if not word_stays[mine].any():
            word_stays[mine[most[mine].argmax()]] = True
    stays[inside] = word_stays[of_word]
    return stays
