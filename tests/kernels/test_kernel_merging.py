"""The merging kernel and its torch form equal the slow reference, for any rows, sizes and runs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hmi_kernels.rows.merging import SMALLEST
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.token_adaptation.hook import merged, merged_in_torch


@st.composite
def cases(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor | None, np.ndarray]:
    """Rows of few small whole numbers, so that many are equal and many cosines tie; sizes; runs."""
    runs, at = [], 0
    for _ in range(draw(st.integers(0, 4))):
        at += draw(st.integers(0, 2))
        count = draw(st.integers(0, 9))
        runs.append((at, count, draw(st.integers(0, count // 2))))
        at += count
    rows, dim = at + draw(st.integers(0 if at else 1, 2)), draw(st.sampled_from([1, 3, 17]))
    g = torch.Generator().manual_seed(draw(st.integers(0, 2**16)))
    most = draw(st.sampled_from([1, 2, 9]))
    x = torch.randint(-most, most + 1, (rows, dim), generator=g).float()
    size = torch.randint(1, 5, (rows,), generator=g).float() if draw(st.booleans()) else None
    return x, size, np.array(runs, np.int64).reshape(-1, 3)


def merged_plainly(x: torch.Tensor, size: torch.Tensor | None, runs: np.ndarray) -> tuple[torch.Tensor, ...]:
    """`merged`, slowly and row by row: the reference."""
    sizes = [1.0] * len(x) if size is None else size.tolist()
    goes: dict[int, int] = {}
    for start, count, lose in runs.tolist():
        edges = []
        for a in range(start, start + count, 2):
            likes = [(_alike(x[a], x[b]), -b) for b in range(start + 1, start + count, 2)]
            if likes:
                like, b = max(likes)
                edges.append((-like, a, -b))
        for _, a, b in sorted(edges)[:lose]:
            goes[a] = b
    stay = [row for row in range(len(x)) if row not in goes]
    place = {row: i for i, row in enumerate(stay)}
    out, out_size = [], []
    for row in stay:
        parts = [row, *(a for a, b in sorted(goes.items()) if b == row)]
        total = sum(sizes[part] for part in parts)
        mean = sum((x[part] * sizes[part] for part in parts), torch.zeros_like(x[row])) / total
        out.append(mean if len(parts) > 1 else x[row])
        out_size.append(total)
    into = [place[goes.get(row, row)] for row in range(len(x))]
    return torch.stack(out), torch.tensor(out_size), torch.tensor(into)


def _alike(a: torch.Tensor, b: torch.Tensor) -> float:
    """The cosine of two rows; 0 if one is zero."""
    squares = float(a @ a) * float(b @ b)
    return float(float(a @ b) / np.sqrt(max(squares, SMALLEST)))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_the_kernel_equals_the_reference(case: tuple[torch.Tensor, torch.Tensor | None, np.ndarray]) -> None:
    (x, size, into), (x0, size0, into0) = merged(*case), merged_plainly(*case)
    torch.testing.assert_close(x, x0, atol=1e-5, rtol=1e-5)
    assert size.tolist() == size0.tolist()
    assert into.tolist() == into0.tolist()
    assert size.sum() == (len(case[0]) if case[1] is None else case[1].sum()), "each token stands somewhere"


def test_the_torch_form_equals_the_reference() -> None:
    g = torch.Generator().manual_seed(5)
    x, size = torch.randn(60, 24, generator=g), torch.randint(1, 4, (60,), generator=g).float()
    for runs in ([(1, 17, 8), (19, 6, 0), (26, 1, 0), (28, 30, 15)], [(0, 60, 1)], []):
        about = np.array(runs, np.int64).reshape(-1, 3)
        for given_size in (size, None):
            for got, wanted in zip(
                merged_in_torch(x, given_size, about), merged_plainly(x, given_size, about), strict=True
            ):
                torch.testing.assert_close(got.double(), wanted.double(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_rows_that_are_no_numbers_stay_in_their_run(bad: float) -> None:
    g = torch.Generator().manual_seed(6)
    x = torch.randn(20, 8, generator=g)
    runs = np.array([(1, 8, 4), (10, 8, 4)], np.int64)
    wanted, _, _ = merged(x, None, runs)
    x[3] = bad
    got, size, into = merged(x, None, runs)
    assert torch.equal(got[6:], wanted[6:])
    assert size.sum() == 20
    assert into.min() >= 0
    assert into.max() < len(got)
