"""A root's upper layers for the packed executor, made anew for each batch from shards that are streamed
in."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import torch
from torch import Tensor

from hmi.execution import trace
from hmi.execution.base import Layers
from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.shape import EncoderShape
from hmi.stages.elastic_shards.codec import Bytes, LayerBuffer, ShardedLayer
from hmi.stages.elastic_shards.io_budget import REAL, Clock, IoBudget
from hmi.stages.elastic_shards.making import SHARDED
from hmi.stages.elastic_shards.pipeline import Pipeline, Ref, ShardStream, ShardTrace
from hmi.stages.elastic_shards.store import ShardStore

REORDER_ROWS: Final = 48
"""A layer for at least this many rows is reordered first (`EncoderLayer.pack`).

Measured at 768 dimensions on one core with AVX-512: reordering takes 5 ms. It saves 4 ms for 32 rows and 11
ms for 128. The compiled kernels' layout would take 10 to 25 ms, and saves 1 ms more (bf16: 5 ms) for 128
rows.
"""
KEPT_TRACES: Final = 64
"""The number of latest batches whose traces are kept."""


def uniform(store: ShardStore, bits: int) -> list[list[Ref]]:
    """Return all shards of each layer at one bitwidth."""
    return [[(i, s, bits) for s in range(store.shards)] for i in range(len(store.layers))]


class Reads:
    """The blobs of a store, as `pipeline.ShardSource`."""

    def __init__(self, store: ShardStore) -> None:
        self._store = store

    def size(self, ref: Ref) -> int:
        return self._store.size(*ref)

    def read(self, ref: Ref) -> Bytes:
        return self._store.read(*ref)


class ShardLayer(EncoderLayer):
    """A layer over tensors that it does not copy."""

    def __init__(self, shape: EncoderShape, state: Mapping[str, Tensor]) -> None:
        """state: the layer's tensors, under their names in its `state_dict`. Raises RuntimeError if one is
        missing or is not of the layer's size."""
        with torch.device("meta"):
            super().__init__(shape)
        self.load_state_dict(dict(state), assign=True)
        self.eval().requires_grad_(False)

    def reordered(self, *, last: bool) -> EncoderLayer:
        """Return a packed copy (`EncoderLayer.pack`), which is faster where many rows pay for its making."""
        made = copy.copy(self)
        made._modules = dict(self._modules)
        made.pack(last=last)
        return made


class Workspace:
    """Memory for one decoded layer, and each layer's view of it. One batch uses it at a time."""

    def __init__(self, store: ShardStore, shape: EncoderShape) -> None:
        self._buffers: list[LayerBuffer] = []
        self._layers: list[ShardLayer] = []
        shared: ShardedLayer | None = None
        for about in store.layers:
            buffer = LayerBuffer(about.cut, shared)
            shared = buffer.weights
            arrays = (shared.qkv, shared.o, shared.fi, shared.fo)
            tensors = {name: torch.from_numpy(a) for name, a in zip(SHARDED, arrays, strict=True)}
            self._buffers.append(buffer)
            self._layers.append(ShardLayer(shape, {**about.rest, **tensors}))
        self._store = store

    def decoded(self, index: int, blobs: dict[Ref, Bytes]) -> ShardLayer:
        """Decode a layer. The layer before it is overwritten."""
        for (layer, shard, bits), blob in blobs.items():
            self._store.decode(layer, shard, bits, blob, self._buffers[index])
        return self._layers[index]


class ShardWeights:
    """`Weights` over a root's shards: in which bits each layer's are read, and which stay in memory.

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
        """plan: all shards of each layer, from the root's first layer on. preload: the shards of the preload
        buffer, which are read now. keep: all that is read joins them. beside: other weights of the root, with
        which to share the memory for decoded layers. Raises Damaged, Unavailable.
        """
        self.store, self.plan = store, plan
        self._shape = store.info.shape
        self.pipeline = Pipeline(Reads(store), budget=budget, ahead=ahead, clock=clock, keep=keep)
        self._free: list[Workspace] = [] if beside is None else beside._free
        self._lock: threading.Lock = threading.Lock() if beside is None else beside._lock
        self.traces: list[ShardTrace] = []
        """The traces of the latest batches, the oldest first."""
        if preload:
            self.pipeline.preload(preload)

    def __len__(self) -> int:
        return len(self.plan)

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
            space = space or Workspace(self.store, self._shape)
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

    def __init__(
        self, pipeline: Pipeline[Bytes], stream: ShardStream[Bytes], space: Workspace, last: int
    ) -> None:
        self._pipeline, self._stream, self._space, self._last = pipeline, stream, space, last

    def layer(self, index: int, rows: int) -> EncoderLayer:
        """Wait for a layer's shards, and decode them. Raises Damaged, Unavailable."""
        with trace.span("shards"):
            blobs = self._pipeline.take(self._stream, index)
        with trace.span("decode"):
            layer = self._space.decoded(index, blobs)
            return layer.reordered(last=index == self._last) if rows >= REORDER_ROWS else layer
