"""Torch's optimisers without the seconds that they take to start, and their state for checkpoints.

Methods of `torch.optim.Optimizer` are wrapped so that torch's compiler leaves them alone; the first call of
one imports that compiler. Nothing is compiled here, so these classes have the methods without the wrapper.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import unwrap

import torch
from torch import Tensor
from torch.optim import Optimizer


class _Plain(Optimizer):
    """The wrapped methods of an optimiser, without their wrappers."""

    add_param_group = unwrap(Optimizer.add_param_group)
    zero_grad = unwrap(Optimizer.zero_grad)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


class AdamW(_Plain, torch.optim.AdamW):
    """`torch.optim.AdamW`."""

    step = torch.no_grad()(unwrap(torch.optim.AdamW.step))


class LBFGS(_Plain, torch.optim.LBFGS):
    """`torch.optim.LBFGS`."""


def optimiser_tensors(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The moments and step counts as `optimiser.<number of the parameter>.<name>`."""
    states = optimiser.state_dict()["state"]
    return {f"optimiser.{i}.{k}": v for i, s in states.items() for k, v in s.items()}


def load_optimiser(optimiser: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Load copies of what `optimiser_tensors` gave. Tensors of other names are ignored."""
    current = optimiser.state_dict()
    for key, value in tensors.items():
        if key.startswith("optimiser."):
            _, index, name = key.split(".", 2)
            current["state"].setdefault(int(index), {})[name] = value.clone()
    optimiser.load_state_dict(current)
