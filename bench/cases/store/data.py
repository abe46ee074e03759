"""The data that the store is measured on: texts of LENGTH tokens, their n-grams, and vectors to store."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import pack_keys, roles, unpack_keys
from numpy.typing import NDArray

from hmi.errors import InvalidInput
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.corpus import read_documents

LENGTH = 128
DEPTH = 4
"""Versions of the deepest chain: a root and three branches, each on the one before."""
VOCAB = 30_522
"""The default root's vocabulary."""
BRANCH_SHARE = 10
"""A branch stores the root's number of n-grams divided by this."""
FOLLOW = 0.95
"""Probability that a synthetic token is chosen by the one before. With NEAR it gives hits as in real text."""
NEAR = 1500
"""Ranks that share a continuation. The larger this is, the fewer continuations a token has."""
TOKENS_A_KEY = 4
"""Tokens of synthetic text drawn at first for each distinct trigram that is wanted."""
LEAST_TEXTS = 32
"""The least number of texts, two batches."""
AT_ONCE = 256
"""Documents tokenised together."""
UNCUT = 1 << 30
"""A limit of tokens that cuts no document."""
POOL = 2048
"""N-grams whose vectors are drawn. All others share these vectors; more would only cost memory."""

Texts = NDArray[np.int32]
"""[texts, LENGTH], ids 1..VOCAB-1."""
Ngrams = NDArray[np.uint32]
"""[m, order]."""


@dataclass(frozen=True)
class SourceTexts:
    """Texts of one source.

    The root is built from `parts[0]`, its branches from the others; `unseen` is held out.
    """

    source: str
    parts: tuple[Texts, ...]
    unseen: Texts


def zipf_sample(keys: int, seed: int = 7) -> SourceTexts:
    """Return synthetic text whose root has `keys` distinct trigrams, or at most a text's more."""
    rng = np.random.default_rng(seed)
    texts = zipf_texts(max(8, keys * TOKENS_A_KEY // LENGTH), 0, rng)
    while len(first_seen(texts)) < keys:  # each further distinct trigram takes more text
        texts = np.concatenate([texts, zipf_texts(max(8, len(texts) // 4), 0, rng)])
    root = reaching(texts, keys)
    branches = [zipf_texts(max(8, len(root) // BRANCH_SHARE), topic, rng) for topic in range(1, DEPTH)]
    return SourceTexts("Zipf", (root, *branches), zipf_texts(512, DEPTH - 1, rng))


def zipf_texts(count: int, topic: int, rng: np.random.Generator) -> Texts:
    """Return `count` texts in which a token often determines the next one.

    Half of a topic's tokens are shared by all topics.
    """
    weights = np.cumsum(1 / np.arange(1, VOCAB))
    ranks = np.searchsorted(weights / weights[-1], rng.random((LENGTH, count)))
    follows = rng.random((LENGTH, count)) < FOLLOW
    topics = topic * (rng.random((LENGTH, count)) < 0.5)
    texts = np.empty((LENGTH, count), np.int64)
    previous = np.zeros(count, np.int64)
    for i in range(LENGTH):
        continued = ranks[i] // NEAR + previous * 48_271 + topics[i] * 7_919
        anew = ranks[i] * 11 + topics[i] * 101
        texts[i] = previous = np.where(follows[i], continued, anew) % (VOCAB - 1) + 1
    return np.ascontiguousarray(texts.T.astype(np.int32))


def corpus_sample(path: Path, keys: int) -> SourceTexts:
    """Return real text, one document a line, tokenised by the default root.

    The root has `keys` distinct trigrams, or those of six tenths of the corpus if these are fewer. Raises
    InvalidInput if there is too little text.
    """
    tokenizer = Tokenizer(find_source(DEFAULT_PACKAGE).folder / "tokenizer.json")
    streams: list[list[int]] = [[] for _ in range(DEPTH + 1)]
    documents = read_documents(path)
    while batch := list(itertools.islice(documents, AT_ONCE)):
        for document, encoded in zip(batch, tokenizer.encode(batch, UNCUT), strict=True):
            streams[part_of(document)] += encoded.ids
        if len(streams[0]) > keys * TOKENS_A_KEY and min(map(len, streams)) >= LEAST_TEXTS * LENGTH:
            break
    parts = [np.array(ids[: len(ids) // LENGTH * LENGTH], np.int32).reshape(-1, LENGTH) for ids in streams]
    if min(map(len, parts)) < LEAST_TEXTS:
        raise InvalidInput(
            f"{path} has too little text to measure with: give some 100,000 words", field="corpus"
        )
    return SourceTexts(path.name, (reaching(parts[0], keys), *parts[1:DEPTH]), parts[DEPTH])


def reaching(texts: Texts, keys: int) -> Texts:
    """Return the first texts that together have `keys` distinct trigrams, or all if they have fewer."""
    first = first_seen(texts)
    return texts if len(first) < keys else texts[: first[keys - 1] // LENGTH + 1]


def first_seen(texts: Texts) -> NDArray[np.int64]:
    """Return the positions, ascending, at which a trigram occurs for the first time."""
    return np.sort(np.unique(pack_keys(trigrams(texts))[:, 0], return_index=True)[1])


def part_of(document: str) -> int:
    """Return the part that a document belongs to: the root's for six of ten. It depends on the text alone."""
    return max(0, xxhash.xxh3_64_intdigest(document.encode()) % 10 - 5)


def trigrams(texts: Texts) -> Ngrams:
    """Return the window around every token, uint32 [tokens, 3]; 0 is no neighbour."""
    padded = np.pad(texts, ((0, 0), (1, 1))).astype(np.uint32)
    return np.stack([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], axis=2).reshape(-1, 3)


def bigrams(texts: Texts) -> Ngrams:
    """Return every pair of neighbours, uint32 [pairs, 2]."""
    return np.stack([texts[:, :-1], texts[:, 1:]], axis=2).reshape(-1, 2).astype(np.uint32)


def distinct(ngrams: Ngrams, most: int | None = None) -> Ngrams:
    """Return the distinct n-grams, at most the `most` most frequent ones, in the order in which a build
    stores them.

    This is by falling power of two of their count, then by key, so that rows used together lie together.
    """
    keys, counts = np.unique(pack_keys(ngrams)[:, 0], return_counts=True)
    order = np.lexsort((keys, -np.floor(np.log2(counts))))
    return unpack_keys(keys[order[:most], None], ngrams.shape[1])


class RandomVectors:
    """Random vectors for any number of n-grams, drawn once.

    Their int8 codes are as incompressible as real ones.
    """

    def __init__(self, dim: int, seed: int = 11) -> None:
        rng = np.random.default_rng(seed)
        self.dim = dim
        self._pools = {k: rng.standard_normal((2 * POOL, roles(3, k), dim), np.float32) for k in (1, 2, 3)}

    def blocks(self, ngrams: Ngrams) -> Iterator[tuple[Ngrams, NDArray[np.float32]]]:
        """Yield the n-grams with their vectors, POOL at a time."""
        pool = self._pools[ngrams.shape[1]]
        for number, at in enumerate(range(0, len(ngrams), POOL)):
            some, start = ngrams[at : at + POOL], number * 97 % POOL
            yield some, pool[start : start + len(some)]
