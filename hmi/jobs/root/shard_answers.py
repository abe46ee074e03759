"""The answers of a model on shards of its root, computed without a server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.core import ModelRecord
from hmi.engine.admit.bundles import Bundles, TaskPart
from hmi.engine.run.heads import inference_outputs
from hmi.engine.run.retrieval import Retrieved, retrieve
from hmi.engine.texts.item import Item, Piece
from hmi.engine.texts.request import TextRequest
from hmi.engine.texts.sink import UnreadSink
from hmi.execution import Rows
from hmi.execution.base import Output, Weights
from hmi.execution.packed import PackedExecutor
from hmi.jobs.stage.profile_cascade import Level
from hmi.model.text.tokenizer import Text
from hmi.model.text.windows import encode_texts

BATCH_TOKENS = 768
"""The tokens of a batch, about."""


@dataclass(frozen=True)
class RetrievedTexts:
    """Texts that are retrieved, and the model that answers them."""

    batches: list[Retrieved]
    part: TaskPart

    @torch.inference_mode()
    def answers(self, weights: Weights) -> NDArray[np.int64]:
        """Return the index of each text's label, int64 [texts], in the order of the batches."""
        executor = PackedExecutor(weights, self.batches[0].pieces[0].bundle.root.info.shape)
        found: list[int] = []
        for batch in self.batches:
            parts = [self.part] * len(batch.pieces)
            rows = Rows.packed(batch.rows, batch.offsets)
            (left,) = executor.run(batch.pieces[0].bundle.key, rows, [p.module for p in parts])
            found += [_label(output) for output in inference_outputs(left, batch.pieces, parts)]
        return np.array(found)


def _label(output: Output) -> int:
    return int(output.argmax()) if isinstance(output, Tensor) else -1


def retrieve_batches(bundles: Bundles, record: ModelRecord, texts: Sequence[Text]) -> RetrievedTexts:
    """Retrieve texts for a model, sorted by length. Texts of several windows count by their first."""
    level = Level(bundles, record)
    version, bundle = level.version, level.bundle
    encoded = encode_texts(bundle.root.tokenizer, texts, version.max_length, windows=version.rules.windows)
    order = sorted(range(len(texts)), key=lambda i: len(encoded[i][0]))
    pieces = [
        Piece(Item(TextRequest(bundle.model, texts[i]), bundle, encoded[i][:1], UnreadSink()), 0)
        for i in order
    ]
    batches, at, tokens = [], 0, 0
    for i, piece in enumerate(pieces):
        tokens += len(piece.window)
        if tokens >= BATCH_TOKENS or i == len(pieces) - 1:
            batches.append(retrieve(pieces[at : i + 1]))
            at, tokens = i + 1, 0
    return RetrievedTexts(batches, level.part)
