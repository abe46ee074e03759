"""Splitting a corpus into documents to build from and held-out ones; how many documents a build handles in a
given time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash
from hmi_kernels.lookup.layout import Keys, pack_keys

from hmi.bench.store_data import UNCUT
from hmi.errors import InvalidInput
from hmi.model.tokenizer import Tokenizer
from hmi.training.data.corpus import read_documents

LEFT_OUT_SHARE = 10  # one document in so many
MOST_LEFT_OUT = 2000
AT_ONCE = 256
FIRST_LOOK = 500  # documents
GROWTH = 1.3  # from one look to the next


@dataclass(frozen=True)
class CorpusSplit:
    """Documents in the order of the file."""

    built: list[str]
    left_out: list[str]


def split(corpus: Path, limit: int | None) -> CorpusSplit:
    """Which part a document belongs to is decided by its text alone. `limit`: of documents to build from.

    Raises InvalidInput where one part is too small, InvalidData where the corpus cannot be read.
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
    """What a pilot build took."""

    tokens: float  # counted, a second
    rows: float  # computed and stored, a second
    fixed_s: float  # the rest of a build: starting, loading, publishing


@dataclass(frozen=True)
class Estimate:
    """What builds of the first `documents` will come to."""

    documents: int
    tokens: int
    rows: int
    seconds: float


def estimates(
    documents: Sequence[str], tokenizer: Tokenizer, alphas: Sequence[float], rates: Rates
) -> Iterator[Estimate]:
    """For growing beginnings of the documents, up to all of them: one build for each alpha together."""
    tri, pairs = [np.zeros(0, np.uint64)], [np.zeros(0, np.uint64)]
    done, upto = 0, FIRST_LOOK
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
    """The packed windows (order 3, ends included) or pairs of one document."""
    text = np.array(ids, np.uint32)
    if order == 3:
        text = np.pad(text, 1)
    return pack_keys(np.lib.stride_tricks.sliding_window_view(text, order))[:, 0]


def covering(keys: Keys, alpha: float) -> int:
    """How many n-grams, the most frequent first, make up alpha percent of these occurrences."""
    counts = np.sort(np.unique(keys, return_counts=True)[1])[::-1]
    return int(np.searchsorted(np.cumsum(counts), alpha / 100 * len(keys) - 1e-6)) + 1


def fitting(found: Iterator[Estimate], seconds: float) -> Estimate:
    """The last estimate within the time (the first, if none is)."""
    best = next(found)
    for estimate in found:
        if estimate.seconds > seconds:
            break
        best = estimate
    return best
