"""Extraction of n-grams from ragged texts, as keys that sort like the n-grams.

A key is one or two u64 words, the most significant first; a word holds up to three ids in fields of 21 bits.
(Rows on disk store the same words in reverse order, and keys of one word also hold the order.)
"""

from __future__ import annotations

from typing import Final

import numpy as np
from hmi_kernels.lookup.layout import FIELD_BITS, ID_LIMIT, WORD_IDS, before, words
from numpy.typing import NDArray

from plot_store.ground.errors import Invalid

_BITS: Final = np.uint64(FIELD_BITS)
_FIELD: Final = np.uint64((1 << FIELD_BITS) - 1)

Keys = NDArray[np.uint64]  # [m, words]
Ids = NDArray[np.uint64]


def check_texts(tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
    """Check a ragged batch: tokens int32 [total] of valid ids, offsets int64 [texts + 1]. Raises Invalid."""
    if not isinstance(tokens, np.ndarray) or not isinstance(offsets, np.ndarray):
        raise Invalid("pass tokens and offsets as numpy arrays, int32 [total] and int64 [texts + 1]")
    if tokens.ndim != 1 or tokens.dtype != np.int32 or offsets.ndim != 1 or offsets.dtype != np.int64:
        raise Invalid("pass tokens as int32 [total] and offsets as int64 [texts + 1]")
    if (
        not offsets.size
        or offsets[0] != 0
        or offsets[-1] != tokens.size
        or bool((np.diff(offsets) < 0).any())
    ):
        raise Invalid(f"offsets must rise from 0 to the number of tokens ({tokens.size})")
    if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) >= ID_LIMIT):
        raise Invalid(f"a token id is outside 0..{ID_LIMIT - 1}: use the tokenizer that the schema names")


class Strip:
    """Concatenated texts. N-grams extracted from them never span two texts."""

    def __init__(self, tokens: NDArray[np.int32], starts: NDArray[np.bool_], n: int) -> None:
        """tokens: int32 [m]. starts: bool [m], true at each text's first token. n: the widest window."""
        self._margin, size = n - 1, tokens.size
        self._ids: Ids = np.zeros(size + 2 * self._margin, np.uint64)
        self._ids[self._margin : self._margin + size] = tokens
        self._text = np.zeros(self._ids.size, np.int32)  # the text of each id; margins belong to none
        np.cumsum(starts, dtype=np.int32, out=self._text[self._margin : self._margin + size])

    def windows(self, n: int, chosen: NDArray[np.bool_]) -> Keys:
        """Return the keys of the windows centred on chosen tokens (bool [m]) of an id other than 0.

        Places outside the text have id 0.
        """
        at = np.flatnonzero(chosen) + self._margin
        centres = self._ids[at]
        at, centres = at[centres > 0], centres[centres > 0]
        text, centre = self._text[at], before(n)
        keys = np.zeros((at.size, words(n)), np.uint64)
        for column in range(n):
            there = at + (column - centre)
            _append(
                keys,
                n,
                column,
                centres if column == centre else self._ids[there] * (self._text[there] == text),
            )
        return keys

    def grams(self, order: int, last: NDArray[np.bool_] | None = None) -> Keys:
        """Return the keys of all runs of `order` ids inside a text, without those that contain 0.

        last: bool [m], the tokens that a run may end with (None: every token).
        """
        count = max(0, self._ids.size - order + 1)
        inside = self._text[:count] == self._text[order - 1 : order - 1 + count]
        if last is not None:
            begin = self._margin - order + 1  # of the run that ends with the first token
            inside[begin : begin + last.size] &= last
        columns = [self._ids[column : column + count] for column in range(order)]
        for column in columns:
            inside &= column > 0
        keys = np.zeros((int(inside.sum()), words(order)), np.uint64)
        for number, column in enumerate(columns):
            _append(keys, order, number, column[inside])
        return keys


def starts_of(offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Mark the first token of each text: offsets int64 [texts + 1] -> bool [total]."""
    starts = np.zeros(int(offsets[-1]) + 1, np.bool_)
    starts[offsets] = True  # an empty text marks its successor's first token, which is marked anyway
    return starts[:-1]


def unpack(keys: Keys, order: int) -> NDArray[np.uint32]:
    """Decode keys: uint64 [m, words] -> uint32 [m, order]."""
    columns = []
    for column in range(order):
        late = column >= order - WORD_IDS
        last = order - 1 if late else order - WORD_IDS - 1  # the id in the word's lowest field
        columns.append((keys[:, -1 if late else 0] >> (_BITS * np.uint64(last - column))) & _FIELD)
    return np.stack(columns, axis=1).astype(np.uint32)


def pack(ngrams: NDArray[np.uint32]) -> Keys:
    """Encode n-grams, the inverse of `unpack`: uint32 [m, order] -> uint64 [m, words]."""
    order = ngrams.shape[1]
    keys = np.zeros((ngrams.shape[0], words(order)), np.uint64)
    for column in range(order):
        _append(keys, order, column, ngrams[:, column])
    return keys


def _append(keys: Keys, order: int, column: int, ids: NDArray[np.unsignedinteger]) -> None:
    """Append one column of ids to keys. Keys start at 0, and columns come in order."""
    word = keys[:, 0 if column < order - WORD_IDS else -1]
    word <<= _BITS
    word |= ids
