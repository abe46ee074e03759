"""The upper layers as one call of compiled code each; `hmi.execution.packed` is the reference."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import torch
from hmi_kernels.encoder import ops
from torch import Tensor, nn

from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.execution.fused.weights import bytes_of, fused_layers, fused_module
from hmi.execution.layers import run_layers
from hmi.execution.precision import Precision
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule


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
        return bytes_of(self._module(module))

    def _module(self, module: TenantModule) -> ops.Module:
        def make() -> tuple[ops.Module, int]:
            made = fused_module(module, self._layers)
            return made, bytes_of(made)

        return module.forms.of(self, make)

    def _room(self) -> ops.Room:
        room: ops.Room | None = getattr(self._thread, "room", None)
        if room is None:
            room = self._thread.room = ops.Room()
        return room


class _FusedStep:
    """One batch's `Step`. Nothing stays in the room from one layer to the next."""

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
