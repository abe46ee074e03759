"""The compiled step executor: `hmi_kernels.decoder` behind the interface `StepExecutor`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from hmi_kernels.decoder import ops
from torch import Tensor, nn

from hmi.execution.decoding.base import PAGE, Between, Part, check_sites, scored_of
from hmi.execution.decoding.scores import HostRow, ScoreRow
from hmi.execution.precision import KINDS, Precision
from hmi.model.network.decoder import DecoderLayer, rotary
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.tenant.modules import LORA_SCALE, LowRankLayer, TenantModule
from hmi.modulespec import GATED

assert PAGE == ops.PAGE


class CompiledDecoder:
    """See `StepExecutor`. A row's result has the same bits in every step.

    Keys and values are float32 where the products are, else bfloat16. One thread at a time.
    """

    def __init__(self, upper: UpperDecoder, pages: int, precision: Precision) -> None:
        kind, shape = KINDS[precision], upper.shape
        self.pages, self._shape = pages, shape
        weights = (weights_of(layer, shape) for layer in upper.layers)
        heads = shape.heads, shape.kv_heads
        self._layers = ops.pack_layers(kind, weights, len(upper.layers), *heads, shape.eps)
        scores, gain = upper.scores.weight, upper.norm.weight
        self._words = ops.pack_words(kind, _array(scores), _array(gain), shape.eps)
        self._kept = ops.Pages(pages, self._layers)
        self._room, self._score_room = ops.Room(), ops.Room()
        self._turns = np.empty((0, shape.head_dim), np.float32)

    def prepare(self, module: TenantModule) -> int:
        """See `Executor.prepare`: a copy in the kernels' layout."""
        return self._module(module).memory.nbytes

    def step(self, x: Tensor, parts: Sequence[Part], between: Between | None = None) -> Sequence[ScoreRow]:
        """See `StepExecutor.step`."""
        rows = ops.StepRows(
            [part.count for part in parts],
            [part.begin for part in parts],
            [part.pages for part in parts],
            [None if part.module is None else self._module(part.module) for part in parts],
        )
        turns, states = self._turned_to(rows.longest), x.numpy().copy()
        call, flag = (None, None) if between is None else (between.call, between.flag)
        ops.run_layers(self._layers, states, rows, turns, self._kept, self._room, call, flag)
        scores, tops, firsts = ops.scores(self._words, states.take(scored_of(parts), 0), self._score_room)
        return list(map(HostRow, scores, tops, firsts.tolist()))

    def _module(self, module: TenantModule) -> ops.Module:
        def make() -> tuple[ops.Module, int]:
            made = packed_module(module, self._layers)
            return made, made.memory.nbytes

        return module.forms.of(self, make)

    def _turned_to(self, length: int) -> np.ndarray:
        """Cosines and sines of at least `length` positions."""
        if length > len(self._turns):
            shape, half = self._shape, self._shape.head_dim // 2
            cosines, sines = rotary(max(length, 2 * len(self._turns)), shape.head_dim, shape.base)
            self._turns = torch.cat([cosines[:, :half], sines[:, :half]], dim=1).numpy()
        return self._turns


def weights_of(layer: nn.Module, shape: DecoderShape) -> ops.LayerWeights:
    """A layer's weights as the kernels take them."""
    assert isinstance(layer, DecoderLayer)
    bias = layer.qkv.bias
    weights = layer.qkv.weight.split(layer.sizes)
    biases = [None] * 3 if bias is None else [_array(part) for part in bias.split(layer.sizes)]
    q, k, v = ((_array(weight), given) for weight, given in zip(weights, biases, strict=True))
    gate, inner = layer.fi.weight.chunk(2)
    norms = [None if norm is None else _array(norm.weight) for norm in (layer.q_norm, layer.k_norm)]
    return ops.LayerWeights(
        q,
        k,
        v,
        _array(layer.o.weight),
        _array(gate),
        _array(inner),
        _array(layer.fo.weight),
        _array(layer.ln1.weight),
        _array(layer.ln2.weight),
        *norms,
    )


def packed_module(module: TenantModule, layers: ops.Layers) -> ops.Module:
    """A copy of a tenant's module in the kernels' layout. Raises ValueError if it is no LoRA of
    these layers."""
    count = len(layers.addresses)
    check_sites(module, count)
    by_layer: list[dict[str, ops.LowRank]] = [
        {site: _low_rank(change) for site in GATED if (change := module.at(i, site)) is not None}
        for i in range(count)
    ]
    return ops.pack_module(layers, by_layer)


def _low_rank(change: object) -> ops.LowRank:
    assert isinstance(change, LowRankLayer)
    return ops.LowRank(_array(change.down), _array(change.up) * np.float32(LORA_SCALE))


def _array(tensor: Tensor) -> ops.Floats:
    """The tensor as float32, whatever float type it is stored in."""
    found: ops.Floats = tensor.detach().float().numpy()
    return found
