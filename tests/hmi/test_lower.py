"""Section 1 of the brief: what a PLOT entry is, how entries add up to a text, and what depends on what."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.model.batching import pad_ids
from hmi.model.lower import POSITION_BASE, Cover, LocalLower, windows_of
from hmi.model.root import Root


@pytest.fixture
def lower(tiny_root: Root) -> LocalLower:
    assert tiny_root.lower is not None
    return tiny_root.lower


def slow_entry(lower: LocalLower, trigram: list[int]) -> Tensor:
    """One trigram in fp64, head by head and row by row, with nothing batched: the oracle."""
    e, heads = lower.embeddings, lower.shape.heads
    at = [i for i in range(3) if trigram[i] > 0]

    def position(i: int) -> int:
        return 0 if trigram[i] == lower.cls_id else POSITION_BASE + i

    rows = [
        e.word.weight[trigram[i]].double() + e.position.weight[position(i)].double() + e.token_type.weight[0].double()
        for i in at
    ]
    x = F.layer_norm(torch.stack(rows), (lower.shape.dim,), e.ln.weight.double(), e.ln.bias.double(), lower.shape.eps)
    for index, layer in enumerate(lower.layers):
        w = {k: v.double() for k, v in layer.state_dict().items()}
        q, k, v = (x @ w["qkv.weight"].T + w["qkv.bias"]).chunk(3, dim=-1)
        k = torch.cat([k, lower.slot_keys[index].double()])
        v = torch.cat([v, lower.slot_values[index].double()])
        context = torch.zeros_like(q)
        size = lower.shape.dim // heads
        for h in range(heads):
            s = slice(h * size, (h + 1) * size)
            p = torch.softmax(q[:, s] @ k[:, s].T / math.sqrt(size), -1)
            context[:, s] = p @ v[:, s]
        a = context @ w["o.weight"].T + w["o.bias"]
        y = F.layer_norm(a + x, (lower.shape.dim,), w["ln1.weight"], w["ln1.bias"], lower.shape.eps)
        f = F.gelu(y @ w["fi.weight"].T + w["fi.bias"]) @ w["fo.weight"].T + w["fo.bias"]
        x = F.layer_norm(f + y, (lower.shape.dim,), w["ln2.weight"], w["ln2.bias"], lower.shape.eps)
    out = torch.zeros(3, lower.shape.dim, dtype=torch.float64)
    for row, i in enumerate(at):
        out[i] = x[row] @ lower.fold[i].double()
    return out


@pytest.mark.parametrize("trigram", [[7, 8, 9], [0, 2, 7], [2, 7, 8], [8, 3, 0], [0, 9, 0], [9, 0, 0], [0, 0, 9]])
def test_an_entry_is_the_lower_layers_on_that_trigram_alone(lower: LocalLower, trigram: list[int]) -> None:
    got = lower.entries(torch.tensor([trigram]))[0]
    torch.testing.assert_close(got.double(), slow_entry(lower, trigram), atol=1e-5, rtol=1e-4)


def test_bigram_and_unigram_entries_are_trigrams_with_missing_neighbours(lower: LocalLower) -> None:
    bigram = lower.bigram_entries(torch.tensor([[7, 8]]))[0]
    left, right = slow_entry(lower, [7, 8, 0]), slow_entry(lower, [0, 7, 8])
    torch.testing.assert_close(bigram.double(), torch.stack([left[0], left[1], right[1], right[2]]), atol=1e-5, rtol=0)
    unigram = lower.unigram_entries(torch.tensor([7]))[0]
    want = [slow_entry(lower, [7, 0, 0])[0], slow_entry(lower, [0, 7, 0])[1], slow_entry(lower, [0, 0, 7])[2]]
    torch.testing.assert_close(unigram.double(), torch.stack(want), atol=1e-5, rtol=0)


def test_a_three_token_text_sums_three_trigrams(lower: LocalLower) -> None:
    a, b, c = 7, 8, 9
    got = lower(torch.tensor([[a, b, c]]))[0].double()
    first, middle, last = slow_entry(lower, [0, a, b]), slow_entry(lower, [a, b, c]), slow_entry(lower, [b, c, 0])
    torch.testing.assert_close(got[1], middle[1] + last[0] + first[2], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got[0], first[1] + middle[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(got[2], last[1] + middle[2], atol=1e-5, rtol=1e-4)


def test_a_token_reaches_two_rows_to_each_side_and_no_further(lower: LocalLower) -> None:
    ids = torch.tensor([[2, 7, 8, 9, 10, 11, 12, 13, 3]])
    other = ids.clone()
    other[0, 4] = 20
    changed = (lower(ids) - lower(other))[0].abs().amax(-1) > 1e-7
    assert changed.tolist() == [False, False, True, True, True, True, True, False, False]


def test_alone_equals_batched(lower: LocalLower) -> None:
    texts = [[2, 7, 3], [2, 9, 10, 11, 12, 3], [2, 3], [7]]
    together = lower(pad_ids(texts))
    for i, text in enumerate(texts):
        alone = lower(torch.tensor([text]))[0]
        torch.testing.assert_close(together[i, : len(text)], alone, atol=1e-6, rtol=1e-5)


def test_back_off_takes_bigrams_then_unigrams(lower: LocalLower) -> None:
    ids = torch.tensor([[7, 8, 9]])
    n = torch.zeros(3, dtype=torch.bool)
    cover = Cover(trigram=n, left=torch.tensor([False, True, False]), right=torch.tensor([True, False, False]))
    got = lower._rows(windows_of(ids).reshape(-1, 3), cover).double()
    middle_left = slow_entry(lower, [7, 8, 0])
    torch.testing.assert_close(got[1, 0], middle_left[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(got[1, 1], middle_left[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(got[1, 2], slow_entry(lower, [0, 0, 9])[2], atol=1e-5, rtol=0)
    torch.testing.assert_close(got[0, 1], slow_entry(lower, [0, 7, 8])[1], atol=1e-5, rtol=0)
    torch.testing.assert_close(got[2, 1], slow_entry(lower, [0, 9, 0])[1], atol=1e-5, rtol=0)
    assert got[0, 0].abs().max() == 0, "a missing neighbour must stay missing"
    assert got[2, 2].abs().max() == 0
