"""Traffic: the order in which tenants send texts."""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import NDArray

Shape = Literal["uniform", "zipf"]
SHAPES: tuple[Shape, ...] = ("uniform", "zipf")


def tenants_in_turn(shape: Shape, tenants: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return the tenants of `count` texts, int64 [count], of 0 … `tenants` - 1.

    zipf: tenant i sends in proportion to 1 / (i + 1).
    """
    draw = np.random.default_rng(seed)
    if shape == "uniform":
        return draw.integers(0, tenants, count)
    weights = 1.0 / np.arange(1, tenants + 1)
    return draw.choice(tenants, count, p=weights / weights.sum())
