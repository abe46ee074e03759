"""What happens to one batch: retrieve (or compute, for the exact reference), upper layers, heads, answers.

Pure functions of a batch; the engine decides when and on which thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.engine.bundles import Bundle, Bundles, TaskPart
from hmi.engine.queue import Item
from hmi.engine.request import InferResult
from hmi.model.batching import Encoded, pad_ids
from hmi.model.heads import first_pieces, head_input, outside_tag, reads_cls_only
from hmi.model.packed import run_packed
from plot_store import Hits, VersionInfo

PlotHits = dict[str, int]
Watch = Callable[[VersionInfo, NDArray[np.int32], NDArray[np.int64], Hits], None]
"""Told of each look-up: the PLOT version, the batch as the store took it, and what answered."""


@dataclass(frozen=True)
class Retrieved:
    """A batch ready for the upper layers. `rows` fp32 [tokens, dim] packed; text i is rows offsets[i]:offsets[i+1]."""

    items: list[Item]
    rows: Tensor
    offsets: list[int]
    hits: list[PlotHits]
    begun: float
    """`time.monotonic()` when retrieval began."""
    took: float
    """Seconds of retrieval."""


@torch.inference_mode()
def retrieve(bundles: Bundles, items: list[Item], watch: Watch | None = None) -> Retrieved:
    """Turn a batch's tokens into the upper layers' input.

    Items are put in order of PLOT version and tenant, so that each version is one look-up and each tenant one run.
    """
    begun = time.monotonic()
    items = sorted(items, key=lambda i: (i.bundle.version.plot_version, i.bundle.version.artefact))
    offsets = [0, *np.cumsum([len(i.encoded) for i in items]).tolist()]
    root = items[0].bundle.root
    rows = torch.empty(offsets[-1], root.dim)
    hits: list[PlotHits] = []
    start = 0
    while start < len(items):
        end = start
        version = items[start].bundle.version.plot_version
        while end < len(items) and items[end].bundle.version.plot_version == version:
            end += 1
        texts = [i.encoded for i in items[start:end]]
        target = rows[offsets[start] : offsets[end]]
        if items[start].request.exact:
            hits += _compute_lower(bundles, items[start].bundle, texts, target)
        else:
            hits += _look_up(items[start].bundle, texts, target, watch)
        start = end
    positions = torch.cat([torch.arange(len(i.encoded)) for i in items])
    types = torch.tensor([t for i in items for t in i.encoded.types])
    rows += root.bias(positions, types)
    return Retrieved(items, rows, offsets, hits, begun, time.monotonic() - begun)


def compute(batch: Retrieved, parts: Sequence[TaskPart]) -> list[InferResult]:
    """Upper layers and heads; `parts[i]` is item i's module and head. Answers are in the batch's order."""
    root = batch.items[0].bundle.root
    cls_only = reads_cls_only(batch.items[0].bundle.version.task)
    out = run_packed(
        root.upper, batch.rows, batch.offsets, [p.module for p in parts], root.info.shape.heads, cls_only=cls_only
    )
    answers = []
    for i, (item, part) in enumerate(zip(batch.items, parts, strict=True)):
        rows = out[i] if cls_only else out[batch.offsets[i] : batch.offsets[i + 1]]
        with torch.inference_mode():
            probabilities = torch.softmax(part.head(_head_input(item, rows)), -1)
        answers.append(_answer(item, probabilities, batch.hits[i]))
    return answers


def _head_input(item: Item, rows: Tensor) -> Tensor:
    task = item.bundle.version.task
    if reads_cls_only(task):
        return rows
    types = torch.tensor([item.encoded.types])
    return head_input(task, rows[None], rows[None], types, torch.ones_like(types, dtype=torch.bool))[0]


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
    found = np.bincount(hits.order[start:end], minlength=4)
    return {name: int(found[o]) for o, name in ((3, "trigram"), (2, "bigram"), (1, "unigram"), (0, "miss"))}


def _answer(item: Item, probabilities: Tensor, hits: PlotHits) -> InferResult:
    version = item.bundle.version
    provenance = _provenance(item, hits) if item.request.provenance else None
    common: dict[str, Any] = {
        "model": item.request.model,
        "version": version.version,
        "truncated": item.encoded.truncated,
        "provenance": provenance,
    }
    if version.task == "tagging":
        tags, scores = _tags(item, probabilities)
        return InferResult(**common, tags=tags, tag_scores=scores)
    best = int(probabilities.argmax())
    scores_by_label = dict(zip(version.labels, probabilities.tolist(), strict=True))
    return InferResult(
        **common,
        label=version.labels[best],
        score=float(probabilities[best]),
        scores=scores_by_label if item.request.scores else None,
    )


def _tags(item: Item, probabilities: Tensor) -> tuple[list[str], list[float]]:
    """One tag and its probability for each word; a word that was cut off gets the outside tag with probability 0."""
    labels = item.bundle.version.labels
    words = len(item.request.text)
    tags, scores = [outside_tag(labels)] * words, [0.0] * words
    best, which = probabilities.max(-1)
    for word, position in first_pieces(item.encoded.words).items():
        tags[word], scores[word] = labels[int(which[position])], float(best[position])
    return tags, scores


def _provenance(item: Item, hits: PlotHits) -> dict[str, Any]:
    version = item.bundle.version
    return {
        "plot": hits,
        "layers": len(item.bundle.root.upper),
        "exact": item.request.exact,
        "versions": {
            "model": version.version,
            "plot": version.plot_version,
            "domain": version.domain,
            "root": f"{version.root}/{version.root_version}",
        },
    }
