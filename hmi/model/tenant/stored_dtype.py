"""The stored form of a published artefact: all of it in fp16, or its module in int8.

In int8, each direction of a low-rank matrix (a row of `down` [rank, in], a column of `up` [out, rank]) has a
scale of its own, stored in fp32 beside it as `<name>.scale`. Vectors, the head and everything else stay in
fp16. `fp16_of` is the inverse up to the rounding, which the training's own scores include.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

StoredDtype = Literal["fp16", "int8"]
SCALE = ".scale"
_SIDES = {".down": 1, ".up": 0}
"""The dimension along which the numbers of one direction stand."""


def int8_of(module: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A module's tensors with its matrices in int8, each with its scales."""
    import torch

    out: dict[str, Tensor] = {}
    for name, value in module.items():
        along = next((dim for end, dim in _SIDES.items() if name.endswith(end)), None)
        if along is None:
            out[name] = value
            continue
        full = value.float()
        scale = full.abs().amax(along, keepdim=True).clamp(min=1e-12) / 127
        out[name] = (full / scale).round().to(torch.int8)
        out[name + SCALE] = scale
    return out


def fp16_of(module: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A module's tensors as stored by `int8_of`, in fp16. Tensors without a scale are passed on as they are.

    Raises ValueError if a scale does not fit its tensor.
    """
    out: dict[str, Tensor] = {}
    for name, value in module.items():
        if name.endswith(SCALE):
            continue
        scale = module.get(name + SCALE)
        if scale is None:
            out[name] = value
        elif scale.dim() != value.dim():
            raise ValueError(f"the scale of {name} is {list(scale.shape)}, the tensor {list(value.shape)}")
        else:
            out[name] = (value.float() * scale).half()
    return out
