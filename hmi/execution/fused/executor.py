"""The upper layers as one call of compiled code each; `hmi.execution.packed` is the reference."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch
from hmi_kernels.encoder import ops
from torch import Tensor, nn

from hmi.execution.base import Hook, Pause, no_pause
from hmi.execution.batch import BatchKey, Left, Rows, offsets_of
from hmi.execution.fused.weights import Precision, fused_layers, fused_module
from hmi.model.modules import TenantModule
from hmi.model.shape import EncoderShape


class FusedExecutor:
    """Compiled layers on the CPU; see `Executor`. What is between the products is float32 in every precision.

    Made from a root's layers as they were trained, which it copies. A text's result is the same bits in every
    batch.
    """

    def __init__(self, upper: nn.ModuleList, shape: EncoderShape, precision: Precision) -> None:
        self.precision: Precision = precision
        self._layers, self._dim = fused_layers(upper, shape, precision), shape.dim
        self._modules: WeakKeyDictionary[TenantModule, ops.Module] = WeakKeyDictionary()
        self._lock, self._thread = threading.Lock(), threading.local()

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def bytes(self) -> int:
        """Of the layers' weights."""
        return sum(layer.bytes for layer in self._layers)

    def fits(self, key: BatchKey) -> bool:
        return key.phase == "encode"

    def space(self, tokens: int) -> Tensor:
        return torch.empty(tokens, self._dim)

    @torch.inference_mode()
    def run(
        self,
        key: BatchKey,
        rows: Rows,
        modules: Sequence[TenantModule | None],
        hooks: Sequence[Hook] = (),
        pause: Pause = no_pause,
    ) -> Iterator[Left]:
        """See `Executor.run`."""
        lengths = [b - a for a, b in rows.spans()]
        last, prepared = len(self._layers) - 1, [self._module(module) for module in modules]
        below = rows.x
        for i, layer in enumerate(self._layers):
            pause()
            for hook in hooks:
                if i not in hook.at:
                    continue
                rows, left = hook(i, rows)
                if left is not None:
                    yield left
                if not rows.texts:
                    return
            below = rows.x
            first_only = i == last and key.reads == "cls"
            x = self._run(layer, i, rows, [prepared[t] for t in rows.texts], first_only)
            if first_only:
                ended = x
            else:
                rows = Rows(x, rows.offsets, rows.texts, rows.source, rows.size)
                ended = rows.by_token(x)
        offsets = rows.offsets if rows.source is None else offsets_of([lengths[t] for t in rows.texts])
        yield Left(rows.texts, ended, rows.by_token(below), offsets, after=last + 1)

    def _run(
        self, layer: ops.Layer, index: int, rows: Rows, modules: Sequence[ops.Module | None], first_only: bool
    ) -> Tensor:
        plus = None if rows.size is None else rows.size.float().log().numpy()
        offsets = np.asarray(rows.offsets, np.int64)
        x = rows.x.contiguous().numpy()
        out = ops.run_layer(layer, index, x, offsets, modules, self._room(), first_only=first_only, plus=plus)
        return torch.from_numpy(out)

    def _module(self, module: TenantModule | None) -> ops.Module | None:
        """The module in the kernels' layout, which lives as long as the module does."""
        if module is None:
            return None
        with self._lock:
            found = self._modules.get(module)
        if found is None:
            found = fused_module(module, len(self._layers), self.precision)
            with self._lock:
                self._modules[module] = found
        return found

    def _room(self) -> ops.Room:
        room: ops.Room | None = getattr(self._thread, "room", None)
        if room is None:
            room = self._thread.room = ops.Room()
        return room
