"""A root's upper layers for the packed executor, made anew for each batch from shards that are streamed
in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from hmi.execution import trace
from hmi.execution.base import Layers
from hmi.model.encoder import EncoderLayer
from hmi.model.partial import Kept, PartialLayer, rest_of
from hmi.model.shape import EncoderShape
from hmi.stages.elastic_shards.codec import Bytes, LayerBuffer, LayerWeights
from hmi.stages.elastic_shards.io_budget import REAL, Clock, IoBudget
from hmi.stages.elastic_shards.pipeline import Pipeline, Ref, Stream, Trace
from hmi.stages.elastic_shards.plan import ShardPlan
from hmi.stages.elastic_shards.store import ShardStore

REORDER_ROWS: Final = 48
"""A layer for at least this many rows is reordered first (`EncoderLayer.pack`).

Measured at 768 dimensions on one core with AVX-512: reordering takes 5 ms. It saves 4 ms for 32 rows and 11
ms for 128. The compiled kernels' layout would take 10 to 25 ms, and saves 1 ms more (bf16: 5 ms) for 128
rows.
"""
KEPT_TRACES: Final = 64
"""The number of latest batches whose traces are kept."""


def refs_of(plan: ShardPlan) -> list[list[Ref]]:
    """Return the shards of each layer of a plan, whose layers are the root's first. Raises ValueError if they
    are not."""
    if plan.layers != tuple(range(len(plan.layers))):
        raise ValueError(f"the plan has the layers {plan.layers}; only the first of a root can be run")
    return [[(i, s, bits) for (i, s), bits in plan.bits.items() if i == layer] for layer in plan.layers]


def uniform(store: ShardStore, bits: int) -> list[list[Ref]]:
    """Return all shards of each layer at one bitwidth."""
    return [[(i, s, bits) for s in range(store.shards)] for i in range(len(store.layers))]


class Reads:
    """The blobs of a store, as `pipeline.Source`."""

    def __init__(self, store: ShardStore) -> None:
        self._store = store

    def size(self, ref: Ref) -> int:
        return self._store.size(*ref)

    def read(self, ref: Ref) -> Bytes:
        return self._store.read(*ref)


class Workspace:
    """Memory for one decoded layer, and each layer's view of it. One batch uses it at a time."""

    def __init__(self, store: ShardStore, shape: EncoderShape, plan: Sequence[Sequence[Ref]]) -> None:
        """plan: the shards of each layer, the same number in each."""
        head_dim = shape.dim // shape.heads
        self._buffers: list[LayerBuffer] = []
        self._layers: list[PartialLayer] = []
        shared: LayerWeights | None = None
        for i, refs in enumerate(plan):
            buffer = LayerBuffer(store.layers[i].cut, [ref[1] for ref in refs], shared)
            shared = buffer.weights
            kept = Kept.of(buffer.heads.tolist(), torch.from_numpy(buffer.neurons), head_dim)
            matrices = {
                "qkv.weight": torch.from_numpy(shared.qkv),
                "o.weight": torch.from_numpy(shared.o),
                "fi.weight": torch.from_numpy(shared.fi),
                "fo.weight": torch.from_numpy(shared.fo),
            }
            rest = rest_of(store.layers[i].rest, kept, shape.dim)
            self._buffers.append(buffer)
            self._layers.append(PartialLayer(shape, kept, {**matrices, **rest}))
        self._store = store

    def decoded(self, index: int, blobs: dict[Ref, Bytes]) -> PartialLayer:
        """Decode a layer. The layer before it is overwritten."""
        for (layer, shard, bits), blob in blobs.items():
            self._store.decode(layer, shard, bits, blob, self._buffers[index])
        return self._layers[index]


class ShardWeights:
    """`Weights` over a root's shards, by a plan: the shards of each layer, and those that stay in memory.

    A batch has a memory for one decoded layer; batches at once have one each. Thread-safe.
    """

    def __init__(
        self,
        store: ShardStore,
        plan: Sequence[Sequence[Ref]],
        preload: Sequence[Ref] = (),
        *,
        budget: IoBudget | None = None,
        ahead: int | None = None,
        clock: Clock = REAL,
        keep: bool = False,
        beside: ShardWeights | None = None,
    ) -> None:
        """preload: the shards of the preload buffer, which are read now. keep: all that is read joins them.

        beside: other weights of as many shards of each layer, with which to share the memory for decoded
        layers. Raises Damaged, Unavailable.
        """
        self.store, self.plan = store, plan
        self._shape = store.info.shape
        self.pipeline = Pipeline(Reads(store), budget=budget, ahead=ahead, clock=clock, keep=keep)
        self._free: list[Workspace] = [] if beside is None else beside._free
        self._lock: threading.Lock = threading.Lock() if beside is None else beside._lock
        self.traces: list[Trace] = []
        """The traces of the latest batches, the oldest first."""
        if preload:
            self.pipeline.preload(preload)

    def __len__(self) -> int:
        return len(self.plan)

    @classmethod
    def planned(
        cls, store: ShardStore, plan: ShardPlan, *, budget: IoBudget | None = None, ahead: int | None = None
    ) -> ShardWeights:
        """The weights of a plan whose layers are the root's first. Reads what the plan holds."""
        held = [(i, s, plan.bits[i, s]) for i, s in sorted(plan.held)]
        return cls(store, refs_of(plan), held, budget=budget, ahead=ahead)

    @property
    def planned_bytes(self) -> int:
        """The bytes that each batch reads."""
        return self.pipeline.planned_bytes(self.plan)

    @contextmanager
    def batch(self) -> Iterator[Layers]:
        """See `Weights.batch`: the thread that reads begins at once. Raises Unavailable if it is closed."""
        with self.pipeline.stream(self.plan) as stream:
            with self._lock:
                space = self._free.pop() if self._free else None
            space = space or Workspace(self.store, self._shape, self.plan)
            try:
                yield _Layers(self.pipeline, stream, space, len(self.plan) - 1)
            finally:
                with self._lock:
                    self._free.append(space)
                    self.traces = [*self.traces[1 - KEPT_TRACES :], stream.trace]

    def close(self) -> None:
        """Read nothing more, and close the store. A batch under way fails with Unavailable."""
        self.pipeline.close()
        self.store.close()


class _Layers:
    """One batch's `Layers`."""

    def __init__(self, pipeline: Pipeline[Bytes], stream: Stream[Bytes], space: Workspace, last: int) -> None:
        self._pipeline, self._stream, self._space, self._last = pipeline, stream, space, last

    def layer(self, index: int, rows: int) -> EncoderLayer:
        """Wait for a layer's shards, and decode them. Raises Damaged, Unavailable."""
        with trace.span("shards"):
            blobs = self._pipeline.take(self._stream, index)
        with trace.span("decode"):
            layer = self._space.decoded(index, blobs)
            return layer.reordered(last=index == self._last) if rows >= REORDER_ROWS else layer
