"""Counts a corpus' n-grams and chooses which of them a PLOT stores.

α is a share of occurrences: a PLOT stores the most frequent n-grams that together make up α% of
them (HMI, section 7.7; "α% of the fragments" in section 5.1 does not fit the paper's own sizes).
The counts are kept on disk, in the job's folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hmi.jobs.plot.write_plot import Wanted
from hmi.jobs.runtime.context import JobContext
from hmi.model.text.generative import GenerativeTokenizer
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.corpus import read_documents
from plot_store import CountedNgrams, NgramCounter

N: Final = 3
TOKENISE_AT_ONCE: Final = 256
UNCUT: Final = 1 << 30
"""A maximal length that cuts no text."""
LONGEST_PIECE: Final = 100_000
"""Characters. Longer documents are tokenised and counted in pieces."""

Ragged = tuple[NDArray[np.int32], NDArray[np.int64]]
"""The tokens of several texts, end to end [total], and their offsets [texts + 1]: text i is
tokens[offsets[i]:offsets[i + 1]]."""


def count_corpus(
    ctx: JobContext,
    tokenizer: Tokenizer | GenerativeTokenizer,
    corpora: Sequence[Path],
    documents: int,
    n: int = N,
    folder: str = "counts",
) -> CountedNgrams:
    """Count the n-grams of all corpora together, in the windows of the tokenizer's models.

    folder: its name in the job's folder. Finished counts of an earlier attempt at the job are reused. Raises
    as `read_documents` and as `NgramCounter`, JobCancelled, JobStopped.
    """
    kept = ctx.folder / folder
    found = CountedNgrams.open(kept)
    if found is not None:
        return found
    made = count_texts(
        tokenizer,
        chain.from_iterable(map(texts_of, corpora)),
        n,
        kept,
        # A long document counts as several, so `done` may pass `documents`.
        lambda done: ctx.progress(min(done, documents), documents, phase="counting n-grams"),
        lambda merged, of: ctx.progress(merged, of, phase="merging counts"),
    )
    ctx.checkpointed()
    return made


def count_texts(
    tokenizer: Tokenizer | GenerativeTokenizer,
    texts: Iterable[str],
    n: int,
    folder: Path,
    counted: Callable[[int], None],
    merged: Callable[[int, int], None],
) -> CountedNgrams:
    """Count the n-grams of texts, in the windows of the tokenizer's models.

    counted(texts so far). merged: see `NgramCounter.finish`. Raises as `NgramCounter`, and what these raise.
    """
    with NgramCounter(n, range(min(2, n), n + 1), folder, window=tokenizer.window) as counter:
        done = 0
        for tokens, offsets in tokenised(tokenizer, texts):
            counter.add(tokens, offsets)
            done += len(offsets) - 1
            counted(done)
        return counter.finish(merged)


def choose(counted: CountedNgrams, alpha: float, min_count: int = 1) -> list[Wanted]:
    """Choose the n-grams of each order, from the longest to bigrams, by the share of occurrences to cover.

    The longest n-grams cover α%. Each shorter order covers half of what the next longer one leaves: with
    n = 3 and α = 50, bigrams cover 75%. A missed trigram falls back on bigrams, of which few are needed.
    """
    rest = {order: 1 - 0.5 ** (counted.n - order) for order in range(2, counted.n + 1)}
    shares = {order: alpha + (100 - alpha) * share if alpha > 0 else 0 for order, share in rest.items()}
    return [
        Wanted(order, counted.chosen(order, share, min_count), counted.covering(order, share, min_count))
        for order, share in shares.items()
    ]


def texts_of(corpus: Path) -> Iterator[str]:
    """Yield the texts of a corpus that are counted. A document of more than LONGEST_PIECE characters is
    several. Raises as `read_documents`."""
    return (piece for document in read_documents(corpus) for piece in pieces(document))


def tokenised(tokenizer: Tokenizer | GenerativeTokenizer, texts: Iterable[str]) -> Iterator[Ragged]:
    """Tokenise texts in batches, without cutting."""
    every = iter(texts)
    while batch := list(islice(every, TOKENISE_AT_ONCE)):
        yield ragged([e.ids[tokenizer.first_counted :] for e in tokenizer.encode(batch, UNCUT)])


def ragged(texts: Sequence[Sequence[int]]) -> Ragged:
    """Concatenate texts. Returns tokens int32 [total] and offsets int64 [texts + 1]."""
    tokens = np.fromiter((i for text in texts for i in text), np.int32)
    return tokens, np.cumsum([0, *map(len, texts)], dtype=np.int64)


def pieces(document: str, longest: int = LONGEST_PIECE) -> Iterator[str]:
    """Split a document at whitespace into pieces of at most `longest` characters. Where there is no
    whitespace, it is split in mid-word."""
    start = 0
    while len(document) - start > longest:
        end = start + longest
        while end > start and not document[end].isspace():
            end -= 1
        end = end if end > start else start + longest
        yield document[start:end]
        start = end
    yield document[start:]
