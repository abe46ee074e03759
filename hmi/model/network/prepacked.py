"""Linear maps for serving on weights that oneDNN has reordered, where that is faster on this machine.

On a core with AVX-512, torch's own product runs at about 100 GFLOP/s and oneDNN's on reordered weights at
220. With AVX2 only, torch's is faster. So each process measures both once for each shape and uses the
faster one.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

log = logging.getLogger("hmi.model")
TRIAL_ROWS = 64
"""The rows of the product that is timed."""
TRIALS = 5
"""The best time of this many trials counts."""
MIN_SPEEDUP = 1.05
"""Reordered weights are used if they are more than this many times as fast."""
_STEPS = ((32, 4), (128, 16), (512, 64), (1024, 128), (4096, 256))
"""(most rows, step): `padded` rounds up to a multiple of the step."""
_LAST_STEP = 1024
"""The step for more rows than `_STEPS` has."""
_speedups: dict[tuple[int, int], float] = {}
_lock = threading.Lock()


class PackedLinear(nn.Module):
    """A linear map on reordered weights: x [rows, in] -> [rows, out]. A row's result is the same
    whatever other rows are in x."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        # 2048 rows: only a hint for the layout.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 2048)
        self._bias = bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class Projection(nn.Module):
    """A function that computes q, k and v of a layer: (x [..., dim], xq or None) -> three of [..., dim].

    If `xq` is given, q is computed from it and k and v from x.
    """


class PackedProjection(Projection):
    """q, k and v of a layer, with q apart, since a last layer may need it for a few rows only."""

    def __init__(self, qkv: nn.Linear, dim: int) -> None:
        super().__init__()
        self.q = PackedLinear(qkv.weight[:dim], qkv.bias[:dim])
        self.kv = PackedLinear(qkv.weight[dim:], qkv.bias[dim:])
        self._dim = dim

    def forward(self, x: Tensor, xq: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        k, v = self.kv(x).split(self._dim, dim=-1)
        return self.q(x if xq is None else xq), k, v


def padded(rows: int) -> int:
    """Round the number of rows of a product up, so that few different numbers occur.

    For each number of rows, oneDNN generates code and keeps 0.6 MB of it.
    """
    step = next((step for most, step in _STEPS if rows <= most), _LAST_STEP)
    return -(-rows // step) * step


def speedup(out_size: int, in_size: int) -> float:
    """How many times as fast the reordered product is on this machine; 0 if it is not available.

    Each process measures it once for each shape.
    """
    with _lock:
        if (out_size, in_size) not in _speedups:
            _speedups[out_size, in_size] = _measure_speedup(out_size, in_size)
        return _speedups[out_size, in_size]


@torch.no_grad()
def _measure_speedup(out_size: int, in_size: int) -> float:
    g = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(out_size, in_size, generator=g), torch.randn(out_size, generator=g)
    x = torch.randn(TRIAL_ROWS, in_size, generator=g)
    try:
        packed = PackedLinear(weight, bias)
        close = torch.allclose(packed(x), F.linear(x, weight, bias), atol=1e-3, rtol=1e-3)
    except (AttributeError, RuntimeError) as error:
        log.info("no reordered linear maps in this build of torch: %s", str(error).partition("\n")[0])
        return 0.0
    if not close:
        return 0.0
    plain, ours = float("inf"), float("inf")
    for _ in range(TRIALS):
        plain = min(plain, _seconds(lambda: F.linear(x, weight, bias)))
        ours = min(ours, _seconds(lambda: packed(x)))
    return plain / ours


def _seconds(work: Any) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def packs(linear: nn.Linear) -> bool:
    """Return whether `linear` is faster on this machine with reordered weights."""
    return speedup(linear.out_features, linear.in_features) > MIN_SPEEDUP


def described() -> str:
    """The speed-ups measured so far, for a log line."""
    with _lock:
        return ", ".join(f"{o}x{i} {ratio:.2f}x" for (o, i), ratio in sorted(_speedups.items()))
