"""The kernels of tenants' modules equal a slow product in float64, segment by segment."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hmi_kernels.modules import device, ops
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.modules_twin import CpuLauncher

KINDS = {ops.BFLOAT: torch.bfloat16, ops.FLOAT: torch.float32}
CLOSE = {ops.BFLOAT: 2e-2, ops.FLOAT: 2e-5}


@dataclass
class Case:
    """Rows, and for each segment its range and (down, up, down_bias, up_bias, activation)."""

    x: Any
    y: Any
    segments: list[tuple[int, int]]
    changes: list[Any]
    weights: int


def case(
    seed: int, ranks: list[int], lengths: list[int], sizes: tuple[int, int], kinds: tuple[int, int, int]
) -> Case:
    g = torch.Generator().manual_seed(seed)
    weights, of_x, of_y = kinds
    size_in, size_out = sizes
    ends = np.cumsum([0, *lengths]).tolist()
    segments = list(pairwise(ends))[: len(ranks)]
    changes = []
    for i, rank in enumerate(ranks[: len(segments)]):
        biased = bool((seed + i) % 3) and rank > 0
        parts = [torch.randn(rank, size_in, generator=g), torch.randn(size_out, rank, generator=g) * 0.3]
        parts += [torch.randn(rank, generator=g), torch.randn(size_out, generator=g)] if biased else []
        changes.append(([p.to(KINDS[weights]) for p in parts], (seed + i) % 3 if biased else 0))
    # Rows that are a part of wider ones, as q is of q, k and v.
    x = torch.randn(ends[-1], 2 * size_in, generator=g).to(KINDS[of_x])[:, size_in:]
    y = torch.randn(ends[-1], 3 * size_out, generator=g).to(KINDS[of_y])[:, size_out : 2 * size_out]
    return Case(x, y, segments, changes, weights)


def reference(one: Case) -> torch.Tensor:
    y = one.y.double()
    for (a, b), (parts, activation) in zip(one.segments, one.changes, strict=True):
        if not len(parts[0]):
            continue
        down, up, *biases = (p.double() for p in parts)
        h = one.x[a:b].to(KINDS[one.weights]).double() @ down.T + (biases[0] if biases else 0)
        h = [h, h.relu(), torch.nn.functional.silu(h)][activation]
        y[a:b] += h @ up.T + (biases[1] if biases else 0)
    return y


def run(one: Case, launcher: ops.Launcher) -> torch.Tensor:
    """Run the kernels on `one.y`, on the device of its tensors."""
    words = np.zeros((len(one.changes), ops.CHANGE_WORDS), np.int64)
    for row, (parts, activation) in zip(words, one.changes, strict=True):
        if len(parts[0]):
            row[: len(parts)] = [p.data_ptr() for p in parts]
            row[ops.RANK], row[ops.ACTIVATION] = len(parts[0]), activation
    there = one.x.device
    changes = torch.from_numpy(words).to(there)
    pieces = torch.from_numpy(ops.pieces_of(one.segments)).to(there)
    ranks = -(-int(words[:, ops.RANK].max(initial=0)) // ops.EVEN) * ops.EVEN
    scratch = torch.full((len(one.x), max(ranks, 1)), torch.nan, device=there)
    kinds = {dtype: kind for kind, dtype in KINDS.items()}
    x, y = (ops.DeviceMatrix(z.data_ptr(), kinds[z.dtype], z.stride(0), z.shape[1]) for z in (one.x, one.y))
    at = pieces.data_ptr(), len(pieces)
    ops.add(launcher, changes.data_ptr(), at, x, y, one.weights, (scratch.data_ptr(), ranks))
    return one.y


def check(one: Case, launcher: ops.Launcher) -> None:
    wanted, whole = reference(one), one.y._base.clone()
    got, size = run(one, launcher), one.y.shape[1]
    atol = max(CLOSE[ops.FLOAT] * 10, CLOSE[ops.BFLOAT] if one.y.dtype == torch.bfloat16 else 0)
    torch.testing.assert_close(got.double(), wanted, atol=atol, rtol=atol)
    untouched = [*range(size), *range(2 * size, 3 * size)]
    assert torch.equal(one.y._base[:, untouched], whole[:, untouched])


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 1 << 20),
    ranks=st.lists(st.sampled_from([0, 1, 3, 8, 31, 33, 70]), min_size=0, max_size=6),
    lengths=st.lists(st.integers(0, 40), min_size=6, max_size=7),
    sizes=st.tuples(st.sampled_from([1, 32, 40, 65]), st.sampled_from([1, 31, 64, 70])),
    weights=st.sampled_from(sorted(KINDS)),
    x=st.sampled_from(sorted(KINDS)),
    y=st.sampled_from(sorted(KINDS)),
    backwards=st.booleans(),
)
def test_equals_the_slow_product(
    seed: int,
    ranks: list[int],
    lengths: list[int],
    sizes: tuple[int, int],
    weights: int,
    x: int,
    y: int,
    backwards: bool,
) -> None:
    check(case(seed, ranks, lengths, sizes, (weights, x, y)), CpuLauncher(backwards))


@pytest.mark.parametrize("weights", sorted(KINDS))
def test_numbers_of_every_kind_are_read_as_they_are(weights: int) -> None:
    """A product with one 1 returns each number: normal, subnormal, infinite, and NaN."""
    wild = torch.tensor([0.0, -0.0, 1.5, -3e-8, 6e-8, 65504.0, torch.inf, -torch.inf, torch.nan])
    up = wild[:, None].to(KINDS[weights]).contiguous()
    y = torch.zeros(1, 3 * len(wild))[:, len(wild) : 2 * len(wild)]
    one = Case(torch.ones(1, 1), y, [(0, 1)], [([torch.ones(1, 1).to(up.dtype), up], 0)], weights)
    assert torch.equal(run(one, CpuLauncher()).nan_to_num(7), up.float().T.nan_to_num(7))


def test_a_bfloat_is_rounded_to_the_nearest_and_a_nan_stays() -> None:
    g = torch.Generator().manual_seed(0)
    exact = torch.cat([torch.randn(500, generator=g), torch.tensor([torch.nan, torch.inf, 1.00390625])])
    y = torch.zeros(1, len(exact), dtype=torch.bfloat16)
    one = Case(
        torch.ones(1, 1), y, [(0, 1)], [([torch.ones(1, 1), exact[:, None].contiguous()], 0)], ops.FLOAT
    )
    assert torch.equal(run(one, CpuLauncher()).nan_to_num(7), exact[None].bfloat16().nan_to_num(7))


@pytest.mark.parametrize("count", [1, 3, 70])
@pytest.mark.parametrize("backwards", [False, True])
def test_copies_are_whole_and_touch_nothing_else(count: int, backwards: bool) -> None:
    check_copies("cpu", count, CpuLauncher(backwards))


def check_copies(there: str, count: int, launcher: ops.Launcher) -> None:
    """Copy stretches of unlike lengths into memory with a gap after each."""
    lengths = [64 * (i % 5) * (1 + 9 * (i % 3)) for i in range(count)]
    lengths[0] = 4 * (ops.COPY_BLOCKS * 1024 + 300)  # more than all shares of it copy in one go
    g = torch.Generator().manual_seed(count)
    sources = [torch.randn(n, generator=g) for n in lengths]
    sources = [s.pin_memory() for s in sources] if there == "cuda" else sources
    starts = np.cumsum([0, *(n + 4 for n in lengths)]).tolist()
    to = torch.full((starts[-1],), torch.nan, device=there)
    rows = [(s.data_ptr(), to.data_ptr() + 4 * a, s.nbytes) for s, a in zip(sources, starts, strict=False)]
    table = torch.tensor(rows, dtype=torch.int64)
    table = table.pin_memory() if there == "cuda" else table
    ops.copy(launcher, table.data_ptr(), count)
    found = to.cpu()  # both use the default stream, which `cpu` waits for
    for source, a, n in zip(sources, starts, lengths, strict=False):
        assert torch.equal(found[a : a + n], source)
        assert found[a + n : a + n + 4].isnan().all()


ON_DEVICES = [(0, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 1), (1, 0, 1)]
"""Kinds of numbers of weights, x and y."""


def check_on(there: str, kinds: tuple[int, int, int], launcher: ops.Launcher) -> None:
    """Compare on `cuda` or `cpu`."""
    one = case(1, [8, 0, 70, 33], [40, 3, 100, 1, 7], (384, 1536), kinds)
    wanted = reference(one)
    one.x, one.y = one.x.to(there), one.y.to(there)
    one.changes = [([p.to(there) for p in parts], activation) for parts, activation in one.changes]
    if there == "cuda":
        torch.cuda.synchronize()  # cupy's current stream is not torch's
    got = run(one, launcher).cpu()  # both use the default stream, which `cpu` waits for
    torch.testing.assert_close(got.double(), wanted, atol=3e-2, rtol=3e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("kinds", ON_DEVICES)
def test_on_a_device(kinds: tuple[int, int, int]) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    try:
        launcher = device.CupyLauncher()
    except device.NoDevice as error:
        pytest.skip(str(error))
    check_on("cuda", kinds, launcher)
    check_copies("cuda", 70, launcher)
