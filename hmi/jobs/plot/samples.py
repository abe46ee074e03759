"""Samples of domains' corpora in jobs: a build keeps one, and a training draws a pool of texts from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from hmi.errors import Damaged
from hmi.jobs.runtime.context import JobContext
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.training.data.corpus import read_documents
from hmi.training.data.passages import sample_corpus
from hmi.training.data.rows import Row
from hmi.training.second.pool import draw_pool
from plot_store import VersionInfo

EVERY = 256
"""Documents between two reports of progress."""


@dataclass(frozen=True)
class KeptSample:
    """The sample of a build, and the fields of the build's report about it."""

    name: str | None = None
    report: dict[str, int] = field(default_factory=dict)


def keep_sample(
    ctx: JobContext, corpus: Path, documents: int, wanted: bool | None, before: str | None
) -> KeptSample:
    """Draw the sample of a build and store it, unless the option or the setting says not to.

    documents: the number of the corpus's documents. before: the sample of the version that the build updates;
    the new one is drawn from both corpora. A resumed build draws the same. Raises InvalidData (not a corpus),
    StorageFull, JobCancelled.
    """
    if not (ctx.settings.corpus_samples if wanted is None else wanted):
        return KeptSample()
    passages = sample_corpus(chain(_read(ctx, before), _watched(ctx, read_documents(corpus), documents)))
    name = ctx.samples.put(passages)
    return KeptSample(name, {"sample_passages": len(passages), "sample_bytes": ctx.samples.size_of(name)})


def draw_texts(
    ctx: JobContext, plot: VersionInfo, rows: Sequence[Row], held_out: Sequence[Row], most: int, seed: int
) -> list[Row]:
    """Draw at most `most` unlabelled texts for a teacher from the samples of a domain and its ancestors.

    The domain's own sample comes first; what it lacks is drawn from its parent's, and so on. There are none
    without a sample. `rows` and `held_out` are as in `draw_pool`. Raises Unavailable.
    """
    drawn: list[Row] = []
    for version in ctx.plots.chain(plot.id):
        left = most - len(drawn)
        texts = _read(ctx, PlotMeta.of(version).sample) if left else []
        drawn += draw_pool(rows, texts, left, seed, held_out=[*held_out, *drawn])
    return drawn


def _read(ctx: JobContext, name: str | None) -> list[str]:
    """The passages of a sample; none, and a line in the job's log, if it is damaged."""
    try:
        return ctx.samples.get(name)
    except Damaged as error:
        ctx.log(error.message)
        return []


def _watched(ctx: JobContext, documents: Iterable[str], total: int) -> Iterator[str]:
    """The documents. Reports progress, so that the job can be stopped meanwhile."""
    for done, document in enumerate(documents):
        if done % EVERY == 0:
            ctx.progress(done, total, phase="sampling texts")
        yield document
    ctx.progress(total, total, phase="sampling texts")
