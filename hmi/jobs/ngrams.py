"""Counting a corpus' n-grams and choosing which a PLOT stores.

Coverage is by occurrence: the most frequent n-grams that together make up α% of all occurrences
(HMI section 7.7; section 5.1's "α% of the fragments" does not fit the paper's own sizes). Counts
lie on disk, in the job's folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from hmi.jobs.plots import Wanted
from hmi.jobs.runtime.context import JobContext
from hmi.model.tokenizer import Tokenizer
from hmi.training.data.corpus import read_documents
from plot_store import CountedNgrams, NgramCounter

N: Final = 3
TOKENISE_AT_ONCE: Final = 256
UNCUT: Final = 1 << 30
LONGEST_PIECE: Final = 100_000

# Tokens, and where each text begins and the last one ends.
Ragged = tuple[NDArray[np.int32], NDArray[np.int64]]


def count_corpus(
    ctx: JobContext, tokenizer: Tokenizer, corpora: Sequence[Path], documents: int, n: int = N
) -> CountedNgrams:
    """The counts of all corpora together, or those of an earlier attempt at the same job if it finished them.

    Raises as `read_documents` and as `NgramCounter`, JobCancelled, JobStopped.
    """
    folder = ctx.folder / "counts"
    found = CountedNgrams.open(folder)
    if found is not None:
        return found
    with NgramCounter(n, range(2, n + 1), folder) as counter:
        done = 0
        for tokens, offsets in (batch for corpus in corpora for batch in tokenised(tokenizer, corpus)):
            counter.add(tokens, offsets)
            done += len(offsets) - 1
            # Long documents count as several.
            ctx.progress(min(done, documents), documents, phase="counting n-grams")
        made = counter.finish(lambda merged, of: ctx.progress(merged, of, phase="merging counts"))
    ctx.checkpointed()
    return made


def choose(counted: CountedNgrams, alpha: float, min_count: int = 1) -> list[Wanted]:
    """The longest n-grams that cover α% of their occurrences, the next shorter ones that cover half
    of the rest, and so on down to bigrams.

    A missed trigram falls back on bigrams, and few of them are needed: at α = 50 they cover 75%.
    """
    rest = {order: 1 - 0.5 ** (counted.n - order) for order in range(2, counted.n + 1)}
    shares = {order: alpha + (100 - alpha) * share if alpha > 0 else 0 for order, share in rest.items()}
    return [
        Wanted(order, counted.chosen(order, share, min_count), counted.covering(order, share, min_count))
        for order, share in shares.items()
    ]


def tokenised(tokenizer: Tokenizer, corpus: Path) -> Iterator[Ragged]:
    """The documents' ids, uncut, some documents at a time; one of over LONGEST_PIECE characters
    comes as several."""
    batch: list[str] = []
    for document in read_documents(corpus):
        for piece in pieces(document):
            batch.append(piece)
            if len(batch) == TOKENISE_AT_ONCE:
                yield ragged([e.ids for e in tokenizer.encode(batch, UNCUT)])
                batch = []
    if batch:
        yield ragged([e.ids for e in tokenizer.encode(batch, UNCUT)])


def ragged(texts: Sequence[Sequence[int]]) -> Ragged:
    """Texts end to end: tokens int32 [total], offsets int64 [texts + 1]."""
    tokens = np.fromiter((i for text in texts for i in text), np.int32)
    return tokens, np.cumsum([0, *map(len, texts)], dtype=np.int64)


def pieces(document: str, longest: int = LONGEST_PIECE) -> Iterator[str]:
    """A document split at whitespace into pieces of at most `longest` characters (mid-word where
    there is none)."""
    start = 0
    while len(document) - start > longest:
        end = start + longest
        while end > start and not document[end].isspace():
            end -= 1
        end = end if end > start else start + longest
        yield document[start:end]
        start = end
    yield document[start:]
