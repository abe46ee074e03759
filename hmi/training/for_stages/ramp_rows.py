"""What the ramps of a model read, and what they are to answer: one forward pass over texts gives both.

A ramp before layer i reads the rows that enter it as the task's head reads the last layer's, in fp32, the
server's reference arithmetic. It is to give the model's own output. The model's lexical scores are added to
its output when it serves, so they are a fixed offset of what is fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.model.tenant.heads import Reads, head_input_size, pool_rows
from hmi.model.text.batching import Encoded
from hmi.model.text.windows import first_pieces
from hmi.training.fit.backbones import Examples, ModuleBackbone
from hmi.training.fit.trainer import Trainer

BATCH = 256
"""Texts whose lexical scores are computed together."""


@dataclass(frozen=True)
class RampRows:
    """Rows that ramps read: one for each text (or window of one), in tagging one for each word at its first
    piece."""

    features: list[Tensor]
    """The rows that a head reads, by site: fp32 [rows, size]."""
    offsets: Tensor
    """[rows, outputs]: the lexical scores; 0 without lexical features."""
    outputs: Tensor
    """[rows, outputs]: the model's own, lexical scores included."""
    counts: list[int]
    """The number of rows of each text."""


def ramp_rows(
    trainer: Trainer,
    task: TaskKind,
    encoded: Sequence[Encoded],
    examples: Examples,
    most: int,
    report: Callable[[int], None] = lambda done: None,
) -> RampRows:
    """Run the model over the texts, and keep what each ramp reads. At most `most` rows are kept, a sample.

    report: called with the number of texts done, for progress and cancellation.
    """
    at = _positions(task, encoded, most)
    assert isinstance(trainer.backbone, ModuleBackbone)
    sites, reads = len(trainer.backbone.upper), task.reads
    counts = [len(positions) for positions in at]
    ends = np.cumsum(counts, dtype=np.int64)
    # One tensor a site, made before anything is computed: rows kept as they come would lie scattered between
    # what each batch frees, and joining them would take their size again.
    size = row_numbers(task, trainer.dim, 1)
    features = [torch.empty(sum(counts), size) for _ in range(sites)]
    done = 0

    def watch(texts: Sequence[int], site: int, x: Tensor, types: Tensor, mask: Tensor) -> None:
        nonlocal done
        pooled = None if reads == "rows" else pool_rows(reads, x, x, types, mask).float()
        for i, text in enumerate(texts):
            mine = features[site][ends[text] - counts[text] : ends[text]]
            mine.copy_(x[i, at[text]] if pooled is None else pooled[i : i + 1])
        if site == sites - 1:
            done += len(texts)
            report(done)

    outputs = trainer.predict(examples, exact=True, backbone=trainer.backbone.watched(watch))
    rows = [x[at[i]] if reads == "rows" else x[None] for i, x in enumerate(outputs)]
    return RampRows(features, _offsets(trainer, examples, at, reads), torch.cat(rows), counts)


def row_numbers(task: TaskKind, dim: int, sites: int) -> int:
    """The numbers that a row takes at all sites."""
    return sites * head_input_size(task.name, dim, paired=task.paired)


def _positions(task: TaskKind, encoded: Sequence[Encoded], most: int) -> list[list[int]]:
    """The tokens of each text that are read in tagging: words' first pieces, or a sample of them."""
    if task.reads != "rows":
        return [[0]] * len(encoded)
    every = [list(first_pieces(text.words).values()) for text in encoded]
    total = sum(map(len, every))
    if total <= most:
        return every
    keep = np.zeros(total, np.bool_)
    keep[np.random.default_rng(0).choice(total, most, replace=False)] = True
    ends = np.cumsum([len(each) for each in every])[:-1]
    return [
        [p for p, kept in zip(each, mine, strict=True) if kept]
        for each, mine in zip(every, np.split(keep, ends), strict=True)
    ]


def _offsets(trainer: Trainer, examples: Examples, at: list[list[int]], reads: Reads) -> Tensor:
    outputs = trainer.head.out.out_features
    if trainer.lexical is None or examples.bags is None:
        return torch.zeros(sum(map(len, at)), outputs)
    found: list[Tensor] = []
    with torch.inference_mode():
        for start in range(0, len(at), BATCH):
            texts = list(range(start, min(start + BATCH, len(at))))
            lengths = [examples.lengths[i] if reads == "rows" else 1 for i in texts]
            zero = torch.zeros(sum(lengths), outputs)
            scores = trainer.lexical.add_packed(zero, examples.bags(texts), lengths).split(lengths)
            found += [each[at[i]] for i, each in zip(texts, scores, strict=True)]
    return torch.cat(found)
