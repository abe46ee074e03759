"""Writing a PLOT version: which n-grams, their rows in batches, one atomic publish. Shared by roots and branches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hmi.errors import Conflict
from hmi.jobs.context import JobContext
from hmi.jobs.ngrams import Keys, pack, unpack
from hmi.model.lower import LocalLower
from plot_store import AS_OPENED, Reader, Schema, VersionInfo, Writer

BATCH = 1024
STORAGE: Final = "int8"

Compute = Callable[[torch.Tensor], torch.Tensor]


def write_version(
    ctx: JobContext,
    ref: str,
    lower: LocalLower,
    keys: Mapping[int, Keys],
    *,
    parent: str | None,
    onto: str | None,
    extend: bool,
    meta: dict[str, Any],
) -> VersionInfo:
    """Compute the rows of `keys` (by order) and publish them as the next version of `ref`.

    `onto` is the version that an update was computed against: it must still be current, or Conflict is raised.
    Resumes from the last finished segment, and finds its own publication if it was killed just after it: `meta`
    carries the job's id. Raises Conflict, plot_store errors and JobCancelled.
    """
    published = find_published(ctx, ref)
    if published is not None:
        return published
    schema = Schema(dim=lower.shape.dim, dtype=STORAGE, vocab=lower.shape.vocab)
    total = sum(map(len, keys.values()))
    with ctx.plots.writer(ref, schema=schema, parent=parent, build=ctx.job.job, extend=extend) as writer:
        if extend and (writer.base is None or writer.base.id != onto):
            raise Conflict(f"{ref} has moved from version {onto} since this update began: update it again")
        done = 0
        for order, wanted in sorted(keys.items()):
            done = _write_order(ctx, writer, lower, order, wanted, done, total)
        return writer.publish(expect=AS_OPENED if onto is None else onto, meta=meta)


def find_published(ctx: JobContext, ref: str) -> VersionInfo | None:
    """The version that this very job has published already, before it was killed; None if it has not."""
    if ref not in ctx.plots.refs():
        return None
    return next((v for v in ctx.plots.history(ref) if v.build == ctx.job.job), None)


def _write_order(
    ctx: JobContext, writer: Writer, lower: LocalLower, order: int, keys: Keys, done: int, total: int
) -> int:
    compute = _compute(lower, order)
    start = writer.resume_point(order)
    done += start
    for at in range(start, len(keys), BATCH):
        ngrams = unpack(keys[at : at + BATCH], order)
        writer.add(order, ngrams, compute(ngrams))
        done += len(ngrams)
        ctx.progress(done, total, phase="representations")
    return done


def _compute(lower: LocalLower, order: int) -> Callable[[NDArray[np.uint32]], NDArray[np.float32]]:
    forward: dict[int, Compute] = {
        1: lambda t: lower.unigram_entries(t[:, 0]),
        2: lower.bigram_entries,
        3: lower.entries,
    }

    @torch.inference_mode()
    def compute(ngrams: NDArray[np.uint32]) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = forward[order](torch.from_numpy(ngrams.astype(np.int64))).numpy()
        return rows

    return compute


def not_stored(reader: Reader, order: int, keys: Keys, lower: str | None) -> Keys:
    """Those of `keys` that a look-up would not find as the lower layers `lower` compute them; the rest is shared."""
    if not len(keys):
        return keys
    # Depth -1 (absent) picks the last entry.
    same = np.array([*(version.meta.get("lower") == lower for version in reader.chain), False])
    kept: Keys = keys[~same[reader.depths(order, unpack(keys, order))]]
    return kept


def stored(reader: Reader, order: int) -> Keys:
    """The n-grams that the reader's own version stores, its parents' left out."""
    return pack(reader.own(order))
