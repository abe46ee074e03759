"""`bench path --modules`: what tenants' modules cost; the layers beside a matrix product."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from hmi_kernels.encoder import ops
from torch import Tensor

from bench.cases.path.run import Bench, Modules, tenants_of
from bench.harness.report import Row, seconds
from hmi.core import ModuleSpec
from hmi.execution.base import Executor
from hmi.execution.fused.weights import fused_layers
from hmi.execution.packed import run_classified, run_rows
from hmi.execution.precision import Precision, available
from hmi.model.encoder import EncoderLayer
from hmi.model.prepacked import PackedLinear
from hmi.modulespec import Kind

TENANTS = 64
KINDS: tuple[Kind, ...] = ("lora", "sequential")
CASES: tuple[tuple[str, int | None], ...] = (("128_tokens", 128), ("real_lengths", None), ("14_tokens", 14))
"""(name, tokens of a text). None: lengths as in sentences of scientific prose, 56 on average."""
GOAL = 1.05
"""The most that a batch of 64 texts may cost with a module of its own for each text, over none."""
GOAL_RATE = 0.7
"""The least share of the machine's matrix product that the layers reach."""
TEXTS, LENGTH = 16, 128
"""The batch that the layers' rate is measured with."""
ROWS, TILE_ROWS = 2048, 128
"""Rows of torch's product, and of one product of the kernels, which fit the second-level cache as a layer's
blocks do."""


def run(b: Bench, _folder: Path, runs: int, report: Callable[[str], None]) -> Iterator[Row]:
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


def _costs(b: Bench, precision: Precision, kind: Kind, runs: int) -> Iterator[Row]:
    tenants, executor = tenants_of(b, TENANTS, ModuleSpec(kind=kind)), b.executors[precision]
    draw = np.random.default_rng(1)
    for case, length in CASES:
        lengths = [length or int(np.clip(draw.lognormal(3.9, 0.45), 8, 128)) for _ in tenants]
        offsets = [0, *accumulate(lengths)]
        x = torch.randn(offsets[-1], b.root.dim, generator=torch.Generator().manual_seed(0))
        arms: dict[str, Modules] = {"no": [None] * TENANTS, "1": tenants[:1] * TENANTS, "64": tenants}
        works = {name: _classified(executor, x, offsets, modules) for name, modules in arms.items()}
        times = _in_turn(works, runs)
        for name in ("1", "64"):
            ratio = statistics.median(a / c for a, c in zip(times[name], times["no"], strict=True))
            goal = GOAL if name == "64" else None
            row = f"{kind}_{precision}_{name}_tenants_over_none_{case}"
            yield Row(row, round(ratio, 3), "x", goal, False, runs, "no module")


def _classified(executor: Executor, x: Tensor, offsets: list[int], modules: Modules) -> Callable[[], object]:
    return lambda: run_classified(executor, x, offsets, modules)


def _rates(b: Bench, precision: Precision, runs: int) -> Iterator[Row]:
    shape, layers, executor = b.root.info.shape, len(b.root.upper), b.executors[precision]
    offsets = [LENGTH * i for i in range(TEXTS + 1)]
    x = torch.randn(offsets[-1], shape.dim, generator=torch.Generator().manual_seed(0))
    by_row = 4 * shape.dim**2 + 2 * shape.dim * shape.ffn + 2 * LENGTH * shape.dim
    work = {"layers": 2 * layers * len(x) * by_row}
    works: dict[str, Callable[[], object]] = {
        "layers": lambda: run_rows(executor, x, offsets, [None] * TEXTS),
        "tile": _tiles(fused_layers(_upper(b), shape, precision)[0]),
        **_torch_products(precision, shape.dim, shape.ffn),
    }
    for name in works:
        work.setdefault(name, 2 * ROWS * shape.dim * shape.ffn)
    times = _in_turn(works, runs)
    rates = {name: [work[name] / t / 1e9 for t in took] for name, took in times.items()}
    peak = {name: statistics.median(values) for name, values in rates.items() if name != "layers"}
    best = max(peak, key=peak.__getitem__)
    share = statistics.median(a / c for a, c in zip(rates["layers"], rates[best], strict=True))
    for name in ("layers", *peak):
        yield Row(f"{precision}_{name}", round(statistics.median(rates[name])), "GFLOP/s", runs=runs)
    yield Row(f"{precision}_layers_over_best_product", round(share, 3), "x", GOAL_RATE, True, runs, best)


def _tiles(layer: ops.Layer) -> Callable[[], object]:
    """Return the kernels' product of ROWS rows in all."""
    one = ops.product(layer, TILE_ROWS)
    return lambda: [one() for _ in range(ROWS // TILE_ROWS)]


def _upper(b: Bench) -> torch.nn.ModuleList:
    """One layer of the root's shape: executors prepare the root's own in place."""
    return torch.nn.ModuleList([EncoderLayer(b.root.info.shape)]).requires_grad_(False)


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


def _in_turn(works: dict[str, Callable[[], object]], runs: int) -> dict[str, list[float]]:
    """Return the CPU seconds of each of `runs` turns, in which all run in a drawn order."""
    draw, names = np.random.default_rng(3), list(works)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(runs + 1):
        for i in draw.permutation(len(names)):
            took = seconds(works[names[i]])
            if turn:  # the first turn warms up
                times[names[i]].append(took)
    return times
