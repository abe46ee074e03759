"""The upper layers on a device: products in the executor's dtype, residuals and LayerNorms in fp32."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.execution.cuda.device import Device
from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.relative import by_distance
from hmi.model.network.shape import EncoderShape


class Linear(nn.Module):
    """x [..., in] of any float type -> [..., out] in the weights' dtype."""

    def __init__(self, linear: nn.Module, dtype: torch.dtype, device: Device) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear), "layers are taken before they are packed otherwise"
        self.weight = device.put(linear.weight.detach().to(dtype))
        self.bias = device.put(linear.bias.detach().to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class DeviceLayer(EncoderLayer):
    """A copy of a root's layer on a device. `relative` is by distance: [heads, 2 · positions - 1]."""

    def __init__(self, layer: nn.Module, shape: EncoderShape, dtype: torch.dtype, device: Device) -> None:
        nn.Module.__init__(self)
        assert isinstance(layer, EncoderLayer)
        self.dim = layer.dim
        self.qkv, self.o = Linear(layer.qkv, dtype, device), Linear(layer.o, dtype, device)
        self.fi, self.fo = Linear(layer.fi, dtype, device), Linear(layer.fo, dtype, device)
        self.ln1, self.ln2 = _norm(layer.ln1, device), _norm(layer.ln2, device)
        self.relative = None
        if layer.relative is not None:
            table = by_distance(layer.relative.detach(), shape.positions).to(dtype).contiguous()
            self.relative = nn.Parameter(device.put(table), requires_grad=False)

    def project(self, x: Tensor, xq: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        qkv, d = self.qkv, self.dim
        assert isinstance(qkv, Linear)
        if xq is None:
            q, k, v = qkv(x).split(d, dim=-1)
            return q, k, v
        w, b = qkv.weight, qkv.bias
        k, v = F.linear(x.to(w.dtype), w[d:], b[d:]).split(d, dim=-1)
        return F.linear(xq.to(w.dtype), w[:d], b[:d]), k, v


def _norm(norm: nn.LayerNorm, device: Device) -> nn.LayerNorm:
    made = nn.LayerNorm(norm.normalized_shape, eps=norm.eps, device="meta")
    made.weight = nn.Parameter(device.put(norm.weight.detach().float()), requires_grad=False)
    made.bias = nn.Parameter(device.put(norm.bias.detach().float()), requires_grad=False)
    return made
