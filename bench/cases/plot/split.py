"""Splits a corpus into built and held-out documents, and estimates how many fit in a given time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Keys, pack_keys

from bench.cases.store.data import UNCUT
from hmi.errors import InvalidInput
from hmi.model.tokenizer import Tokenizer
from hmi.training.data.corpus import read_documents

LEFT_OUT_SHARE = 10
"""One document in this many is held out."""
MOST_LEFT_OUT = 2000
AT_ONCE = 256
FIRST_ESTIMATE = 500
"""Documents of the first estimate."""
GROWTH = 1.3
"""The ratio of an estimate's documents to those of the one before."""


@dataclass(frozen=True)
class CorpusSplit:
    """A corpus's documents in two parts, each in the order of the file."""

    built: list[str]
    left_out: list[str]


def split(corpus: Path, limit: int | None) -> CorpusSplit:
    """Read and split a corpus. A document's part depends on its text alone.

    `limit` is the greatest number of documents to build from. Raises InvalidInput if a part is too small,
    InvalidData if the corpus cannot be read.
    """
    built: list[str] = []
    left_out: list[str] = []
    for document in read_documents(corpus):
        if xxhash.xxh3_64_intdigest(document.encode()) % LEFT_OUT_SHARE:
            built.append(document)
        elif len(left_out) < MOST_LEFT_OUT:
            left_out.append(document)
        if limit is not None and len(built) >= limit:
            break
    if len(built) < 2 or not left_out:
        raise InvalidInput(f"{corpus} has too few documents: give at least 100, one a line", field="corpus")
    return CorpusSplit(built, left_out)


@dataclass(frozen=True)
class Rates:
    """The rates of a pilot build."""

    tokens: float
    """Tokens counted a second."""
    rows: float
    """Rows computed and stored a second."""
    fixed_s: float
    """Seconds of the rest of a build: starting, loading, publishing."""


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of builds from the first `documents` documents."""

    documents: int
    tokens: int
    rows: int
    seconds: float


def estimates(
    documents: Sequence[str], tokenizer: Tokenizer, alphas: Sequence[float], rates: Rates
) -> Iterator[Estimate]:
    """Yield an estimate for more and more of the first documents, up to all of them.

    Each estimate is for one build at every alpha together.
    """
    tri, pairs = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    done, upto = 0, FIRST_ESTIMATE
    while done < len(documents):
        upto = min(upto, len(documents))
        for at in range(done, upto, AT_ONCE):
            for encoded in tokenizer.encode(documents[at : min(at + AT_ONCE, upto)], UNCUT):
                tri.append(_keys(encoded.ids, 3))
                pairs.append(_keys(encoded.ids, 2))
        done, upto = upto, max(upto + 1, int(upto * GROWTH))
        tri, pairs = [np.concatenate(tri)], [np.concatenate(pairs)]
        rows = sum(covering(tri[0], alpha) + covering(pairs[0], (100 + alpha) / 2) for alpha in alphas)
        tokens = len(tri[0])
        seconds = len(alphas) * (tokens / rates.tokens + rates.fixed_s) + rows / rates.rows
        yield Estimate(done, tokens, rows, seconds)


def _keys(ids: list[int], order: int) -> Keys:
    """Return a document's packed windows (order 3, ends included) or pairs."""
    text = np.array(ids, np.uint32)
    if order == 3:
        text = np.pad(text, 1)
    return pack_keys(np.lib.stride_tricks.sliding_window_view(text, order))[:, 0]


def covering(keys: Keys, alpha: float) -> int:
    """Return how many of the most frequent n-grams cover `alpha` percent of the occurrences in `keys`."""
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    return int(np.searchsorted(np.cumsum(counts), alpha / 100 * len(keys) - 1e-6)) + 1


def fitting(found: Iterator[Estimate], seconds: float) -> Estimate:
    """Return the last estimate within `seconds`, or the first if none is."""
    best = next(found)
    for estimate in found:
        if estimate.seconds > seconds:
            break
        best = estimate
    return best
