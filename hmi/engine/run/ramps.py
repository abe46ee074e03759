"""The functions that a batch gives to stages: the outputs of ramps, attention, prompts; and its texts."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import overload

import torch
from torch import Tensor

from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run.heads import inference_outputs
from hmi.engine.texts.item import Piece
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.model.network.encoder import EncoderLayer
from hmi.model.tenant.calibration import Floats
from hmi.stages.base import Stretch, Text
from hmi.stages.cascade.attention import from_first


class BatchTexts(Sequence[Text]):
    """The texts of a batch as a stage sees them. Each is made when it is first read."""

    def __init__(self, pieces: Sequence[Piece], parts: Sequence[TaskPart]) -> None:
        self._pieces, self._parts = pieces, parts
        self._made: dict[int, Text] = {}

    def __len__(self) -> int:
        return len(self._pieces)

    @overload
    def __getitem__(self, index: int) -> Text: ...
    @overload
    def __getitem__(self, index: slice) -> list[Text]: ...
    def __getitem__(self, index: int | slice) -> Text | list[Text]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        at = range(len(self))[index]
        if at not in self._made:
            self._made[at] = _text(self._pieces[at], self._parts[at])
        return self._made[at]


def ramps_of(
    key: BatchKey, pieces: Sequence[Piece], parts: Sequence[TaskPart]
) -> Callable[[int, Rows, Sequence[int]], list[Tensor | None]]:
    """Return `StageBatch.ramp` of a batch.

    A ramp reads the rows that enter its layer as the model's head reads those of the last layer: it is that
    head's `reads` over other rows, without queries. A model's lexical scores are added, as they are to the
    head's.
    """

    def ramp(site: int, rows: Rows, texts: Sequence[int]) -> list[Tensor | None]:
        wanted = [text for text in texts if site in parts[text].ramps]
        if not wanted:
            return [None] * len(texts)
        x, offsets = rows.by_token(rows.x), rows.token_offsets
        if len(wanted) < len(rows.texts):
            pairs = list(zip(rows.texts, pairwise(offsets), strict=True))
            spans = dict(reversed(pairs))  # of a text that runs twice, the first
            mine = [spans[text] for text in wanted]
            x = torch.cat([x[a:b] for a, b in mine])
            offsets = [0, *accumulate(b - a for a, b in mine)]
        x = x.cpu()
        last = torch.from_numpy(x.numpy()[list(offsets[:-1])]) if key.reads == "cls" else x
        left = Left(wanted, last, x, offsets, after=site)
        at_ramp = {id(part): part for part in (parts[text] for text in wanted)}
        at_ramp = {known: part.at_ramp(site) for known, part in at_ramp.items()}
        outputs = inference_outputs(left, pieces, [at_ramp.get(id(part), part) for part in parts])
        found = {t: o for t, o in zip(wanted, outputs, strict=True) if isinstance(o, Tensor)}
        return [found.get(text) for text in texts]

    return ramp


def attention_of(
    pieces: Sequence[Piece], parts: Sequence[TaskPart]
) -> Callable[[int, Rows, Sequence[int]], list[Floats]]:
    """Return `StageBatch.attention` of a batch."""
    root = pieces[0].bundle.root

    def attention(layer: int, rows: Rows, texts: Sequence[int]) -> list[Floats]:
        weights, heads = root.upper[layer], root.info.shape.heads
        assert isinstance(weights, EncoderLayer)
        spans = dict(zip(rows.texts, rows.spans(), strict=True))
        mine = [(rows.x[slice(*spans[text])].cpu(), parts[text].module) for text in texts]
        return [from_first(weights, heads, x, module, layer) for x, module in mine]

    return attention


def prompts_of(pieces: Sequence[Piece], parts: Sequence[TaskPart]) -> Callable[[int, int], Tensor | None]:
    """Return `StageBatch.prompts` of a batch."""

    def prompts(text: int, count: int) -> Tensor | None:
        found, piece = parts[text].prompts.get(count), pieces[text]
        fits = len(piece.window) + count <= piece.bundle.root.info.shape.positions
        return found if fits else None

    return prompts


def stretches_of(pieces: Sequence[Piece]) -> Callable[[int], Sequence[Stretch]]:
    """Return `StageBatch.stretches` of a batch."""

    def stretches(text: int) -> Sequence[Stretch]:
        words, found, first = [*pieces[text].window.words, None], list[Stretch](), 0
        while first < len(words):
            end = words.index(None, first)
            if end > first:
                found.append((first, end - first))
            first = end + 1
        return found

    return stretches


def _text(piece: Piece, part: TaskPart) -> Text:
    bundle, request, window = piece.bundle, piece.item.request, piece.window
    task = bundle.task if part.transitions is None else bundle.task.with_transitions(part.transitions)
    words = piece.item.words
    return Text(
        model=bundle.model,
        version=bundle.version,
        objective=piece.item.objective,
        cascade=bundle.cascade,
        task=task,
        id=request.id or uuid.uuid4().hex,
        nonce=piece.item.nonce,
        tokens=len(window),
        whole=len(piece.item.windows) == 1,
        merged=lambda output: task.merge([output], [window], words),
        early=request.early,
        words=[-1 if word is None else word for word in window.words],
        segments=window.types,
    )
