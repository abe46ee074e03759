"""Writing a PLOT version: which n-grams, their rows in batches, one atomic publish. Shared by
roots and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from hmi.errors import Conflict
from hmi.jobs.differences import Decide, Differences, StoreAll
from hmi.jobs.runtime.context import JobContext
from hmi.model.lower import LocalLower
from hmi.stores.plot_meta import PlotMeta
from plot_store import AS_OPENED, Reader, Schema, VersionInfo, Writer

BATCH = 1024
CHUNK = 32 * BATCH
STORAGE: Final = "int8"
ID_BITS: Final = 20  # a token id is below 2²⁰ (docs/plot-store.md, limits)

Ngrams = NDArray[np.uint32]  # [m, order]
Compute = Callable[[Ngrams], NDArray[np.float32]]  # the rows [m, roles, dim] of n-grams


@dataclass(frozen=True)
class Wanted:
    """The n-grams of one order that a version shall have: distinct, in chunks, always in the same order.

    `keep` drops those of a chunk that need not be stored; `total` counts without `keep`, so it may
    be too high.
    """

    order: int
    total: int
    chunks: Iterable[Ngrams]
    keep: Callable[[Ngrams], Ngrams] = lambda ngrams: ngrams


def write_version(
    ctx: JobContext,
    ref: str,
    lower: LocalLower,
    wanted: Sequence[Wanted],
    *,
    parent: str | None,
    onto: str | None,
    extend: bool,
    meta: Callable[[Mapping[int, int]], PlotMeta],
    differences: Differences | None = None,
) -> VersionInfo:
    """Compute the rows of the wanted n-grams and publish them as the next version of `ref`.

    `onto` is the version that an update was computed against: it must still be current, or Conflict
    is raised. `meta` is given how many n-grams of each order were stored; `differences` leaves some
    out (None: all are stored), shorter orders first, since they stand in for longer ones. Resumes
    from the last finished segment, and finds its own publication if it was killed just after it:
    the version names the build. Raises Conflict, plot_store errors and JobCancelled.
    """
    published = find_published(ctx, ref)
    if published is not None:
        return published
    schema = schema_of(lower)
    total = sum(want.total for want in wanted)
    with ctx.plots.writer(ref, schema=schema, parent=parent, build=ctx.job.job, extend=extend) as writer:
        if extend and (writer.base is None or writer.base.id != onto):
            raise Conflict(
                f"{ref} has moved from version {onto} since this update began: start the update again"
            )
        done, stored = 0, dict[int, int]()
        for want in sorted(wanted, key=lambda want: want.order):
            with (
                nullcontext(StoreAll())
                if differences is None
                else differences.of(writer, want.order) as decide
            ):
                stored[want.order] = _write_order(ctx, writer, lower, want, decide, done, total)
            done += want.total
            ctx.progress(done, total, phase="representations")
        return writer.publish(expect=AS_OPENED if onto is None else onto, meta=meta(stored).to_dict())


def find_published(ctx: JobContext, ref: str) -> VersionInfo | None:
    """The version that this very job has published already, before it was killed; None if it has not."""
    if ref not in ctx.plots.refs():
        return None
    return next((v for v in ctx.plots.history(ref) if v.build == ctx.job.job), None)


def schema_of(lower: LocalLower) -> Schema:
    """The stored n-grams that these lower layers computed."""
    return Schema(n=lower.n, dim=lower.shape.dim, dtype=STORAGE, vocab=lower.shape.vocab)


def _write_order(
    ctx: JobContext, writer: Writer, lower: LocalLower, want: Wanted, decide: Decide, done: int, total: int
) -> int:
    """How many n-grams of this order the version has now, those of an earlier attempt included."""
    compute = _compute(lower)
    durable, stored = writer.resume_point(want.order), 0
    for chunk in want.chunks:
        left = want.keep(chunk)
        for at in range(0, len(left), BATCH):
            stored += _write_batch(writer, left[at : at + BATCH], compute, decide, max(0, durable - stored))
            if writer.resume_point(want.order) > durable:
                ctx.checkpointed()
            ctx.progress(done + len(chunk) * at // len(left), total, phase="representations")
        done += len(chunk)
        ctx.progress(done, total, phase="representations")
    return stored


def _write_batch(writer: Writer, ngrams: Ngrams, compute: Compute, decide: Decide, durable: int) -> int:
    """How many of the n-grams the version has; of those the first `durable` are on disk already."""
    kept, order = decide.known(len(ngrams)), ngrams.shape[1]
    if kept is None:
        rows = compute(ngrams)
        kept = decide.now(ngrams, rows)
        fresh = np.flatnonzero(kept)[durable:]
        writer.add(order, ngrams[fresh], rows[fresh])
    elif (fresh := np.flatnonzero(kept)[durable:]).size:
        writer.add(order, ngrams[fresh], compute(ngrams[fresh]))
    return int(kept.sum())


def _compute(lower: LocalLower) -> Compute:
    @torch.inference_mode()
    def compute(ngrams: Ngrams) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = lower.ngram_entries(torch.from_numpy(ngrams.astype(np.int64))).numpy()
        return rows

    return compute


def missing(reader: Reader, order: int, ngrams: Ngrams, lower: str | None) -> NDArray[np.bool_]:
    """Which n-grams [m, order] a look-up would not find as the lower layers `lower` compute
    them, bool [m]."""
    # Depth -1 (absent) picks the last entry.
    same = np.array([*(PlotMeta.of(version).lower == lower for version in reader.chain), False])
    return np.asarray(~same[reader.depths(order, ngrams)])


def not_stored(reader: Reader, order: int, ngrams: Ngrams, lower: str | None) -> Ngrams:
    """Those of `ngrams` that ancestors lack; the others are shared."""
    kept: Ngrams = ngrams[missing(reader, order, ngrams, lower)]
    return kept


def only_missing(wanted: Sequence[Wanted], reader: Reader, lower: str | None) -> list[Wanted]:
    """Leave out what the reader's chain has already. The reader must stay open until all is written."""

    def keep(order: int) -> Callable[[Ngrams], Ngrams]:
        return lambda ngrams: not_stored(reader, order, ngrams, lower)

    return [replace(want, keep=keep(want.order)) for want in wanted]


def with_own(wanted: Sequence[Wanted], reader: Reader) -> list[Wanted]:
    """The wanted n-grams plus all that the reader's own version stores, without its ancestors'."""
    by_order = {want.order: want for want in wanted}
    both = []
    for order in reversed(reader.version.schema.orders):
        want, own = by_order.get(order, Wanted(order, 0, ())), reader.ngrams(order)
        both.append(Wanted(order, want.total + len(own), _and_rest(want.chunks, own)))
    return both


def in_chunks(ngrams: Ngrams) -> Iterator[Ngrams]:
    for at in range(0, len(ngrams), CHUNK):
        yield ngrams[at : at + CHUNK]


def _and_rest(chunks: Iterable[Ngrams], own: Ngrams) -> Iterator[Ngrams]:
    """All chunks, then those of `own` (ascending) that were in none of them."""
    keys, left = _keys(own), np.ones(len(own), np.bool_)
    for chunk in chunks:
        yield chunk
        wanted = _keys(chunk)
        at = keys.searchsorted(wanted)
        found = at < len(keys)
        found[found] = keys[at[found]] == wanted[found]
        left[at[found]] = False
    yield from in_chunks(own[left])


def _keys(ngrams: Ngrams) -> NDArray[Any]:
    """One key for each n-gram, ascending as they are: a number for up to three ids, else their bytes. [m]."""
    if ngrams.shape[1] * ID_BITS > 64:
        big = np.ascontiguousarray(ngrams, ">u4")
        return big.view(f"S{big.itemsize * big.shape[1]}")[:, 0]
    keys = np.zeros(len(ngrams), np.uint64)
    for ids in ngrams.T:
        keys <<= np.uint64(ID_BITS)
        keys |= ids
    return keys
