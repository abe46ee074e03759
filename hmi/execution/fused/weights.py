"""Roots' layers and tenants' modules in the kernels' layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from hmi_kernels.encoder import ops
from torch import Tensor, nn

from hmi.execution.precision import KINDS, Precision
from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.relative import by_distance
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import LORA_SCALE, LowRankLayer, NormShift, TenantModule
from hmi.modulespec import SITES

_ACTIVATIONS: dict[Callable[[Tensor], Tensor], int] = {F.relu: ops.RELU, F.silu: ops.SILU}


def fused_layers(upper: nn.ModuleList, shape: EncoderShape, precision: Precision) -> list[ops.Layer]:
    """Copies of a root's upper layers as they were trained, in the kernels' layout."""
    last = len(upper) - 1
    return [_layer(layer, shape, KINDS[precision], i == last) for i, layer in enumerate(upper)]


def _layer(layer: nn.Module, shape: EncoderShape, kind: int, last: bool) -> ops.Layer:
    assert isinstance(layer, EncoderLayer)
    relative = None if layer.relative is None else by_distance(layer.relative, shape.positions)
    weights = ops.LayerWeights(
        qkv=_arrays(layer.qkv),
        out=_arrays(layer.o),
        inner=_arrays(layer.fi),
        outer=_arrays(layer.fo),
        norm1=_arrays(layer.ln1),
        norm2=_arrays(layer.ln2),
        relative=None if relative is None else relative.detach().numpy(),
    )
    return ops.pack_layer(kind, weights, shape.heads, shape.eps, first_only=last)


def fused_module(module: TenantModule, layers: Sequence[ops.Layer]) -> ops.Module:
    """A copy of a tenant's module in the kernels' layout.

    Raises ValueError if its sizes are not the layers'.
    """
    sites = [site for part in SITES.values() for site in part]
    by_layer: list[dict[str, ops.LowRank | ops.NormChange]] = [
        {site: _change(change) for site in sites if (change := module.at(i, site)) is not None}
        for i in range(len(layers))
    ]
    return ops.pack_module(layers[0], by_layer)


def bytes_of(module: ops.Module) -> int:
    """The bytes that a packed module takes."""
    return module.memory.nbytes


def _change(change: LowRankLayer | NormShift) -> ops.LowRank | ops.NormChange:
    if isinstance(change, NormShift):
        return ops.NormChange(_floats(change.gain), _floats(change.bias))
    down, up = _floats(change.down), _floats(change.up)
    if change.down_bias is None or change.up_bias is None:
        return ops.LowRank(down, up * np.float32(LORA_SCALE))
    biases = _floats(change.down_bias), _floats(change.up_bias)
    return ops.LowRank(down, up, *biases, _ACTIVATIONS[change.activation])


def _floats(tensor: Tensor) -> ops.Floats:
    """The tensor as float32, whatever float type it is stored in."""
    found: ops.Floats = tensor.detach().float().numpy()
    return found


def _arrays(part: nn.Module) -> tuple[ops.Floats, ops.Floats]:
    assert isinstance(part, nn.Linear | nn.LayerNorm), "layers are taken before they are packed otherwise"
    with torch.no_grad():
        return part.weight.float().numpy(), part.bias.float().numpy()
