"""Writes a PLOT version: computes the rows of the wanted n-grams in batches and publishes them at
once. For roots and branches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from hmi.errors import Conflict
from hmi.jobs.plot.differences import Decide, Differences, StoreAll
from hmi.jobs.runtime.context import JobContext
from hmi.model.sources.causal import CausalLower
from hmi.model.sources.lower import LocalLower
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.plot.plots import current_version
from plot_store import AS_OPENED, Reader, Schema, VersionInfo, Writer

BATCH = 1024
"""N-grams whose rows are computed at once."""
CHUNK = 32 * BATCH
"""N-grams in a chunk of `in_chunks`."""
STORAGE: Final = "int8"
WORDS: Final = "fp16"
"""The storage of words' vectors, in place of lower layers: nothing is lost against a source in fp16."""
ID_BITS: Final = 20  # a token id is below 2²⁰ (docs/plot-store.md, limits)

Ngrams = NDArray[np.uint32]  # [m, order]
Compute = Callable[[Ngrams], NDArray[np.float32]]  # the rows [m, roles, dim] of n-grams


@dataclass(frozen=True)
class Wanted:
    """The n-grams of one order that a version is to have: distinct, in chunks, in the same sequence
    in every attempt.

    `keep` drops the n-grams of a chunk that need not be stored. `total` ignores `keep`, so it is
    an upper bound.
    """

    order: int
    total: int
    chunks: Iterable[Ngrams]
    keep: Callable[[Ngrams], Ngrams] = lambda ngrams: ngrams


def write_version(
    ctx: JobContext,
    ref: str,
    lower: LocalLower | CausalLower,
    wanted: Sequence[Wanted],
    *,
    parent: str | None,
    onto: str | None,
    extend: bool,
    meta: Callable[[Mapping[int, int]], PlotMeta],
    differences: Differences | None = None,
) -> VersionInfo:
    """Compute the rows of the wanted n-grams and publish them as the next version of `ref`.

    `onto` is the version that an update was computed against. If it is no longer current, Conflict
    is raised. `meta` receives the number of n-grams stored by order. `differences` leaves some out;
    None stores all. Shorter orders are written first, since longer ones fall back on them.

    A resumed job continues from the last finished segment. If it was killed just after publishing,
    it finds its version by the build's name. Raises Conflict, plot_store errors and JobCancelled.
    """
    published = find_published(ctx, ref)
    if published is not None:
        return published
    schema = schema_of(lower)
    total = sum(want.total for want in wanted)
    ctx.take_build()
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
        return writer.publish(
            expect=AS_OPENED if onto is None else onto, meta=meta(stored).to_dict(), apart=ctx.elsewhere
        )


def find_published(ctx: JobContext, ref: str) -> VersionInfo | None:
    """The version that an earlier attempt at this job published before it was killed; None if
    there is none."""
    if ctx.elsewhere:
        return ctx.built()
    if current_version(ctx.plots, ref) is None:
        return None
    return next((v for v in ctx.plots.history(ref) if v.build == ctx.job.job), None)


def schema_of(lower: LocalLower | CausalLower) -> Schema:
    """The schema of entries that these lower layers compute."""
    shape = lower.shape
    dtype: Literal["int8", "fp16"] = STORAGE if lower.depth else WORDS
    return Schema(n=lower.n, dim=shape.dim, dtype=dtype, vocab=shape.vocab, window=lower.window)


def _write_order(
    ctx: JobContext,
    writer: Writer,
    lower: LocalLower | CausalLower,
    want: Wanted,
    decide: Decide,
    done: int,
    total: int,
) -> int:
    """Write one order. Returns its number of n-grams in the version, with those of earlier attempts."""
    compute = _compute(lower)
    durable, stored = writer.resume_point(want.order), 0
    kept = durable
    for chunk in want.chunks:
        left = want.keep(chunk)
        for at in range(0, len(left), BATCH):
            stored += _write_batch(writer, left[at : at + BATCH], compute, decide, max(0, durable - stored))
            if (reached := writer.resume_point(want.order)) > kept:
                kept = reached
                ctx.keep_build()
                ctx.checkpointed()
            ctx.progress(done + len(chunk) * at // len(left), total, phase="representations")
        done += len(chunk)
        ctx.progress(done, total, phase="representations")
    return stored


def _write_batch(writer: Writer, ngrams: Ngrams, compute: Compute, decide: Decide, durable: int) -> int:
    """Write the n-grams that are to be stored, except for the first `durable`, which are on disk.
    Returns how many are to be stored."""
    kept, order = decide.known(len(ngrams)), ngrams.shape[1]
    if kept is None:
        rows = compute(ngrams)
        kept = decide.now(ngrams, rows)
        fresh = np.flatnonzero(kept)[durable:]
        writer.add(order, ngrams[fresh], rows[fresh])
    elif (fresh := np.flatnonzero(kept)[durable:]).size:
        writer.add(order, ngrams[fresh], compute(ngrams[fresh]))
    return int(kept.sum())


def _compute(lower: LocalLower | CausalLower) -> Compute:
    @torch.inference_mode()
    def compute(ngrams: Ngrams) -> NDArray[np.float32]:
        rows: NDArray[np.float32] = lower.ngram_entries(torch.from_numpy(ngrams.astype(np.int64))).numpy()
        return rows

    return compute


def missing(reader: Reader, order: int, ngrams: Ngrams, lower: str | None) -> NDArray[np.bool_]:
    """Which n-grams [m, order] the reader's chain lacks, or has only from other lower layers than
    `lower`; bool [m]."""
    # Depth -1 (absent) selects the last element.
    same = np.array([*(PlotMeta.of(version).lower == lower for version in reader.chain), False])
    return np.asarray(~same[reader.depths(order, ngrams)])


def not_stored(reader: Reader, order: int, ngrams: Ngrams, lower: str | None) -> Ngrams:
    """The n-grams for which `missing` holds."""
    kept: Ngrams = ngrams[missing(reader, order, ngrams, lower)]
    return kept


def only_missing(wanted: Sequence[Wanted], reader: Reader, lower: str | None) -> list[Wanted]:
    """Drop the n-grams that the reader's chain has already. The reader must stay open until
    all is written."""

    def keep(order: int) -> Callable[[Ngrams], Ngrams]:
        return lambda ngrams: not_stored(reader, order, ngrams, lower)

    return [replace(want, keep=keep(want.order)) for want in wanted]


def with_own(wanted: Sequence[Wanted], reader: Reader) -> list[Wanted]:
    """The wanted n-grams and all that the reader's own version stores, but not its ancestors'."""
    by_order = {want.order: want for want in wanted}
    both = []
    for order in reversed(reader.version.schema.orders):
        want, own = by_order.get(order, Wanted(order, 0, ())), reader.ngrams(order)
        both.append(Wanted(order, want.total + len(own), _and_rest(want.chunks, own)))
    return both


def in_chunks(ngrams: Ngrams) -> Iterator[Ngrams]:
    """Split n-grams into chunks of CHUNK."""
    for at in range(0, len(ngrams), CHUNK):
        yield ngrams[at : at + CHUNK]


def _and_rest(chunks: Iterable[Ngrams], own: Ngrams) -> Iterator[Ngrams]:
    """Yield all chunks, then the n-grams of `own` (ascending) that were in none of them."""
    keys, left = keys_of(own), np.ones(len(own), np.bool_)
    for chunk in chunks:
        yield chunk
        wanted = keys_of(chunk)
        at = keys.searchsorted(wanted)
        found = at < len(keys)
        found[found] = keys[at[found]] == wanted[found]
        left[at[found]] = False
    yield from in_chunks(own[left])


def keys_of(ngrams: Ngrams) -> NDArray[Any]:
    """One key for each n-gram, in the same order: a number for up to three ids, else their bytes; [m]."""
    if ngrams.shape[1] * ID_BITS > 64:
        big = np.ascontiguousarray(ngrams, ">u4")
        return big.view(f"S{big.itemsize * big.shape[1]}")[:, 0]
    keys = np.zeros(len(ngrams), np.uint64)
    for ids in ngrams.T:
        keys <<= np.uint64(ID_BITS)
        keys |= ids
    return keys
