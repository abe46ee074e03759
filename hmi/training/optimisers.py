"""The state of an optimiser as a flat mapping of tensors, for checkpoints."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


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
