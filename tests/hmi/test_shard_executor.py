"""The packed executor over a root's shards, streamed from the disk: exact shards, parts, damage, plans."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hmi.core import ModuleSpec
from hmi.errors import Damaged
from hmi.execution.packed import PackedExecutor, run_classified, run_rows
from hmi.model.encoder import EncoderLayer
from hmi.model.modules import TenantModule
from hmi.model.partial import Kept, part_of
from hmi.model.root import Root, load_root, save_root
from hmi.stages.elastic_shards.making import FOLDER, Orders, layer_file, make_shards
from hmi.stages.elastic_shards.plan import Speed, Wanted, make_plan
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.weights import ShardWeights, uniform
from tests.hmi.test_partial_layers import Parts
from tests.modules import random_module

LENGTHS = [1, 7, 60, 12, 5]  # more rows together than `REORDER_ROWS`


@pytest.fixture
def folder(tmp_path: Path, tiny_root: Root, tiny_source: Path) -> Path:
    """A saved root whose shards are in another order than its weights."""
    path = tmp_path / "root"
    save_root(path, tiny_root, tiny_source / "tokenizer.json")
    g, shape = torch.Generator().manual_seed(5), tiny_root.info.shape
    layers = range(len(tiny_root.upper))
    heads = [torch.randperm(shape.heads, generator=g).tolist() for _ in layers]
    neurons = [torch.randperm(shape.ffn, generator=g).numpy() for _ in layers]
    make_shards(path, Orders(heads, neurons))
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


def test_a_plan_runs_the_parts_that_it_names(
    folder: Path, batch: tuple[Tensor, list[int], list[TenantModule | None]]
) -> None:
    """Two of four heads, mixed bitwidths, some shards held: equal to parts of the decoded layers, and what is
    read is what was planned. A text alone has the same answer."""
    store, shape = open_shards(folder), load_root(folder).info.shape
    buffer = sum(store.size(0, s, 2) for s in range(2))
    target_s = 0.02 + (store.size(1, 0, 6) + store.size(1, 1, 2)) / 1e4
    wanted = Wanted(target_s, buffer=buffer, depths=(2,), widths=(2,), versions=(2, 6))
    plan = make_plan(store, 2, Speed(1e4, (0.01,) * 4), wanted, {(1, 0): 1.0})
    assert plan.held
    assert len(set(plan.bits.values())) == 2
    weights = ShardWeights.planned(store, plan)
    layers, kept = torch.nn.ModuleList(), []
    for i, about in enumerate(store.layers):
        whole = EncoderLayer(shape).eval().requires_grad_(False)
        buffer_of = store.assembled(i, [plan.bits.get((i, s), 2) for s in range(4)]).weights
        state = {
            f"{name}.weight": torch.from_numpy(getattr(buffer_of, name)) for name in ("qkv", "o", "fi", "fo")
        }
        whole.load_state_dict({**state, **about.rest})
        layers.append(whole)
        neurons = torch.cat([torch.from_numpy(about.cut.neurons[s]) for s in range(2)])
        kept.append(Kept.of(about.cut.heads[:2], neurons, shape.dim // shape.heads))
    reference = PackedExecutor(Parts(layers, shape, kept), shape)
    x, offsets, modules = batch
    got = run_rows(executor(store, weights), *batch)
    torch.testing.assert_close(got, run_rows(reference, *batch), atol=1e-5, rtol=1e-5)
    assert weights.traces[-1].bytes == weights.planned_bytes == plan.streamed_bytes
    for i, module in enumerate(modules):
        mine = slice(offsets[i], offsets[i + 1])
        alone = run_rows(executor(store, weights), x[mine], [0, LENGTHS[i]], [module])
        torch.testing.assert_close(got[mine], alone, atol=1e-5, rtol=1e-5)
    weights.close()
    assert isinstance(part_of(layers[0], kept[0], shape), EncoderLayer)


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
