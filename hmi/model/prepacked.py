"""Linear maps of the serving path on weights reordered by oneDNN, if this machine is faster with them.

On a core with AVX-512, torch's own product runs at some 100 GFLOP/s and oneDNN's on reordered weights at 220;
on AVX2 torch's is the faster. So each process measures both once for each shape and keeps the faster.
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
TRIALS = 5
WORTH = 1.05
"""Reordered weights are taken where they are faster than this many times."""
_STEPS = ((32, 4), (128, 16), (512, 64), (1024, 128), (4096, 256))
_LAST_STEP = 1024
_speedups: dict[tuple[int, int], float] = {}
_lock = threading.Lock()


class PackedLinear(nn.Module):
    """A linear map on reordered weights; x [rows, in] -> [rows, out]. A row's result does not depend on the
    others."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        super().__init__()
        # The number of rows is a hint for the layout only.
        self._weight = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 2048)
        self._bias = bias.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y


class PackedProjection(nn.Module):
    """q, k and v of a layer, q apart: a last layer may need it of a few rows only."""

    def __init__(self, qkv: nn.Linear, dim: int) -> None:
        super().__init__()
        self.q = PackedLinear(qkv.weight[:dim], qkv.bias[:dim])
        self.kv = PackedLinear(qkv.weight[dim:], qkv.bias[dim:])


def padded(rows: int) -> int:
    """The number of rows to compute for so many: oneDNN keeps code of .6 MB for each number that it has
    met."""
    step = next((step for most, step in _STEPS if rows <= most), _LAST_STEP)
    return -(-rows // step) * step


def speedup(out_size: int, in_size: int) -> float:
    """The speed-up of the reordered product on this machine, measured once in a process; 0 if it is not
    available."""
    with _lock:
        if (out_size, in_size) not in _speedups:
            _speedups[out_size, in_size] = _measured(out_size, in_size)
        return _speedups[out_size, in_size]


@torch.no_grad()
def _measured(out_size: int, in_size: int) -> float:
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
    """Whether this machine is faster with the map's weights reordered."""
    return speedup(linear.out_features, linear.in_features) > WORTH


def described() -> str:
    """The measurements, for a log line."""
    with _lock:
        return ", ".join(f"{o}x{i} {ratio:.2f}x" for (o, i), ratio in sorted(_speedups.items()))
