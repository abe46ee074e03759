"""A root with shards, for tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from hmi.model.sources.root import Root, save_root
from hmi.stages.elastic_shards.codec import Indexes, LayerBuffer, LayerCut
from hmi.stages.elastic_shards.making import make_shards
from hmi.stages.elastic_shards.store import ShardStore


def folder_with_shards(parent: Path, root: Root, source: Path) -> Path:
    """Publish `root` below `parent`, with shards in the order of the weights. Returns its folder."""
    made = parent / "tiny" / "v1"
    save_root(made, root, source / "tokenizer.json")
    make_shards(made)
    return made


@contextmanager
def sorted_by(heads: Sequence[Sequence[int]], neurons: Sequence[Indexes]) -> Iterator[None]:
    """Shards that are made meanwhile are in this order, as earlier releases could write them.

    heads [layers][heads], neurons [layers][ffn]: each layer's, once each.
    """
    layers = iter(zip(heads, neurons, strict=True))
    with patch.object(LayerCut, "plain", lambda dim, *_: LayerCut.ordered(dim, *next(layers))):
        yield


def assembled(store: ShardStore, layer: int, bits: int) -> LayerBuffer:
    """Read and decode a whole layer at one bitwidth."""
    buffer = LayerBuffer(store.layers[layer].cut)
    for shard in range(store.shards):
        store.decode(layer, shard, bits, store.read(layer, shard, bits), buffer)
    return buffer
