"""Torch's optimisers without the seconds that they take to start, their state for checkpoints, and the
linear map that one of them finds.

Methods of `torch.optim.Optimizer` are wrapped so that torch's compiler leaves them alone; the first call of
one imports that compiler. Nothing is compiled here, so these classes have the methods without the wrapper.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class LinearFit:
    """A linear map of features, and the penalty that it was fitted with. Half of it, times the sum of the
    squared weights, was added to the loss."""

    weight: Tensor
    bias: Tensor
    penalty: float

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


def minimised(
    loss: Callable[[Tensor], Tensor], x: Tensor, start: LinearFit, steps: int, change: float = 1e-9
) -> LinearFit:
    """Return the map with the least loss and penalty, by at most so many steps of L-BFGS from `start`.

    loss: outputs [rows, outputs] -> a scalar. change: a step that changes less is the last one.
    """
    weight, bias = (t.clone().requires_grad_(True) for t in (start.weight, start.bias))
    optimiser = LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe", tolerance_change=change)

    def step() -> Tensor:
        optimiser.zero_grad()
        value = loss(x @ weight.T + bias) + start.penalty / 2 * weight.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        optimiser.step(step)  # type: ignore[no-untyped-call]
    return LinearFit(weight.detach(), bias.detach(), start.penalty)


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
