"""The packed executor over a root's shards, streamed from the disk: exact shards, and damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.errors import Damaged
from hmi.execution.packed import PackedExecutor, run_classified, run_rows
from hmi.model.sources.root import Root, load_root, save_root
from hmi.model.tenant.modules import TenantModule
from hmi.stages.elastic_shards.making import FOLDER, layer_file, make_shards
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from tests.hmi.labs.shard_lab import sorted_by
from tests.modules import random_module

LENGTHS = [1, 7, 60, 12, 5]  # more rows together than `REORDER_ROWS`


@pytest.fixture
def folder(tmp_path: Path, tiny_root: Root, tiny_source: Path) -> Path:
    """A saved root whose shards are in another order than its weights, as earlier releases could."""
    path = tmp_path / "root"
    save_root(path, tiny_root, tiny_source / "tokenizer.json")
    g, shape = torch.Generator().manual_seed(5), tiny_root.info.shape
    layers = range(len(tiny_root.upper))
    heads = [torch.randperm(shape.heads, generator=g).tolist() for _ in layers]
    neurons = [torch.randperm(shape.ffn, generator=g).numpy() for _ in layers]
    with sorted_by(heads, neurons):
        make_shards(path)
    return path


@pytest.fixture
def batch(tiny_root: Root) -> tuple[Tensor, list[int], list[TenantModule | None]]:
    shape, depth = tiny_root.info.shape, len(tiny_root.upper)
    a, b = (random_module(ModuleSpec(kind=kind, rank=3), shape, depth, 1) for kind in ("lora", "houlsby+ln"))
    offsets = [0, *torch.tensor(LENGTHS).cumsum(0).tolist()]
    x = torch.randn(offsets[-1], shape.dim, generator=torch.Generator().manual_seed(0))
    return x, offsets, [a, None, b, b, a]


def executor(store: ShardStore, weights: ShardWeights) -> PackedExecutor:
    return PackedExecutor(weights, store.info.shape)


def test_all_shards_in_full_equal_the_full_executor(
    folder: Path, batch: tuple[Tensor, list[int], list[TenantModule | None]]
) -> None:
    store = open_shards(folder)
    weights = ShardWeights(store, uniform(store, 32))
    full = PackedExecutor(load_root(folder).upper, store.info.shape)
    for run in (run_rows, run_classified):
        torch.testing.assert_close(
            run(executor(store, weights), *batch), run(full, *batch), atol=1e-5, rtol=1e-5
        )
    assert [trace.bytes for trace in weights.traces] == [weights.planned_bytes] * 2
    weights.close()


def test_damage_on_the_disk_is_reported(
    folder: Path, batch: tuple[Tensor, list[int], list[TenantModule | None]]
) -> None:
    path = folder / FOLDER / layer_file(1)
    data = bytearray(path.read_bytes())
    data[100] ^= 1  # in a shard of 2 bits
    path.write_bytes(data)
    store = open_shards(folder)
    bad, good = (ShardWeights(store, uniform(store, bits)) for bits in (2, 6))
    with pytest.raises(Damaged, match="layer 1 at 2 bits of root tiny fails its checksum"):
        run_rows(executor(store, bad), *batch)
    assert run_rows(executor(store, good), *batch).isfinite().all()
    bad.close()
    good.close()
