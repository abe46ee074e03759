"""What the engine reads from packed rows is what training reads from padded ones."""

from __future__ import annotations

from itertools import accumulate, pairwise

import pytest
import torch
from torch import Tensor

from hmi.model.sources.lower import InputBias
from hmi.model.sources.root import Root
from hmi.model.tenant.heads import Head, Reads, head_input_size, pool_rows, pool_text

LENGTHS = (7, 1, 40, 3)
DIM = 48


def padded(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Packed rows -> [texts, longest, dim] and the mask of tokens."""
    parts = rows.split(list(LENGTHS))
    mask = torch.arange(max(LENGTHS))[None] < torch.tensor(LENGTHS)[:, None]
    return torch.nn.utils.rnn.pad_sequence(list(parts), batch_first=True, padding_value=9.0), mask


@pytest.mark.parametrize(("queries", "labels"), [(4, 3), (1, 1), (0, 50)])
def test_a_head_of_packed_texts_is_that_of_padded_ones(queries: int, labels: int) -> None:
    g = torch.Generator().manual_seed(queries)
    head = Head(head_input_size("classification", DIM), labels, queries=queries, dim=DIM).eval()
    before = torch.randn(sum(LENGTHS), DIM, generator=g)
    first, offsets = torch.randn(len(LENGTHS), DIM, generator=g), [*accumulate(LENGTHS, initial=0)]
    with torch.no_grad():
        for scale in (1.0, 60.0):  # with the second, queries look at one row almost alone
            if head.query is not None:
                head.query.mul_(scale)
            x, mask = padded(before)
            read = pool_rows("cls", first[:, None], x, torch.zeros_like(mask, dtype=torch.int64), mask)
            got = head.of_packed(first, before, offsets)
            torch.testing.assert_close(got, head(head.with_attended(read, x, mask)), rtol=1e-5, atol=1e-6)
            alone = [
                head.of_packed(first[i : i + 1], before[a:b], [0, b - a])
                for i, (a, b) in enumerate(pairwise(offsets))
            ]
            assert torch.equal(torch.cat(alone), got)


def test_a_head_refuses_rows_of_another_size() -> None:
    for head in (Head(2 * DIM, 2), Head(2 * DIM, 2, queries=1, dim=DIM)):
        row = torch.zeros(1, DIM + 16)
        with pytest.raises(RuntimeError, match="the rows have 64"):
            head.of_packed(row, row, [0, 1])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_head_passes_on_what_is_no_number(value: float) -> None:
    head = Head(2 * DIM, 2).eval()
    before = torch.zeros(5, DIM)
    before[4, 3] = value
    with torch.no_grad():
        got = head.of_packed(before[[0, 1]], before, [0, 2, 5])
    assert torch.isfinite(got[0]).all()
    assert not torch.isfinite(got[1]).any()


@pytest.mark.parametrize("reads", ["compare", "mean", "first"])
@pytest.mark.parametrize("second", [1, 4, 9])
def test_one_text_is_pooled_as_in_a_batch(reads: Reads, second: int) -> None:
    """With `second` 1 the first text has no token, with 9 there is no second text."""
    rows = torch.randn(9, DIM, generator=torch.Generator().manual_seed(1))
    types = [int(i >= second) for i in range(len(rows))]
    mask = torch.ones(1, len(rows), dtype=torch.bool)
    wanted = pool_rows(reads, rows[None], rows[None], torch.tensor([types]), mask)[0]
    torch.testing.assert_close(pool_text(reads, rows, types), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("split", [2, 0])
def test_the_bias_of_packed_rows_has_the_same_bits(tiny_root: Root, split: int) -> None:
    shape = tiny_root.info.shape
    bias, g = InputBias(shape, split), torch.Generator().manual_seed(2)
    lengths = [min(n, shape.positions) for n in LENGTHS]
    types = [[int(i > n // 2) for i in range(n)] for n in lengths]
    rows = torch.randn(sum(lengths), shape.dim, generator=g)
    with torch.no_grad():
        bias.position.copy_(torch.randn(bias.position.shape, generator=g))
        bias.token_type.copy_(torch.randn(bias.token_type.shape, generator=g))
        at = torch.cat([torch.arange(n) for n in lengths])
        wanted = bias(rows, at, torch.tensor([t for each in types for t in each]))
        bias.add_packed(rows, types)
    assert torch.equal(rows, wanted)
