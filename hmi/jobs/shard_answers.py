"""The answers of a model under submodels of its root, computed without a server: one pass, all depths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.core import ModelRecord
from hmi.engine.bundles import Bundles, TaskPart
from hmi.engine.heads import inference_outputs
from hmi.engine.item import Item, Piece
from hmi.engine.ramps import ramps_of
from hmi.engine.request import TextRequest
from hmi.engine.retrieval import Retrieved, retrieve
from hmi.execution import Left, Rows
from hmi.execution.base import Output, Weights
from hmi.execution.batch import offsets_of
from hmi.execution.packed import PackedExecutor
from hmi.jobs.profile_cascade import Level
from hmi.model.modules import in_fp32
from hmi.model.windows import encode_texts
from hmi.stages.elastic_shards.probes import Probe, model_probe
from hmi.training.data.rows import Row

BATCH_TOKENS = 768
"""The tokens of a batch, about."""


@dataclass(frozen=True)
class Asked:
    """Texts that are retrieved, and the model that answers them."""

    name: str
    batches: list[Retrieved]
    gold: NDArray[np.int64]
    """[rows]: the indexes of their labels; -1 for a row without one of the model's."""
    part: TaskPart
    sites: tuple[int, ...]
    tokens: int

    def answers(self, weights: Weights, only: int | None = None) -> Mapping[int, NDArray[np.int64]]:
        """Return the labels [rows] by depth, or at the depth `only`: those of each ramp before one of the
        layers, and those of the head after all of the root's layers.

        A batch runs once; ramps read the rows between its layers.
        """
        executor = PackedExecutor(weights, self.batches[0].pieces[0].bundle.root.info.shape)
        found: dict[int, list[int]] = {}
        for batch in self.batches:
            for depth, labels in self._batch(batch, executor, len(weights), only):
                found.setdefault(depth, []).extend(labels)
        return {depth: np.array(labels) for depth, labels in found.items()}

    @torch.inference_mode()
    def _batch(
        self, batch: Retrieved, executor: PackedExecutor, layers: int, only: int | None
    ) -> Iterator[tuple[int, list[int]]]:
        pieces = batch.pieces
        parts, key = [self.part] * len(pieces), pieces[0].bundle.key
        ramp, every = ramps_of(key, pieces, parts), range(len(pieces))
        sites = frozenset(site for site in self.sites if 0 < site < layers and only in (None, site))
        watch = _Watch(sites, only)
        rows = Rows.packed(batch.rows, batch.offsets)
        ended = list(executor.run(key, rows, [p.module for p in parts], [watch]))
        for site, seen in watch.seen.items():
            yield site, [_label(o) for o in ramp(site, seen, every)]
        if layers == len(pieces[0].bundle.root.upper) and only in (None, layers):
            yield layers, [_label(o) for o in inference_outputs(ended[-1], pieces, parts)]


class _Watch:
    """A hook that keeps the rows before each ramp, and lets all texts leave at the depth `last`."""

    concerns = None

    def __init__(self, at: frozenset[int], last: int | None) -> None:
        self.at, self.seen, self._last = at, dict[int, Rows](), last

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        self.seen[layer] = rows
        return (
            (replace(rows, x=rows.x[:0], offsets=[0], texts=()), None)
            if layer == self._last
            else (rows, None)
        )

    def ended(self, texts: Sequence[int], outputs: list[Output]) -> list[Output]:
        return outputs

    def close(self) -> None: ...


def _label(output: Tensor | Exception | None) -> int:
    return int(output.argmax()) if isinstance(output, Tensor) else -1


class _Unread:
    """A sink that nobody waits for."""

    wanted = True

    def done(self, result: object) -> None: ...

    def fail(self, error: Exception) -> None: ...


def asked(bundles: Bundles, record: ModelRecord, name: str, rows: Sequence[Row]) -> Asked:
    """Retrieve rows for a model, sorted by length. Texts of several windows count by their first."""
    level = Level(bundles, record)
    version, bundle = level.version, level.bundle
    texts = encode_texts(
        bundle.root.tokenizer, [row.text for row in rows], version.max_length, windows=version.rules.windows
    )
    order = sorted(range(len(rows)), key=lambda i: len(texts[i][0]))
    pieces = [
        Piece(Item(TextRequest(bundle.model, rows[i].text), bundle, texts[i][:1], _Unread()), 0)
        for i in order
    ]
    batches, at, tokens = [], 0, 0
    for i, piece in enumerate(pieces):
        tokens += len(piece.window)
        if tokens >= BATCH_TOKENS or i == len(pieces) - 1:
            batches.append(retrieve(pieces[at : i + 1]))
            at, tokens = i + 1, 0
    # Retrieval may sort the pieces of a batch, so labels follow the pieces.
    by_item = {id(piece.item): rows[i].label for piece, i in zip(pieces, order, strict=True)}
    known = {label: i for i, label in enumerate(version.labels)}
    gold = [known.get(str(by_item[id(p.item)]), -1) for b in batches for p in b.pieces]
    total = sum(batch.offsets[-1] for batch in batches)
    return Asked(name, batches, np.array(gold), level.part, tuple(version.ramps), total)


def probe_of(rows: Asked, most: int | None = None) -> Probe:
    """Return the rows, or `most` of them, evenly by length, as a probe of shards' importance for the
    model."""
    spans = [(b, i) for b in rows.batches for i in range(len(b.pieces))]
    spans = spans if most is None else spans[:: max(1, len(spans) // most)][:most]
    pieces = [batch.pieces[i] for batch, i in spans]
    x = torch.cat([batch.rows[batch.offsets[i] : batch.offsets[i + 1]] for batch, i in spans])
    offsets = offsets_of([len(piece.window) for piece in pieces])
    types, task = [piece.window.types for piece in pieces], pieces[0].bundle.task
    return model_probe(x, offsets, types, in_fp32(rows.part.module), rows.part.head, task)
