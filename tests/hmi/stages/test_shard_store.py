"""The store of a root's shards: exact at full precision, checked before use, replaced at once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.errors import Damaged, NotFound, StorageFull
from hmi.model.network.encoder import EncoderLayer, attend_padded
from hmi.model.sources.root import Root
from hmi.stages.elastic_shards import making
from hmi.stages.elastic_shards.codec import LayerBuffer, ShardedLayer
from hmi.stages.elastic_shards.making import layer_file, make_shards, write_header
from hmi.stages.elastic_shards.store import ShardStore, open_shards
from hmi.stages.elastic_shards.versions import FULL, VERSIONS
from tests.hmi.labs.shard_lab import assembled, folder_with_shards, sorted_by

LAYERS, HEADS, FFN, DIM = 2, 4, 64, 32
HEAD_ORDER = [[2, 0, 3, 1], [1, 3, 0, 2]]
NEURON_ORDER = [np.random.default_rng(seed).permutation(FFN) for seed in range(LAYERS)]


@pytest.fixture
def folder(tmp_path: Path, tiny_root: Root, tiny_source: Path) -> Path:
    return folder_with_shards(tmp_path, tiny_root, tiny_source)


def sorted_shards(folder: Path, report: Callable[[int, int], None] = lambda done, total: None) -> None:
    """Make shards in an order of their own, as earlier releases could."""
    with sorted_by(HEAD_ORDER, NEURON_ORDER):
        make_shards(folder, report)


def same(a: ShardedLayer, b: ShardedLayer) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in ("qkv", "o", "fi", "fo"))


@pytest.mark.parametrize("make", [make_shards, sorted_shards], ids=["plain", "ordered"])
def test_full_shards_reassemble_to_the_root(
    folder: Path, tiny_root: Root, make: Callable[[Path], None]
) -> None:
    make(folder)
    with open_shards(folder) as store:
        for i, layer in enumerate(tiny_root.upper):
            assert isinstance(layer, EncoderLayer)
            assert same(assembled(store, i, FULL).weights, ShardedLayer.of(layer))
            rest = store.layers[i].rest
            mine = layer.state_dict()
            assert set(mine) - set(rest) == set(making.SHARDED)
            assert all(torch.equal(mine[name], value) for name, value in rest.items())
            if make is sorted_shards:
                assert store.layers[i].cut.heads == tuple(HEAD_ORDER[i])
                first = store.layers[i].cut.neurons[0]
                assert first.tolist() == sorted(NEURON_ORDER[i][: FFN // HEADS])
        assert all(
            torch.equal(tiny_root.bias.state_dict()[name], value) for name, value in store.bias.items()
        )
        assert store.verify() == []


@pytest.mark.parametrize("make", [make_shards, sorted_shards], ids=["plain", "ordered"])
def test_the_shards_outputs_add_up_to_the_sublayers(
    folder: Path, tiny_root: Root, make: Callable[[Path], None]
) -> None:
    make(folder)
    layer, size = tiny_root.upper[0], DIM // HEADS
    assert isinstance(layer, EncoderLayer)
    x = torch.randn(1, 7, DIM, generator=torch.Generator().manual_seed(2))
    mask = torch.ones(1, 7, dtype=torch.bool)
    context = attend_padded(mask, HEADS)(*layer.project(x), layer.relative)
    bias = layer.qkv.bias.unflatten(0, (3, HEADS, size))
    attention, inner = layer.o.bias.clone(), layer.fo.bias.clone()
    with open_shards(folder) as store:
        cut = store.layers[0].cut
        for shard in range(HEADS):
            buffer, head, mine = LayerBuffer(cut), cut.heads[shard] * size, cut.neurons[shard]
            store.decode(0, shard, FULL, store.read(0, shard, FULL), buffer)
            qkv, o, fi, fo = (torch.from_numpy(getattr(buffer.weights, n)) for n in ("qkv", "o", "fi", "fo"))
            mine_of = qkv.unflatten(0, (3, DIM))[:, head : head + size].flatten(0, 1)
            q, k, v = F.linear(x, mine_of, bias[:, cut.heads[shard]].flatten()).split(size, dim=-1)
            attention = attention + F.linear(attend_padded(mask, 1)(q, k, v, None), o[:, head : head + size])
            inner = inner + F.linear(F.gelu(F.linear(x, fi[mine], layer.fi.bias[mine])), fo[:, mine])
    torch.testing.assert_close(attention, layer.o(context), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(inner, layer.fo(F.gelu(layer.fi(x))), atol=1e-5, rtol=1e-5)


def test_all_sizes_are_as_stated(folder: Path) -> None:
    with open_shards(folder) as store:
        weights = 4 * DIM * DIM + 2 * DIM * FFN
        assert store.full_bytes == LAYERS * weights * 4
        for layer in range(LAYERS):
            outliers = round(store.layers[layer].outliers * weights)
            assert outliers > 0
            for bits in VERSIONS:
                blobs = [store.read(layer, shard, bits) for shard in range(HEADS)]
                assert [len(blob) for blob in blobs] == [store.size(layer, s, bits) for s in range(HEADS)]
                extra = 0 if bits == FULL else HEADS * 8 + outliers * 8
                assert sum(map(len, blobs)) == weights * bits // 8 + extra


def test_the_scores_that_an_earlier_release_left_are_ignored(folder: Path) -> None:
    """They go with the shards: new ones take their folder's place."""
    left = folder / "shards" / "importance.json"
    left.write_text("damaged")
    with open_shards(folder) as store:
        assert store.verify() == []
    make_shards(folder)
    assert not left.exists()


def _flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


def test_a_damaged_shard_is_refused_and_the_others_are_read(folder: Path) -> None:
    with open_shards(folder) as store:
        place = store.layers[1].places[3][2]
        _flip(folder / "shards" / layer_file(1), place.offset + place.size // 2)
        with pytest.raises(Damaged, match=r"shard 2 of layer 1 at 3 bits of root tiny .* again"):
            store.read(1, 2, 3)
        assert [len(store.read(1, s, 3)) for s in (0, 1, 3)] == [store.size(1, s, 3) for s in (0, 1, 3)]
        assert len(store.verify()) == 1
        (folder / "shards" / layer_file(0)).write_bytes(b"")
        with pytest.raises(Damaged, match="checksum"):
            store.read(0, 0, 2)


def _change(change: Callable[[Any], Any], *, checked: bool = True) -> Callable[[Path], None]:
    """Change the header, with a right checksum if `checked`."""

    def run(shards: Path) -> None:
        header = json.loads((shards / "shards.json").read_text())
        check = header.pop("check")
        change(header)
        write_header(shards / "shards.json", header)
        if not checked:
            (shards / "shards.json").write_text(json.dumps({**header, "check": check}))

    return run


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (_change(lambda h: h.update(weights="0" * 64)), "other weights"),
        (_change(lambda h: h.update(format=2)), "newer version of HMI: upgrade"),
        (_change(lambda h: h.update(version="v2"), checked=False), "fails its checksum"),
        (_change(lambda h: h.pop("rest")), "cannot be read"),
        (_change(lambda h: h["layers"][0]["blobs"].pop("4")), "cannot be read"),
        (lambda shards: (shards / "shards.json").write_text("[1]"), "cannot be read"),
        (lambda shards: _flip(shards / "rest.safetensors", -1), "fails its checksum"),
        (lambda shards: (shards / "layer-1.bin").unlink(), "missing"),
    ],
    ids=["weights", "newer", "check", "field", "version", "shape", "rest", "file"],
)
def test_a_damaged_store_is_refused(folder: Path, harm: Callable[[Path], None], said: str) -> None:
    harm(folder / "shards")
    with pytest.raises(Damaged, match=said) as found:
        open_shards(folder)
    assert "again" in found.value.message or "upgrade" in found.value.message
    assert str(folder) not in found.value.message


def test_a_root_without_shards_says_so(folder: Path) -> None:
    (folder / "shards").rename(folder / "gone")
    with pytest.raises(NotFound, match="root tiny has no shards"):
        open_shards(folder)


def test_a_failure_leaves_the_earlier_shards(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, data: bytes) -> None:
        if path.name == layer_file(1):
            raise StorageFull("no room")
        real(path, data)

    real, before = making.write_bytes, sorted(folder.iterdir())
    monkeypatch.setattr(making, "write_bytes", full)
    with pytest.raises(StorageFull):
        make_shards(folder)
    assert sorted(folder.iterdir()) == before
    with open_shards(folder) as store:
        assert store.layers[0].cut.heads == tuple(range(HEADS))


def test_readers_keep_the_shards_that_they_opened(folder: Path) -> None:
    with open_shards(folder) as store:
        done: list[tuple[int, int]] = []
        sorted_shards(folder, lambda at, of: done.append((at, of)))
        assert done == [(1, 2), (2, 2)]
        assert store.verify() == []
        with open_shards(folder) as newer:
            assert newer.layers[0].cut.heads != store.layers[0].cut.heads
            assert _decoded(newer, 2) == pytest.approx(_decoded(store, 2)), "the order does not matter"
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith(".")) == []


def _decoded(store: ShardStore, bits: int) -> Tensor:
    return torch.from_numpy(assembled(store, 0, bits).weights.qkv)
