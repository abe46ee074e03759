"""Makes changed copies of a tenant's rows for a teacher to label (data augmentation: TinyBERT, Jiao
et al., 2020, section 3.2). They serve tenants without unlabelled text.

A word is replaced by one whose vector in the source's vocabulary is near, or by any word of the
rows. The teacher labels the changed text, so it need not make sense.
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

from hmi.model.text.tokenizer import Text, Tokenizer
from hmi.training.data.rows import Row

REPLACED_FRACTION = 0.3
"""Fraction of a text's words that a copy replaces (docs/design/0003-tenant-module.md)."""
NEAREST = 8
"""Number of similar words kept for a word."""
MAX_CHARACTERS = 32_768
"""A copy keeps at most this many characters of a text, more than all windows of a text hold."""
MAX_WORDS = 4_096
"""A copy keeps at most this many words of a text that is given as words, more than all its windows hold."""
BATCH_WORDS = 256
"""Neighbours are searched for this many words in one matrix product."""
_MARKS = "".join(chr(i) for i in range(0x300, 0x10000) if unicodedata.category(chr(i)).startswith("M"))
_PIECE = re.compile(rf"</?\w+>|\[/?\w+\]|[\w{_MARKS}]+|[^\w{_MARKS}]", re.DOTALL)
"""Splits a text into words, other characters, and markers such as <e1> or [/E1], which must stay whole."""
_is_word = re.compile(r"\w").match

Similar = Mapping[str, Sequence[str]]
"""Word -> the words that may replace it."""


def variants(rows: Sequence[Row], times: int, similar: Similar, seed: int, most: int) -> list[Row]:
    """Make `times` changed copies of each row, at most `most` in all, without answers.

    Each word is replaced with probability REPLACED_FRACTION; at least one is replaced. Half of the
    time the replacement is a similar word, if there is one; else it is drawn from all words of the
    rows by frequency. Spaces and punctuation stay, and so does the number of words of a text that
    is given as words.
    """
    rng = random.Random(seed)
    counts = Counter(piece for row in rows for text in _pieces(row.text) for piece in text if _is_word(piece))
    words, weights = list(counts), list(accumulate(counts.values()))

    def another(word: str) -> str:
        near = similar.get(word, ()) if rng.random() < 0.5 else ()
        return _cased(rng.choice(near), word) if near else rng.choices(words, cum_weights=weights)[0]

    def changed(row: Row) -> Row:
        texts = _pieces(row.text)
        places = [(text, i) for text in texts for i, piece in enumerate(text) if _is_word(piece)]
        some = [place for place in places if rng.random() < REPLACED_FRACTION]
        for text, i in some or rng.sample(places, min(1, len(places))):
            text[i] = another(text[i])
        return Row(_joined(texts, row.text), "")

    wanted = min(most, times * len(rows))
    return [changed(row) for row in islice(cycle(rng.sample(rows, len(rows))), wanted)]


def similar_words(rows: Iterable[Row], tokenizer: Tokenizer, vectors: Tensor) -> dict[str, list[str]]:
    """For each word of the rows that is one token, the NEAREST other whole-word tokens by cosine.

    vectors: the source's word embeddings [vocab, dim].
    """
    words = sorted({piece for row in rows for text in _pieces(row.text) for piece in text if _is_word(piece)})
    ids, whole = tokenizer.ids_of(words), tokenizer.whole_words()
    single = [(word, of[0]) for word, of in zip(words, ids, strict=True) if len(of) == 1 and of[0] in whole]
    if not single:
        return {}
    known = torch.tensor(list(whole))
    directions = normalize(vectors[known].float(), dim=1)
    found: dict[str, list[str]] = {}
    for start in range(0, len(single), BATCH_WORDS):
        some = single[start : start + BATCH_WORDS]
        own = torch.tensor([token for _, token in some])
        scores = normalize(vectors[own].float(), dim=1) @ directions.T
        scores[known == own[:, None]] = -1.0
        nearest = known[scores.topk(min(NEAREST, len(known)), dim=1).indices].tolist()
        for (word, token), near in zip(some, nearest, strict=True):
            found[word] = [whole[i] for i in near if i != token]
    return found


def _pieces(text: Text) -> list[list[str]]:
    """The pieces of a text, or of each text of a pair; for a text given as words, the words."""
    if isinstance(text, list):
        return [text[:MAX_WORDS]]
    return [_PIECE.findall(part[:MAX_CHARACTERS]) for part in (text if isinstance(text, tuple) else (text,))]


def _joined(texts: list[list[str]], like: Text) -> Text:
    if isinstance(like, list):
        return texts[0]
    parts = tuple("".join(pieces) for pieces in texts)
    return cast(tuple[str, str], parts) if isinstance(like, tuple) else parts[0]


def _cased(word: str, like: str) -> str:
    """`word` in the case of `like`. An uncased vocabulary yields lower-case words, from which a
    model could tell copies."""
    if len(like) > 1 and like.isupper():
        return word.upper()
    return word.capitalize() if like[0].isupper() else word
