"""The importance of heads, neurons and shards.

`orders_of` sorts the heads and neurons of each layer, so that a root's first shards are its most important
ones (DynaBERT: the gradient of a mask). `profile` scores each shard (STI §5.2): how near the outputs are to
the full model's if this shard is exact and all others have the fewest bits.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.errors import Damaged, Unavailable
from hmi.execution.packed.attention import attend_packed
from hmi.model.encoder import Delta, EncoderLayer, Norm
from hmi.model.files import write_json
from hmi.stages.elastic_shards.codec import LayerWeights
from hmi.stages.elastic_shards.making import FOLDER, SHARDED, Orders, check_of
from hmi.stages.elastic_shards.plan import Shard
from hmi.stages.elastic_shards.probes import Probe, batches, masked
from hmi.stages.elastic_shards.store import CURE, ShardStore
from hmi.stages.elastic_shards.versions import BITS, FULL

Report = Callable[[int, int], None]
"""Called with the steps that are done and all steps. It may raise, to stop."""
FILE = "importance.json"
FORMAT = 1
ROOT = "root"
"""The name of the scores that count for all models."""
TEXTS, DRAWS = 4, 2
"""Texts of a backward pass, and random directions for each."""


def orders_of(upper: nn.ModuleList, heads: int, probes: Sequence[Probe], report: Report) -> Orders:
    """Sort each layer's heads and neurons by their effect on the outputs, the greatest first.

    The effect of a head or neuron is the sum over the texts of ‖∂output/∂mask‖², where its mask is 1. It is
    estimated from the outputs' products with random signs, since at the full model the gradient of a distance
    from its own outputs is 0. upper: plain layers, whose weights need no gradients.
    """
    layers = [layer for layer in upper if isinstance(layer, EncoderLayer)]
    of_heads = torch.zeros(len(layers), heads)
    of_neurons = torch.zeros(len(layers), _neurons(layers[0]))
    parts = [part for probe in probes for part in batches(probe, TEXTS)]
    draw = torch.Generator().manual_seed(0)
    for done, part in enumerate(parts):
        head_masks = torch.ones_like(of_heads, requires_grad=True)
        neuron_masks = torch.ones_like(of_neurons, requires_grad=True)
        with torch.enable_grad():
            x = before = part.x
            for i, layer in enumerate(layers):
                before = x
                attend = masked(attend_packed(part.offsets, heads), head_masks[i])
                x = layer(x, attend, _with_mask(part.delta(i), layer, neuron_masks[i]))
            outputs = part.outputs(x, before)
            for _ in range(DRAWS):
                loss = torch.stack([(out * _signs(out, draw)).sum() for out in outputs]).sum()
                found = torch.autograd.grad(loss, (head_masks, neuron_masks), retain_graph=True)
                of_heads += found[0] ** 2
                of_neurons += found[1] ** 2
        report(done + 1, len(parts))
    return Orders(
        of_heads.argsort(dim=1, descending=True, stable=True).tolist(),
        list(of_neurons.argsort(dim=1, descending=True, stable=True).numpy()),
    )


def _neurons(layer: EncoderLayer) -> int:
    assert isinstance(layer.fi, nn.Linear)
    return layer.fi.out_features


def _signs(like: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randint(0, 2, like.shape, generator=draw) * 2.0 - 1


def _with_mask(delta: Delta, layer: EncoderLayer, mask: Tensor) -> Delta:
    """Multiply each neuron with its entry of mask [ffn], which is 1, so that only gradients notice."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        if site == "fo":
            assert isinstance(layer.fo, nn.Linear)
            y = y + F.linear(x * (mask - 1), layer.fo.weight)
        return delta(site, x, y.clone(), norm)  # modules change y in place

    return apply


def encoder_layer(store: ShardStore, layer: int, weights: LayerWeights) -> EncoderLayer:
    """Return a layer that computes with these weights, of all shards, where they are: nothing is copied."""
    with torch.device("meta"):
        made = EncoderLayer(store.info.shape)
    arrays = (weights.qkv, weights.o, weights.fi, weights.fo)
    tensors = {name: torch.from_numpy(a) for name, a in zip(SHARDED, arrays, strict=True)}
    made.load_state_dict({**store.layers[layer].rest, **tensors}, assign=True)
    return made.eval().requires_grad_(False)


@torch.inference_mode()
def profile(store: ShardStore, probes: Sequence[Probe], report: Report) -> dict[Shard, float]:
    """Score each shard: the mean nearness of all probes' outputs to the full model's.

    It runs a shard's layer and those above it once for each shard: (layers + 1) / 2 times as many passes as
    there are shards.
    """
    count, shards, heads = len(store.layers), store.shards, store.info.shape.heads
    full = outputs_at(store, probes, [[FULL] * shards] * count)
    low = [store.assembled(i, [BITS[0]] * shards) for i in range(count)]
    layers = [encoder_layer(store, i, buffer.weights) for i, buffer in enumerate(low)]
    states, scores = [probe.x for probe in probes], dict[Shard, float]()
    for i in range(count):
        for s in range(shards):
            store.decode(i, s, FULL, store.read(i, s, FULL), low[i])
            nears = [
                probe.nearness(_above(probe, layers, i, x, heads), mine)
                for probe, x, mine in zip(probes, states, full, strict=True)
            ]
            scores[i, s] = sum(nears) / len(nears)
            store.decode(i, s, BITS[0], store.read(i, s, BITS[0]), low[i])
            report(i * shards + s + 1, count * shards)
        states = [probe.through(layers[i], i, x, heads) for probe, x in zip(probes, states, strict=True)]
    return scores


def _above(probe: Probe, layers: Sequence[EncoderLayer], first: int, x: Tensor, heads: int) -> list[Tensor]:
    before = x
    for i in range(first, len(layers)):
        before, x = x, probe.through(layers[i], i, x, heads)
    return probe.outputs(x, before)


@torch.inference_mode()
def outputs_at(
    store: ShardStore, probes: Sequence[Probe], bits: Sequence[Sequence[int]]
) -> list[list[Tensor]]:
    """Return the outputs of each probe's texts with these bitwidths [layers][shards]; one layer at a time is
    in memory."""
    states = [(probe.x, probe.x) for probe in probes]
    for i, widths in enumerate(bits):
        layer = encoder_layer(store, i, store.assembled(i, widths).weights)
        states = [
            (probe.through(layer, i, x, store.info.shape.heads), x)
            for probe, (x, _) in zip(probes, states, strict=True)
        ]
    return [probe.outputs(x, before) for probe, (x, before) in zip(probes, states, strict=True)]


def write_importance(folder: Path, store: ShardStore, name: str, scores: Mapping[Shard, float]) -> None:
    """Keep the scores of a model's shards, or those of ROOT, beside the shards of the root in `folder`.

    Raises StorageFull, and Unavailable if earlier scores cannot be read. Damaged ones are replaced.
    """
    try:
        kept = _kept(folder, store)
    except Damaged:
        kept = {}
    rows = [[scores[i, s] for s in range(store.shards)] for i in range(len(store.layers))]
    about = {"format": FORMAT, "shards": store.made, "scores": {**kept, name: rows}}
    write_json(folder / FOLDER / FILE, {**about, "check": check_of(about)})


def read_importance(folder: Path, store: ShardStore, name: str = ROOT) -> dict[Shard, float] | None:
    """Return the scores of a model, or else those of ROOT; None if there are neither for these shards.

    Raises Damaged, Unavailable.
    """
    kept = _kept(folder, store)
    rows = kept.get(name, kept.get(ROOT))
    return None if rows is None else {(i, s): x for i, row in enumerate(rows) for s, x in enumerate(row)}


def _kept(folder: Path, store: ShardStore) -> dict[str, list[list[float]]]:
    path, whose = folder / FOLDER / FILE, f"{FILE} of root {store.info.name}"
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        check = about.pop("check")
        if about["format"] > FORMAT:
            raise Damaged(f"{whose} was written by a newer version of HMI: upgrade hmi-server")
        if check != check_of(about):
            raise Damaged(f"{whose} fails its checksum: {CURE}")
        found: dict[str, list[list[float]]] = about["scores"] if about["shards"] == store.made else {}
        wanted = (len(store.layers), store.shards)
        if any(np.shape(rows) != wanted or not np.isfinite(rows).all() for rows in found.values()):
            raise ValueError("its scores are not those of the shards")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unavailable(f"{whose} could not be read ({error.strerror}): try again") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Damaged(f"{whose} cannot be read ({error}): {CURE}") from error
    return found
