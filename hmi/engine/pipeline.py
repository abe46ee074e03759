"""What happens to one batch: retrieve (or compute, for the exact reference), upper layers, heads, answers.

Pure functions of a batch; the engine decides when and on which thread. What one tenant's part or one domain's rows make
impossible fails the texts that needed them, and none of the others is computed again for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.engine.bundles import Bundle, Bundles, TaskPart
from hmi.engine.queue import Item, Piece
from hmi.engine.request import InferResult, Provenance, Versions
from hmi.errors import Damaged
from hmi.model.batching import Encoded, pad_ids
from hmi.model.heads import read_rows
from hmi.model.lexical import bags_of
from hmi.model.packed import Between, nothing, run_classified, run_packed
from plot_store import ORDER_NAMES, Hits, VersionInfo

PlotHits = dict[str, int]
Failed = list[tuple[Item, Exception]]
"""Texts that have no answer, and why. A text may stand there more than once."""
Watch = Callable[[VersionInfo, NDArray[np.int32], NDArray[np.int64], Hits], None]
"""Told of each look-up: the PLOT version, the batch as the store took it, and what answered."""


@dataclass(frozen=True)
class Retrieved:
    """A batch ready for the upper layers. `rows` fp32 [tokens, dim] packed; piece i is rows offsets[i]:offsets[i+1]."""

    pieces: list[Piece]
    rows: Tensor
    offsets: list[int]
    hits: list[PlotHits]
    """By piece."""
    failed: Failed
    """Of the pieces that are not here."""


@torch.inference_mode()
def retrieve(bundles: Bundles, pieces: Sequence[Piece], watch: Watch | None = None) -> Retrieved:
    """Turn a batch's tokens into the upper layers' input.

    Pieces are put in order of PLOT version and tenant, so that each version is one look-up and each tenant one run.
    """
    if not pieces:
        return Retrieved([], torch.empty(0, 0), [0], [], [])
    pieces = sorted(pieces, key=lambda p: (p.bundle.version.plot_version, p.bundle.version.artefact))
    batch = Retrieved([], torch.empty(sum(len(p.window) for p in pieces), pieces[0].bundle.root.dim), [0], [], [])
    for _, group in groupby(pieces, lambda p: p.bundle.version.plot_version):
        same = list(group)
        texts = [p.window for p in same]
        start = batch.offsets[-1]
        ends = (start + np.cumsum([len(w) for w in texts])).tolist()
        target = batch.rows[start : ends[-1]]
        try:
            if same[0].item.request.exact:
                hits = _compute_lower(bundles, same[0].bundle, texts, target)
            else:
                hits = _look_up(same[0].bundle, texts, target, watch)
        except Exception as error:
            batch.failed.extend((p.item, error) for p in same)
            continue
        batch.pieces.extend(same)
        batch.offsets.extend(ends)
        batch.hits.extend(hits)
    if not batch.pieces:
        return batch
    rows, windows = batch.rows[: batch.offsets[-1]], [p.window for p in batch.pieces]
    positions = torch.cat([torch.arange(len(w)) for w in windows])
    types = torch.tensor([t for w in windows for t in w.types])
    rows += pieces[0].bundle.root.bias(positions, types)
    return replace(batch, rows=rows)


@torch.inference_mode()
def compute(
    batch: Retrieved, parts: Mapping[str, TaskPart], between: Between = nothing
) -> tuple[list[tuple[Item, InferResult]], Failed]:
    """Upper layers and heads; `parts` by artefact. Answers of the items that are complete now, and what failed.
    `between` is called between two layers.

    A row of one text never reaches another text's (`hmi.model.packed`), so values that are no numbers stay with theirs.
    """
    bundle, mine = batch.pieces[0].bundle, [parts[p.bundle.version.artefact] for p in batch.pieces]
    run = (bundle.root.upper, batch.rows, batch.offsets, [p.module for p in mine], bundle.root.info.shape.heads)
    bounds = list(pairwise(batch.offsets))
    rows: list[tuple[Tensor, Tensor | None]]
    if bundle.task.reads == "cls":
        read, before = run_classified(*run, between)
        rows = [(read[i], before[a:b]) for i, (a, b) in enumerate(bounds)]
    else:
        last = run_packed(*run, between)
        rows = [(last[a:b], None) for a, b in bounds]
    answers, failed = [], Failed()
    for piece, part, hits, its in zip(batch.pieces, mine, batch.hits, rows, strict=True):
        try:
            output = _finite(_output(piece.item, part, piece.window, *its), piece.item)
            if piece.item.add(piece.index, output, hits):
                answers.append((piece.item, _answer(piece.item, part)))
        except Exception as error:
            failed.append((piece.item, error))
    return answers, failed


def _output(item: Item, part: TaskPart, window: Encoded, rows: Tensor, before: Tensor | None) -> Tensor:
    """What the head gives for one window (for an embedding, what it would read). rows, before: of `run_classified`, or
    the last layer's [T, dim] and None."""
    task = item.bundle.task
    if before is None:
        types = torch.tensor([window.types])
        rows = read_rows(task.reads, rows[None], rows[None], types, torch.ones_like(types, dtype=torch.bool))[0]
    elif part.head is not None:
        everywhere = torch.ones(1, len(before), dtype=torch.bool)
        rows = part.head.with_attended(rows[None], before[None], everywhere)[0]
    if part.head is None:
        return rows
    logits: Tensor = part.head(rows)
    if part.lexical is not None:
        logits = part.lexical(logits[None], [bags_of(item.request.text, window, part.lexical.buckets)])[0]
    return logits


def _finite(output: Tensor, item: Item) -> Tensor:
    """Files are compared with their hashes when they are loaded; what still gives no numbers must not be answered."""
    if not torch.isfinite(output).all():
        raise Damaged(
            f"model {item.request.model} computes values that are no numbers: roll it back or fine-tune it again; if "
            "others do so too, the operator runs 'hmi store verify'"
        )
    return output


def _look_up(bundle: Bundle, texts: list[Encoded], out: Tensor, watch: Watch | None) -> list[PlotHits]:
    tokens = np.concatenate([np.asarray(t.ids, np.int32) for t in texts])
    offsets = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    _, hits = bundle.reader.lookup(tokens, offsets, out=out.numpy())
    if watch is not None:
        watch(bundle.reader.version, tokens, offsets, hits)
    return [_counts(hits, a, b) for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]


def _compute_lower(bundles: Bundles, bundle: Bundle, texts: list[Encoded], out: Tensor) -> list[PlotHits]:
    """The reference: every trigram through the lower layers in fp32, nothing stored, nothing filled."""
    lower, at = bundles.lower(bundle), 0
    for text in texts:
        out[at : at + len(text)] = lower(pad_ids([text.ids]))[0]
        at += len(text)
    return [{"computed": len(t)} for t in texts]


def _counts(hits: Hits, start: int, end: int) -> PlotHits:
    found = np.bincount(hits.order[start:end], minlength=hits.n + 1)
    return {ORDER_NAMES[order]: int(found[order]) for order in range(hits.n, -1, -1)}


def _answer(item: Item, part: TaskPart) -> InferResult:
    task, text = item.bundle.task.with_transitions(part.transitions), item.request.text
    outputs = [item.outputs[i] for i in range(len(item.windows))]
    merged = task.merge(outputs, item.windows, len(text) if isinstance(text, list) else 0)
    return InferResult(
        **vars(task.answer(merged, scores=item.request.scores)),
        model=item.request.model,
        version=item.bundle.version.version,
        truncated=any(window.truncated for window in item.windows),
        provenance=_provenance(item) if item.request.provenance else None,
    )


def _provenance(item: Item) -> Provenance:
    version = item.bundle.version
    return Provenance(
        plot=dict(item.hits),
        layers=len(item.bundle.root.upper),
        exact=item.request.exact,
        versions=Versions(
            model=version.version,
            plot=version.plot_version,
            domain=version.domain,
            root=f"{version.root}/{version.root_version}",
        ),
    )
