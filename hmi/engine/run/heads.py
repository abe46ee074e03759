"""Heads: the outputs of texts that have passed the upper layers, computed together for each model.

Each tenant has its own head, so texts are grouped by head. docs/design/0007-rooms.md says why heads of equal
shape are not stacked into one product over tenants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby, pairwise

import torch
from torch import Tensor

from hmi.engine.admit.bundles import TaskPart
from hmi.engine.texts.item import Piece
from hmi.errors import Damaged
from hmi.execution.base import Output
from hmi.execution.batch import Left
from hmi.model.tenant.heads import Reads, pool_text
from hmi.model.text.lexical import Bags, Lexical, bags_of


@torch.inference_mode()
def outputs_of(left: Left, pieces: Sequence[Piece], parts: Sequence[TaskPart]) -> list[Output]:
    """Compute the heads' outputs of the texts that left, in the order of `left.texts`.

    `left.texts` indexes `pieces` and `parts`. An output is [outputs], in tagging [tokens, outputs]; without a
    head, it is what a head would read. A text's error stands in its own place and affects no other text.
    """
    return inference_outputs(left, pieces, parts)


def inference_outputs(left: Left, pieces: Sequence[Piece], parts: Sequence[TaskPart]) -> list[Output]:
    """`outputs_of` for callers that are in inference mode: to enter it takes as long as a small head."""
    if left.outputs is not None:
        return list(left.outputs)
    found: list[Output] = []
    for _, group in groupby(range(len(left.texts)), lambda i: id(parts[left.texts[i]])):
        found += _adjacent_outputs(left, pieces, parts, list(group))
    return found


def _adjacent_outputs(
    left: Left, pieces: Sequence[Piece], parts: Sequence[TaskPart], indexes: list[int]
) -> list[Output]:
    """Outputs of adjacent texts of one head, by their indexes in `left.texts`; if they fail together, one by
    one."""
    mine, part = [pieces[left.texts[i]] for i in indexes], parts[left.texts[indexes[0]]]
    try:
        together = _head(left, indexes, mine, part)
        # A sum is finite only if all its terms are; it may be infinite although they are not.
        sound = math.isfinite(together.sum())
        tagging = mine[0].bundle.task.reads == "rows"
        each = together.split([len(piece.window) for piece in mine]) if tagging else together.unbind()
        return list(each) if sound else [_finite(output, p) for output, p in zip(each, mine, strict=True)]
    except Exception as error:
        if len(indexes) == 1:
            return [error]
        return [output for i in indexes for output in _adjacent_outputs(left, pieces, parts, [i])]


def _head(left: Left, indexes: Sequence[int], pieces: Sequence[Piece], part: TaskPart) -> Tensor:
    """The outputs of these texts [texts, outputs], in tagging [tokens, outputs], lexical scores included."""
    reads = pieces[0].bundle.task.reads
    output = _read(left, indexes, pieces, reads, part)
    if part.lexical is not None:
        bags = [_bags(piece, part.lexical) for piece in pieces]
        lengths = [len(p.window) if reads == "rows" else 1 for p in pieces]
        output = part.lexical.add_packed(output, bags, lengths)
    return output


def _bags(piece: Piece, lexical: Lexical) -> Bags:
    found = bags_of(piece.item.read, piece.window, lexical.buckets)
    aligned = piece.item.partial.aligned.get(piece.index) if lexical.alignment is not None else None
    return found if aligned is None else replace(found, aligned=aligned)


def _read(
    left: Left, indexes: Sequence[int], pieces: Sequence[Piece], reads: Reads, part: TaskPart
) -> Tensor:
    """Apply the head to all texts in one product; without a head, return what it would read."""
    first, end = indexes[0], indexes[-1] + 1
    offsets, head = left.offsets[first : end + 1], part.head
    start = offsets[0]
    if reads == "cls":
        assert head is not None, "only an embedding has no head"
        at = [offset - start for offset in offsets]
        return head.of_packed(left.last[first:end], left.before[start : offsets[-1]], at)
    if reads == "rows":
        read = left.last[start : offsets[-1]]
    else:
        spans = zip(pairwise(offsets), pieces, strict=True)
        read = torch.stack([pool_text(reads, left.last[a:b], _types(left, a, b, p)) for (a, b), p in spans])
    return read if head is None else head(read)


def _types(left: Left, start: int, end: int, piece: Piece) -> Sequence[int]:
    """The token types of a text's rows start:end."""
    types = piece.window.types
    return types if left.tokens is None else [types[token] for token in left.tokens[start:end].tolist()]


def _finite(output: Tensor, piece: Piece) -> Output:
    """Replace an output with NaN or infinity by Damaged: a sound file may still hold such weights."""
    if torch.isfinite(output).all():
        return output
    return Damaged(
        f"model {piece.item.request.model} computes values that are no numbers: roll it back or fine-tune "
        "it again; if others do so too, the operator runs 'hmi store verify'"
    )
