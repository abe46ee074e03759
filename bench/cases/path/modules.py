"""`bench path --modules`: what tenants' modules cost; the layers beside a matrix product."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from hmi_kernels.encoder import ops
from torch import Tensor

from bench.cases.path.run import Modules, PathBench, tenants_of
from bench.harness.home import real_length
from bench.harness.report import Figure, in_turn, median_ratio, seconds
from hmi.core import ModuleSpec
from hmi.execution.fused import fused_layers
from hmi.execution.packed import run_classified, run_rows
from hmi.execution.precision import Precision, available
from hmi.model.network.encoder import EncoderLayer
from hmi.model.network.prepacked import PackedLinear
from hmi.modulespec import Kind

TENANTS = 64
KINDS: tuple[Kind, ...] = ("lora", "sequential")
CASES: tuple[tuple[str, int | None], ...] = (("128_tokens", 128), ("real_lengths", None), ("14_tokens", 14))
"""(name, tokens of a text). None: drawn by `real_length`."""
GOAL = 1.05
"""The most that a batch of 64 texts may cost with a module of its own for each text, over none."""
GOAL_RATE = 0.7
"""The least share of the machine's matrix product that the layers reach."""
TEXTS, LENGTH = 16, 128
"""The batch that the layers' rate is measured with."""
ROWS, TILE_ROWS = 2048, 128
"""Rows of torch's product, and of one product of the kernels, which fit the second-level cache as a layer's
blocks do."""


def measure(b: PathBench, _folder: Path, runs: int, report: Callable[[str], None]) -> Iterator[Figure]:
    """Yield the cost of modules over none, and the layers' share of the best product, by precision.

    The arms of a row run in turn. Each figure is the median of the turns' ratios of CPU time.
    """
    for precision in available():
        for kind in KINDS:
            report(f"modules of {TENANTS} tenants: {kind}, {precision}")
            yield from _costs(b, precision, kind, runs)
    for precision in available():
        report(f"the layers beside a matrix product: {precision}")
        yield from _rates(b, precision, runs)


def _costs(b: PathBench, precision: Precision, kind: Kind, runs: int) -> Iterator[Figure]:
    tenants, executor = tenants_of(b, TENANTS, ModuleSpec(kind=kind)), b.executors[precision]
    draw = np.random.default_rng(1)
    for case, length in CASES:
        lengths = [length or real_length(draw) for _ in tenants]
        offsets = [0, *accumulate(lengths)]
        x = torch.randn(offsets[-1], b.root.dim, generator=torch.Generator().manual_seed(0))
        arms: dict[str, Modules] = {"no": [None] * TENANTS, "1": tenants[:1] * TENANTS, "64": tenants}
        works = {
            name: partial(seconds, partial(run_classified, executor, x, offsets, modules))
            for name, modules in arms.items()
        }
        times = in_turn(works, runs)
        for name in ("1", "64"):
            goal = GOAL if name == "64" else None
            row = f"{kind}_{precision}_{name}_tenants_over_none_{case}"
            yield Figure(row, median_ratio(times, name, "no"), "x", goal, False, runs, "no module")


def _rates(b: PathBench, precision: Precision, runs: int) -> Iterator[Figure]:
    shape, layers, executor = b.root.info.shape, len(b.root.upper), b.executors[precision]
    offsets = [LENGTH * i for i in range(TEXTS + 1)]
    x = torch.randn(offsets[-1], shape.dim, generator=torch.Generator().manual_seed(0))
    by_row = 4 * shape.dim**2 + 2 * shape.dim * shape.ffn + 2 * LENGTH * shape.dim
    work = {"layers": 2 * layers * len(x) * by_row}
    # A layer of the root's shape: executors prepare the root's own in place.
    layer = torch.nn.ModuleList([EncoderLayer(shape)]).requires_grad_(False)
    tile = ops.product(fused_layers(layer, shape, precision)[0], TILE_ROWS)
    works: dict[str, Callable[[], object]] = {
        "layers": lambda: run_rows(executor, x, offsets, [None] * TEXTS),
        "tile": lambda: [tile() for _ in range(ROWS // TILE_ROWS)],
        **_torch_products(precision, shape.dim, shape.ffn),
    }
    for name in works:
        work.setdefault(name, 2 * ROWS * shape.dim * shape.ffn)
    times = in_turn({name: partial(seconds, product) for name, product in works.items()}, runs)
    rates = {name: [work[name] / t / 1e9 for t in took] for name, took in times.items()}
    peak = {name: statistics.median(values) for name, values in rates.items()}
    for name, value in peak.items():
        yield Figure(f"{precision}_{name}", round(value), "GFLOP/s", runs=runs)
    best = max(set(peak) - {"layers"}, key=peak.__getitem__)
    share = median_ratio(rates, "layers", best)
    yield Figure(f"{precision}_layers_over_best_product", share, "x", GOAL_RATE, True, runs, best)


def _torch_products(precision: Precision, size_in: int, size_out: int) -> dict[str, Callable[[], Tensor]]:
    """Return torch's products of the same size, by name: oneDNN on this machine, unless torch is without."""
    if precision == "int8":
        a, w = torch.ones(ROWS, size_in, dtype=torch.int8), torch.ones(size_out, size_in, dtype=torch.int8)
        return {"torch": lambda: torch._int_mm(a, w.t())}
    kind = torch.bfloat16 if precision == "bf16" else torch.float32
    x, weight, bias = torch.randn(ROWS, size_in), torch.randn(size_out, size_in), torch.zeros(size_out)
    x, weight, bias = x.to(kind), weight.to(kind), bias.to(kind)
    found: dict[str, Callable[[], Tensor]] = {"torch": lambda: F.linear(x, weight)}
    if torch.backends.mkldnn.is_available():
        reordered = PackedLinear(weight, bias)
        found["torch_reordered"] = lambda: reordered(x)
    return found
