"""Retrieval: turns a batch's tokens into rows for the upper layers.

The rows are looked up in the PLOT, or computed for the exact reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, groupby

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.engine.admit.bundles import Bundle
from hmi.engine.texts.item import Item, Piece
from hmi.model.tenant.alignment import aligned_of
from hmi.model.text.batching import Encoded, pad_ids
from hmi.stores.plot.miss_recorder import MissRecorder
from plot_store import ORDER_NAMES, Hits, VersionInfo

PlotHits = dict[str, int]
Failed = list[tuple[Item, Exception]]
"""Texts that have no answer, with the error. A text may appear more than once."""


@dataclass(frozen=True)
class Lookup:
    """One PLOT look-up of a batch, kept for the recorder of misses: its tokens, and what answered each."""

    version: VersionInfo
    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    hits: Hits


@dataclass
class Retrieved:
    """A batch that is ready for the upper layers. Piece i has the rows offsets[i]:offsets[i + 1]."""

    pieces: list[Piece]
    rows: Tensor
    """fp32 [tokens, dim], packed."""
    offsets: list[int]
    hits: list[PlotHits] = field(default_factory=list)
    """By piece."""
    lookups: list[Lookup] = field(default_factory=list)
    failed: Failed = field(default_factory=list)
    """The texts whose look-up failed; their pieces are not in `pieces`."""

    def record(self, misses: MissRecorder) -> None:
        """Record the look-ups. Called once the batch has run, since a batch that runs again repeats its
        look-ups."""
        for lookup in self.lookups:
            misses.record(lookup.version, lookup.tokens, lookup.offsets, lookup.hits)


@torch.inference_mode()
def retrieve(pieces: Sequence[Piece]) -> Retrieved:
    """Look up or compute the rows of these pieces, in memory that the executor provides.

    Pieces are sorted by PLOT version and module, so that each version takes one look-up and each module has
    one contiguous slice. A look-up that fails affects its own pieces only.
    """
    pieces = sorted(pieces, key=lambda p: (p.bundle.version.plot_version, p.bundle.version.artefact))
    if not pieces:
        return Retrieved([], torch.empty(0, 0), [0])
    bundle = pieces[0].bundle
    batch = Retrieved([], bundle.executor.space(sum(len(p.window) for p in pieces)), [0])
    for _, group in groupby(pieces, lambda p: p.bundle.version.plot_version):
        same = list(group)
        start = batch.offsets[-1]
        ends = list(accumulate((len(p.window) for p in same), initial=start))[1:]
        try:
            _fill(batch, same, batch.rows[start : ends[-1]])
        except Exception as error:
            batch.failed.extend((p.item, error) for p in same)
            continue
        batch.pieces.extend(same)
        batch.offsets.extend(ends)
    if not batch.pieces:
        return batch
    batch.rows = batch.rows[: batch.offsets[-1]]
    bundle.root.add_bias(batch.rows, [p.window for p in batch.pieces])
    _align(batch)
    return batch


def _align(batch: Retrieved) -> None:
    """Store the alignments of the windows of pairs whose models may score them, as long as no layer
    has changed the rows."""
    pairs = [i for i, piece in enumerate(batch.pieces) if _scores_pairs(piece)]
    if not pairs:
        return
    spans = [batch.rows[batch.offsets[i] : batch.offsets[i + 1]] for i in pairs]
    rows = batch.rows if len(pairs) == len(batch.pieces) else torch.cat(spans)
    aligned = aligned_of(rows, [batch.pieces[i].window for i in pairs])
    for i, mine in zip(pairs, aligned, strict=True):
        piece = batch.pieces[i]
        piece.item.partial.aligned[piece.index] = mine


def _scores_pairs(piece: Piece) -> bool:
    return piece.bundle.version.lexical and piece.bundle.task.reads == "compare"


def _fill(batch: Retrieved, pieces: Sequence[Piece], out: Tensor) -> None:
    """Write the rows of pieces of one PLOT version to `out`, without their bias."""
    first, texts = pieces[0], [p.window for p in pieces]
    if first.item.request.exact:
        batch.hits.extend(_compute(first.bundle, texts, out))
        return
    tokens = np.array(list(chain.from_iterable(t.ids for t in texts)), np.int32)
    offsets = np.array(list(accumulate(map(len, texts), initial=0)), np.int64)
    reader = first.bundle.reader
    _, hits = reader.lookup(tokens, offsets, out=out.numpy())
    batch.lookups.append(Lookup(reader.version, tokens, offsets, hits))
    batch.hits.extend(_counts(hits, offsets))
    for i, piece in enumerate(pieces):
        if piece.item.request.words:
            piece.item.partial.orders[piece.index] = hits.order[offsets[i] : offsets[i + 1]].copy()


def _compute(bundle: Bundle, texts: list[Encoded], out: Tensor) -> list[PlotHits]:
    """Write the exact reference to `out`: the lower layers over every n-gram in fp32, without a PLOT."""
    assert bundle.lower is not None
    at = 0
    for text in texts:
        out[at : at + len(text)] = bundle.lower(pad_ids([text.ids]))[0]
        at += len(text)
    return [{"computed": len(t)} for t in texts]


def _counts(hits: Hits, offsets: NDArray[np.int64]) -> list[PlotHits]:
    """The number of tokens that each order answered, by text."""
    orders, texts = hits.n + 1, len(offsets) - 1
    text = np.repeat(np.arange(0, texts * orders, orders), np.diff(offsets))
    found = np.bincount(text + hits.order, minlength=texts * orders).reshape(texts, orders)[:, ::-1]
    names = [ORDER_NAMES[order] for order in range(hits.n, -1, -1)]
    return [dict(zip(names, counts, strict=True)) for counts in found.tolist()]
