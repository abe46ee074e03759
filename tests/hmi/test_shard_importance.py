"""The importance of heads, neurons and shards on a tiny root, against masks and shards that do not matter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.errors import Damaged, JobCancelled
from hmi.execution.packed import PackedExecutor, run_rows
from hmi.model.encoder import EncoderLayer
from hmi.model.heads import Head
from hmi.model.modules import TenantModule, new_module
from hmi.model.root import Root
from hmi.model.tasks.sequence import Classification
from hmi.stages.elastic_shards.importance import (
    FILE,
    Report,
    orders_of,
    outputs_at,
    profile,
    read_importance,
    write_importance,
)
from hmi.stages.elastic_shards.making import make_shards
from hmi.stages.elastic_shards.probes import Probe, batches, model_probe, root_probe
from hmi.stages.elastic_shards.store import open_shards
from hmi.stages.elastic_shards.versions import FULL
from tests.hmi.shard_lab import folder_with_shards

LAYERS, HEADS, FFN, DIM = 2, 4, 64, 32
LENGTHS = (5, 3, 9, 4, 7, 2)


def quiet(done: int, total: int) -> None:
    assert 0 < done <= total


@pytest.fixture
def module(tiny_root: Root) -> TenantModule:
    torch.manual_seed(3)
    made = new_module(ModuleSpec(kind="lora", rank=2), tiny_root.info.shape, LAYERS)
    for p in made.parameters():
        nn.init.normal_(p, std=0.2)
    return made.eval().requires_grad_(False)


@pytest.fixture
def probes(module: TenantModule) -> list[Probe]:
    """A model's probe and the root's, on the same rows."""
    offsets = [0, *np.cumsum(LENGTHS).tolist()]
    torch.manual_seed(4)
    x = torch.randn(offsets[-1], DIM)
    head = Head(2 * DIM, 3, queries=2, dim=DIM).eval().requires_grad_(False)
    nn.init.normal_(head.out.weight)
    types = [[0] * length for length in LENGTHS]
    model = model_probe(x, offsets, types, module, head, Classification(("a", "b", "c")))
    return [model, root_probe(x, offsets)]


@pytest.fixture
def folder(tmp_path: Path, tiny_root: Root, tiny_source: Path) -> Path:
    return folder_with_shards(tmp_path, tiny_root, tiny_source)


def test_probes_run_the_layers_as_the_server_does(
    folder: Path, tiny_root: Root, probes: list[Probe], module: TenantModule
) -> None:
    seen: list[Tensor] = []
    watched = Probe(
        probes[0].x, probes[0].offsets, lambda last, *_: seen.append(last) or last, lambda a, b: 1.0, module
    )
    with open_shards(folder) as store:
        outputs_at(store, [watched], [[FULL] * HEADS] * LAYERS)
        full = outputs_at(store, probes, [[FULL] * HEADS] * LAYERS)
        some = outputs_at(
            store, [p for probe in probes for p in batches(probe, 4)], [[FULL] * HEADS] * LAYERS
        )
    executor = PackedExecutor(tiny_root.upper, tiny_root.info.shape)
    served = run_rows(executor, watched.x, watched.offsets, [module] * len(LENGTHS))
    assert torch.equal(torch.cat(seen), served)
    for whole, first, rest in zip(full, some[::2], some[1::2], strict=True):
        torch.testing.assert_close(torch.stack(whole), torch.stack([*first, *rest]))
    assert [probe.nearness(each, each) for probe, each in zip(probes, full, strict=True)] == [
        pytest.approx(1.0)
    ] * 2


def test_heads_and_neurons_without_effect_come_last(tiny_root: Root, probes: list[Probe]) -> None:
    layer, size = tiny_root.upper[0], DIM // HEADS
    assert isinstance(layer, EncoderLayer)
    with torch.no_grad():
        layer.o.weight[:, 2 * size : 3 * size] = 0
        layer.fo.weight[:, [7, 50]] = 0
        layer.o.weight[:, :size] *= 3
    orders = orders_of(tiny_root.upper, HEADS, probes[1:], quiet)
    assert (orders.heads[0][0], orders.heads[0][-1]) == (0, 2)
    assert set(orders.neurons[0][-2:].tolist()) == {7, 50}
    for heads, neurons in zip(orders.heads, orders.neurons, strict=True):
        assert sorted(heads) == list(range(HEADS))
        assert sorted(neurons.tolist()) == list(range(FFN))


def test_orders_are_the_same_each_time(tiny_root: Root, probes: list[Probe]) -> None:
    orders = [orders_of(tiny_root.upper, HEADS, [probe], quiet) for probe in (probes[0], probes[0])]
    assert orders[0].heads == orders[1].heads
    assert all(np.array_equal(a, b) for a, b in zip(orders[0].neurons, orders[1].neurons, strict=True))


def test_a_shards_score_is_that_of_the_model_with_only_this_shard_exact(
    folder: Path, probes: list[Probe]
) -> None:
    with open_shards(folder) as store:
        scores = profile(store, probes, quiet)
        full = outputs_at(store, probes, [[FULL] * HEADS] * LAYERS)
        assert set(scores) == {(i, s) for i in range(LAYERS) for s in range(HEADS)}
        for layer, shard in ((0, 0), (1, 3)):
            bits = [[2] * HEADS for _ in range(LAYERS)]
            bits[layer][shard] = FULL
            slow = outputs_at(store, probes, bits)
            nears = [p.nearness(a, b) for p, a, b in zip(probes, slow, full, strict=True)]
            assert scores[layer, shard] == pytest.approx(sum(nears) / 2)

        def stop(done: int, total: int) -> None:
            raise JobCancelled("stop")

        stopping: Report = stop
        with pytest.raises(JobCancelled):
            profile(store, probes, stopping)


def test_scores_are_kept_for_their_shards_alone(folder: Path) -> None:
    with open_shards(folder) as store:
        assert read_importance(folder, store) is None
        mine = {(i, s): i + s / 10 for i in range(LAYERS) for s in range(HEADS)}
        write_importance(folder, store, "root", mine)
        write_importance(folder, store, "artefact", {shard: -x for shard, x in mine.items()})
        assert read_importance(folder, store) == read_importance(folder, store, "another") == mine
        assert read_importance(folder, store, "artefact") == {shard: -x for shard, x in mine.items()}
        path = folder / "shards" / FILE
        whole = path.read_text()
        for harm, said in ((whole.replace("1.1", "1.2"), "checksum"), ("{", "cannot be read")):
            path.write_text(harm)
            with pytest.raises(Damaged, match=said):
                read_importance(folder, store)
        write_importance(folder, store, "root", mine)
        assert read_importance(folder, store, "artefact") == mine, "damaged scores are replaced"
        kept = path.read_text()
    make_shards(folder)
    path.write_text(kept)
    with open_shards(folder) as store:
        assert read_importance(folder, store) == mine, "the same shards"
