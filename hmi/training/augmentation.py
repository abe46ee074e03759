"""Changed copies of a tenant's rows for a teacher to label, for tenants without other text (the
data augmentation of TinyBERT, Jiao et al., 2020, section 3.2).

A word is replaced by one whose vector in the source's vocabulary is near, or by any word of the
rows. The teacher labels the copy as it then stands, so the copy need not be a sentence.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, cycle, islice
from typing import cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from hmi.model.tokenizer import Text, Tokenizer
from hmi.training.data.rows import Row

SHARE = 0.3
"""Fraction of a text's words that a copy replaces (docs/design/0003-tenant-module.md)."""
NEAREST = 8
MOST_CHARACTERS, MOST_WORDS = 32_768, 4_096
"""Characters and words of a text that its copies keep; the rest is left out. All windows of a
text hold fewer."""
AT_ONCE = 256
"""Words whose neighbours are sought in one product."""
_MARKS = "".join(chr(i) for i in range(0x300, 0x10000) if unicodedata.category(chr(i)).startswith("M"))
_PIECE = re.compile(rf"</?\w+>|\[/?\w+\]|[\w{_MARKS}]+|[^\w{_MARKS}]", re.DOTALL)
"""A marker (<e1>, [/E1]) in one piece, since a changed one would mark nothing; a word; or
one other character."""
_is_word = re.compile(r"\w").match

Similar = Mapping[str, Sequence[str]]
"""For each word the words that may replace it."""


def variants(rows: Sequence[Row], times: int, similar: Similar, seed: int, most: int) -> list[Row]:
    """`times` copies of each row, at most `most` in all, without answers. Each word, and at least
    one, is replaced with probability SHARE: half of the time by a similar word, if there are any,
    else by one drawn from all words of the rows by frequency. Spaces and punctuation stay, and so
    does the number of words that are given as a list."""
    rng = random.Random(seed)
    counts = Counter(piece for row in rows for text in _pieces(row.text) for piece in text if _is_word(piece))
    words, weights = list(counts), list(accumulate(counts.values()))

    def another(word: str) -> str:
        near = similar.get(word, ()) if rng.random() < 0.5 else ()
        return _cased(rng.choice(near), word) if near else rng.choices(words, cum_weights=weights)[0]

    def changed(row: Row) -> Row:
        texts = _pieces(row.text)
        places = [(text, i) for text in texts for i, piece in enumerate(text) if _is_word(piece)]
        some = [place for place in places if rng.random() < SHARE]
        for text, i in some or rng.sample(places, min(1, len(places))):
            text[i] = another(text[i])
        return Row(_joined(texts, row.text), "")

    wanted = min(most, times * len(rows))
    return [changed(row) for row in islice(cycle(rng.sample(rows, len(rows))), wanted)]


def similar_words(rows: Iterable[Row], tokenizer: Tokenizer, vectors: Tensor) -> dict[str, list[str]]:
    """For each word of the rows that is also a whole word of the vocabulary, its NEAREST others by cosine.

    vectors: the source's word embeddings [vocab, dim].
    """
    words = sorted({piece for row in rows for text in _pieces(row.text) for piece in text if _is_word(piece)})
    ids = [encoded.ids[1:-1] for encoded in tokenizer.encode([[word] for word in words], 4)]
    whole = tokenizer.whole_words()
    single = [(word, of[0]) for word, of in zip(words, ids, strict=True) if len(of) == 1 and of[0] in whole]
    if not single:
        return {}
    known = torch.tensor(list(whole))
    directions = normalize(vectors[known].float(), dim=1)
    found: dict[str, list[str]] = {}
    for start in range(0, len(single), AT_ONCE):
        some = single[start : start + AT_ONCE]
        own = torch.tensor([token for _, token in some])
        scores = normalize(vectors[own].float(), dim=1) @ directions.T
        scores[known == own[:, None]] = -1.0
        nearest = known[scores.topk(min(NEAREST, len(known)), dim=1).indices].tolist()
        for (word, token), near in zip(some, nearest, strict=True):
            found[word] = [whole[i] for i in near if i != token]
    return found


def _pieces(text: Text) -> list[list[str]]:
    """The words of a text, of both texts of a pair, or the given words."""
    if isinstance(text, list):
        return [text[:MOST_WORDS]]
    return [_PIECE.findall(part[:MOST_CHARACTERS]) for part in (text if isinstance(text, tuple) else (text,))]


def _joined(texts: list[list[str]], like: Text) -> Text:
    if isinstance(like, list):
        return texts[0]
    parts = tuple("".join(pieces) for pieces in texts)
    return cast(tuple[str, str], parts) if isinstance(like, tuple) else parts[0]


def _cased(word: str, like: str) -> str:
    """The word with the case of another: an uncased vocabulary has none, which a model may learn from."""
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word.capitalize() if like[0].isupper() else word
