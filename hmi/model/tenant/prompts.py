"""Prompts: learnt rows that stand after [CLS] before each upper layer (VPT-deep, Jia et al. 2022; OTAS, 3.2).

A model has a set of prompts for each of a few counts, as a tensor `prompts.<count>` [layers, count, dim].
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hmi.errors import Damaged

CURE = "run 'hmi model tokens' again, or roll back"


def copied_prompts(state: Mapping[str, Tensor]) -> dict[int, Tensor]:
    """Copies in fp32 of the sets of prompts, by their count. Raises Damaged if a tensor is no such set."""
    found: dict[int, Tensor] = {}
    for name, tensor in state.items():
        if not name.isdecimal() or tensor.dim() != 3 or int(name) != tensor.shape[1] or not tensor.numel():
            raise Damaged(
                f"the tensor prompts.{name} is {list(tensor.shape)}, and not [layers, {name}, dim]: {CURE}"
            )
        if not (tensor.is_floating_point() and bool(torch.isfinite(tensor).all())):
            raise Damaged(f"the tensor prompts.{name} has values that are no finite numbers: {CURE}")
        found[int(name)] = tensor.to(torch.float32, copy=True)
    return dict(sorted(found.items()))


def check_prompts(prompts: Mapping[int, Tensor], layers: int, dim: int) -> None:
    """Raise Damaged if a set of prompts is not for a root with so many upper layers of this size."""
    for count, tensor in prompts.items():
        if tensor.shape != (layers, count, dim):
            raise Damaged(
                f"the tensor prompts.{count} is {list(tensor.shape)}, but the root has {layers} upper layers "
                f"of {dim} numbers: {CURE}"
            )
