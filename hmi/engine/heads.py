"""Heads: the outputs of texts that have passed the upper layers, computed together for each model.

Each tenant has its own head, so texts are grouped by head. docs/design/0007-rooms.md says why heads of equal
shape are not stacked into one product over tenants.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from hmi.engine.bundles import TaskPart
from hmi.engine.item import Piece
from hmi.errors import Damaged
from hmi.execution.batch import Left
from hmi.model.heads import Reads, pool_rows
from hmi.model.lexical import bags_of

Output = Tensor | Exception
"""One window's output, or the error that it has instead."""


@torch.inference_mode()
def outputs_of(left: Left, pieces: Sequence[Piece], parts: Sequence[TaskPart]) -> list[Output]:
    """Compute the heads' outputs of the texts that left, in the order of `left.texts`.

    `left.texts` indexes `pieces` and `parts`. An output is [outputs], in tagging [tokens, outputs]; without a
    head, it is what a head would read. A text's error stands in its own place and affects no other text.
    """
    found: list[Output] = []
    for _, group in groupby(range(len(left.texts)), lambda i: id(parts[left.texts[i]])):
        found += _together(left, pieces, parts, list(group))
    return found


def _together(
    left: Left, pieces: Sequence[Piece], parts: Sequence[TaskPart], indexes: list[int]
) -> list[Output]:
    """Outputs of texts of one head, by their indexes in `left.texts`; if they fail together, one by one."""
    mine, part = [pieces[left.texts[i]] for i in indexes], parts[left.texts[indexes[0]]]
    try:
        rows = [
            _read(left, i, piece.bundle.task.reads, piece, part)
            for i, piece in zip(indexes, mine, strict=True)
        ]
        return [_finite(output, piece) for output, piece in zip(_head(rows, mine, part), mine, strict=True)]
    except Exception as error:
        if len(indexes) == 1:
            return [error]
        return [output for i in indexes for output in _together(left, pieces, parts, [i])]


def _read(left: Left, i: int, reads: Reads, piece: Piece, part: TaskPart) -> Tensor:
    """The input of the head for text i: [size], in tagging [tokens, dim]."""
    a, b = left.offsets[i], left.offsets[i + 1]
    before = left.before[a:b]
    if reads == "cls":
        both = torch.cat([left.last[i], before.mean(0)])
        if part.head is None:
            return both
        everywhere = torch.ones(1, len(before), dtype=torch.bool)
        return part.head.with_attended(both[None], before[None], everywhere)[0]
    types = torch.tensor([piece.window.types])
    last = left.last[a:b][None]
    return pool_rows(reads, last, last, types, torch.ones_like(types, dtype=torch.bool))[0]


def _head(rows: list[Tensor], pieces: Sequence[Piece], part: TaskPart) -> list[Tensor]:
    """Apply the head to all texts in one product, then add the lexical scores of their words."""
    if part.head is None:
        return rows
    lengths = [len(r) if r.dim() == 2 else 1 for r in rows]
    logits: Tensor = part.head(torch.cat([r if r.dim() == 2 else r[None] for r in rows]))
    if part.lexical is not None:
        bags = [bags_of(p.item.request.text, p.window, part.lexical.buckets) for p in pieces]
        logits = part.lexical.add_packed(logits, bags, lengths)
    split = logits.split(lengths)
    return [mine if r.dim() == 2 else mine[0] for r, mine in zip(rows, split, strict=True)]


def _finite(output: Tensor, piece: Piece) -> Output:
    """Replace an output with NaN or infinity by Damaged: a sound file may still hold such weights."""
    if torch.isfinite(output).all():
        return output
    return Damaged(
        f"model {piece.item.request.model} computes values that are no numbers: roll it back or fine-tune "
        "it again; if others do so too, the operator runs 'hmi store verify'"
    )
