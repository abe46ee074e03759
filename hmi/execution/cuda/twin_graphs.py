"""Graphs on the twin: operations recorded with the very tensors that they read and write.

A capture runs nothing, as on a device: what it computes is rubbish. A replay runs each operation on what its
tensors hold then, with the numbers and shapes that the host had at the capture. Between two replays the
graph's own memory is rubbish, so nothing can live there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from hmi_kernels.modules import ops
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

READ_BY_HOST = ("nonzero", "masked_select", "_unique2", "lift_fresh")
"""The operations that no capture may contain: they make the host wait, or copy from memory that is not
pinned. An operation that returns a number is not permitted either."""
MEMORY = ("empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided")


class Recording(TorchDispatchMode):
    """Records torch's operations on this thread while the context lasts."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.steps: list[Callable[[], object]] = []
        self.owned: list[Tensor] = []
        """The graph's own memory."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        name, schema, kwargs = func.overloadpacket.__name__, func._schema, kwargs or {}
        numbers = [result for result in schema.returns if "Tensor" not in str(result.type)]
        if name in READ_BY_HOST or numbers:
            raise RuntimeError(f"operation not permitted when stream is capturing: {name}")
        if schema.is_mutable:
            self.steps.append(partial(func, *args, **kwargs))
            given = dict(zip((a.name for a in schema.arguments), args, strict=False)) | kwargs
            (changed,) = [given[a.name] for a in schema.arguments if a.alias_info and a.alias_info.is_write]
            return changed
        if any(result.alias_info is not None for result in schema.returns):
            made = func(*args, **kwargs)  # a view, which reads nothing; or a copy
            if _storages(made) <= _storages((args, kwargs)):
                return made
        else:
            made = func(*tree_map(_harmless, tuple(args)), **tree_map(_harmless, kwargs))
        mine = [t for t in tree_leaves(made) if isinstance(t, Tensor)]
        for tensor in mine:
            spoil(tensor)
        self.owned += mine
        if name not in MEMORY:
            self.steps.append(partial(_again, func, args, kwargs, mine))
        return made


class Recorded:
    """An `ops.Launcher` that a twin's captures record."""

    def __init__(self, launcher: ops.Launcher, recording: Callable[[], Recording | None]) -> None:
        self._launcher, self._recording = launcher, recording

    def launch(self, kernel: str, blocks: int, arguments: tuple[int, ...], stream: int | None) -> None:
        launch, recording = (
            partial(self._launcher.launch, kernel, blocks, arguments, stream),
            self._recording(),
        )
        if recording is None:
            launch()
        else:
            recording.steps.append(launch)


def spoil(tensor: Tensor) -> None:
    """Fill memory with what nobody may read."""
    if tensor.dtype == torch.bool:
        tensor.fill_(True)
    else:
        tensor.fill_(torch.nan if tensor.is_floating_point() else 0x7F)


def _again(func: Any, args: Sequence[Any], kwargs: dict[str, Any], to: Sequence[Tensor]) -> None:
    made = [t for t in tree_leaves(func(*args, **kwargs)) if isinstance(t, Tensor)]
    for there, new in zip(to, made, strict=True):
        there.copy_(new)


def _harmless(value: Any) -> Any:
    """The same, but with indexes that are inside of whatever they point into: a capture's are rubbish."""
    whole = isinstance(value, Tensor) and not value.is_floating_point() and value.dtype != torch.bool
    return torch.zeros_like(value) if whole else value


def _storages(values: Any) -> set[int]:
    return {t.untyped_storage().data_ptr() for t in tree_leaves(values) if isinstance(t, Tensor)}
