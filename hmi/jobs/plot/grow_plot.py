"""Grows a PLOT by the n-grams that a domain's texts missed most. They come from the sketch in
the job's input."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hmi.core import DomainId
from hmi.errors import Conflict
from hmi.jobs.plot.write_plot import Wanted, in_chunks, only_missing, write_version
from hmi.jobs.runtime.context import JobContext
from hmi.model.sources.lower import LocalLower
from hmi.stores.plot.miss_files import SKETCH, MissFiles, read_sketch
from hmi.stores.plot.plot_meta import PlotMeta
from plot_store import VersionInfo


def grow(
    ctx: JobContext,
    domain: DomainId,
    parent: VersionInfo,
    lower_name: str | None,
    lower: LocalLower,
    min_count: int,
) -> VersionInfo:
    """Publish `parent` extended by the n-grams that were missed at least `min_count` times and are
    not stored yet.

    Raises Conflict if there are none, or if the domain has a newer version.
    """
    sketch = read_sketch(ctx.input / SKETCH)
    ngrams, counts, _ = sketch.top(min_count=min_count)
    wanted = [Wanted(sketch.n, len(ngrams), in_chunks(ngrams))]

    def meta(stored: Mapping[int, int]) -> PlotMeta:
        if not stored[sketch.n]:
            raise Conflict(
                f"the n-grams that {domain} missed often are all stored by now: there is nothing to grow by"
            )
        report = {
            "missed_trigrams": sketch.seen,
            "counted_trigrams": int(counts.sum()),
            "stored_trigrams": stored[sketch.n],
            "min_count": min_count,
        }
        return replace(PlotMeta.of(parent), report=report)

    with ctx.plots.reader(parent.id) as reader:
        missing = only_missing(wanted, reader, lower_name)
        return write_version(
            ctx, str(domain), lower, missing, parent=None, onto=parent.id, extend=True, meta=meta
        )


def delete_misses(ctx: JobContext, domain: DomainId, epoch: str | None) -> None:
    """Delete the recorded misses after the publication. A second call does nothing."""
    files = MissFiles(ctx.layout.misses)
    files.forget(str(domain), only_epoch=epoch)
