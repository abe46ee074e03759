"""The compiled executor: `hmi_kernels.encoder` behind the interface `Executor`.

Each of the upper layers is one call of compiled code, in float32, bfloat16 or integers;
`hmi.execution.packed` is the reference.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from hmi_kernels.encoder import ops
from torch import Tensor, nn

from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.execution.layers import run_layers
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


def _bytes_of(module: ops.Module) -> int:
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


class FusedExecutor:
    """Compiled layers on the CPU; see `Executor`. All between the products is float32 in every precision.

    The executor copies a root's layers as they were trained. A text's result has the same bits in every
    batch.
    """

    def __init__(self, upper: nn.ModuleList, shape: EncoderShape, precision: Precision) -> None:
        self.precision: Precision = precision
        self._layers, self._dim = fused_layers(upper, shape, precision), shape.dim
        self._thread = threading.local()

    @property
    def layers(self) -> int:
        return len(self._layers)

    def fits(self, key: BatchKey) -> bool:
        return key.phase == "encode"

    def space(self, tokens: int) -> Tensor:
        return torch.empty(tokens, self._dim)

    def prefetch(self, modules: Sequence[TenantModule | None]) -> None:
        """Do nothing: modules are computed from the memory that they lie in."""

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        """See `Executor.run`."""
        step = _FusedStep(
            self._layers, [None if m is None else self._module(m) for m in modules], self._room()
        )
        return run_layers(len(self._layers), key, rows, hooks, step)

    def prepare(self, module: TenantModule) -> int:
        """See `Executor.prepare`: a copy in the kernels' layout."""
        return _bytes_of(self._module(module))

    def _module(self, module: TenantModule) -> ops.Module:
        def make() -> tuple[ops.Module, int]:
            made = fused_module(module, self._layers)
            return made, _bytes_of(made)

        return module.forms.of(self, make)

    def _room(self) -> ops.Room:
        room: ops.Room | None = getattr(self._thread, "room", None)
        if room is None:
            room = self._thread.room = ops.Room()
        return room


class _FusedStep:
    """One batch's `LayerRun`. Nothing stays in the room from one layer to the next."""

    def __init__(
        self, layers: Sequence[ops.Layer], modules: Sequence[ops.Module | None], room: ops.Room
    ) -> None:
        self._layers, self._modules, self._room = layers, modules, room

    def begin(self, rows: Rows) -> None:
        plus = None if rows.size is None else rows.size.float().log().numpy()
        self._texts = ops.Texts(rows.offsets, [self._modules[t] for t in rows.texts], plus)

    def layer(self, index: int, rows: Rows, first_only: bool) -> Tensor:
        layer, texts, x = self._layers[index], self._texts, rows.x.contiguous()
        assert x.dtype == torch.float32
        assert x.shape == (texts.rows, layer.dim)
        out = torch.empty(texts.count if first_only else texts.rows, layer.dim)
        ops.run_layer(layer, index, x.data_ptr(), texts, self._room, out.data_ptr(), first_only=first_only)
        return out
