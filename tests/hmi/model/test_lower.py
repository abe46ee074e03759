"""Local lower layers: what a PLOT entry is, how entries add up to a text's states,
and what depends on what."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hmi_kernels.lookup import reference
from torch import Tensor

from hmi.model.network.encoder import Encoder
from hmi.model.sources.lower import POSITION_BASE, Cover, LocalLower, unique_rows
from hmi.model.sources.root import Root, split_encoder
from hmi.model.text.batching import pad_ids


@pytest.fixture
def lower(tiny_root: Root) -> LocalLower:
    assert tiny_root.lower is not None
    return tiny_root.lower


def slow_entry(lower: LocalLower, trigram: list[int]) -> Tensor:
    """One window in fp64, head by head and row by row, without batches: the oracle."""
    e, heads = lower.embeddings, lower.shape.heads
    assert e.token_type is not None
    at = [i for i in range(lower.n) if trigram[i] > 0]

    def position(i: int) -> int:
        return 0 if trigram[i] == lower.cls_id else POSITION_BASE + i

    rows = [
        e.word.weight[trigram[i]].double()
        + e.position.weight[position(i)].double()
        + e.token_type.weight[0].double()
        for i in at
    ]
    x = F.layer_norm(
        torch.stack(rows), (lower.shape.dim,), e.ln.weight.double(), e.ln.bias.double(), lower.shape.eps
    )
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
    out = torch.zeros(lower.n, lower.shape.dim, dtype=torch.float64)
    for row, i in enumerate(at):
        out[i] = x[row] @ lower.fold[i].double()
    return out


@pytest.mark.parametrize(
    "trigram", [[7, 8, 9], [0, 2, 7], [2, 7, 8], [8, 3, 0], [0, 9, 0], [9, 0, 0], [0, 0, 9]]
)
def test_an_entry_is_the_lower_layers_on_that_trigram_alone(lower: LocalLower, trigram: list[int]) -> None:
    got = lower.entries(torch.tensor([trigram]))[0]
    torch.testing.assert_close(got.double(), slow_entry(lower, trigram), atol=1e-5, rtol=1e-4)


def test_bigram_and_unigram_entries_are_trigrams_with_missing_neighbours(lower: LocalLower) -> None:
    bigram = lower.ngram_entries(torch.tensor([[7, 8]]))[0]
    left, right = slow_entry(lower, [7, 8, 0]), slow_entry(lower, [0, 7, 8])
    torch.testing.assert_close(
        bigram.double(), torch.stack([left[0], left[1], right[1], right[2]]), atol=1e-5, rtol=0
    )
    unigram = lower.ngram_entries(torch.tensor([[7]]))[0]
    want = [slow_entry(lower, [7, 0, 0])[0], slow_entry(lower, [0, 7, 0])[1], slow_entry(lower, [0, 0, 7])[2]]
    torch.testing.assert_close(unigram.double(), torch.stack(want), atol=1e-5, rtol=0)


def test_a_three_token_text_sums_three_trigrams(lower: LocalLower) -> None:
    a, b, c = 7, 8, 9
    got = lower(torch.tensor([[a, b, c]]))[0].double()
    first, middle, last = (
        slow_entry(lower, [0, a, b]),
        slow_entry(lower, [a, b, c]),
        slow_entry(lower, [b, c, 0]),
    )
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


@pytest.fixture(params=[2, 3, 4, 5])
def of_n(request: pytest.FixtureRequest, teacher: Encoder) -> LocalLower:
    """Lower layers over windows of 2 to 5 tokens, with random slots and folded matrices."""
    lower, _, _ = split_encoder(teacher, 2, 2, request.param)
    g = torch.Generator().manual_seed(request.param)
    with torch.no_grad():
        for p in (lower.slot_keys, lower.slot_values):
            p.copy_(torch.randn(p.shape, generator=g) * 0.3)
        lower.fold += torch.randn(lower.fold.shape, generator=g) * 0.05
    return lower.eval().requires_grad_(False)


def as_stored(lower: LocalLower, texts: list[list[int]], at_hand: set[tuple[int, ...]]) -> Tensor:
    """The texts' states by the store's slow reference, from a store of the n-grams `at_hand`."""
    entries = {}
    for ngram in at_hand:
        rows = lower.ngram_entries(torch.tensor([ngram]))[0]
        if len(ngram) == lower.n:  # stored as it is, also with missing neighbours
            rows = slow_entry(lower, list(ngram)).float()
        entries[ngram] = rows.numpy()
    return torch.from_numpy(reference.lookup([entries], texts, lower.shape.dim, lower.n)[0])


def windows(text: list[int], n: int) -> list[tuple[int, ...]]:
    """The window around each token, by counting."""
    before = (n - 1) // 2
    padded = [0] * before + text + [0] * (n - 1 - before)
    return [tuple(padded[i : i + n]) for i in range(len(text))]


TEXTS = [[2, 7, 8, 9, 10, 7, 8, 3], [2, 9, 3], [7]]


def test_a_text_is_what_a_store_of_all_its_windows_gives(of_n: LocalLower) -> None:
    got = of_n(pad_ids(TEXTS))
    want = as_stored(of_n, TEXTS, {w for text in TEXTS for w in windows(text, of_n.n)})
    together = torch.cat([got[i, : len(text)] for i, text in enumerate(TEXTS)])
    torch.testing.assert_close(together, want, atol=2e-5, rtol=1e-4)
    assert got[1, len(TEXTS[1]) :].abs().max() == 0, "padding must give nothing"


@pytest.mark.parametrize("seed", range(4))
def test_back_off_fills_as_the_store_does(of_n: LocalLower, seed: int) -> None:
    n, g = of_n.n, torch.Generator().manual_seed(seed)
    ids = pad_ids(TEXTS)
    held = {order: torch.zeros(ids.shape, dtype=torch.bool) for order in range(2, n + 1)}
    at_hand = {(token,) for text in TEXTS for token in text}
    chosen: dict[tuple[int, ...], bool] = {}  # an n-gram is at hand everywhere or nowhere
    for row, text in enumerate(TEXTS):
        for order in held:
            spans = [tuple(text[i : i + order]) for i in range(len(text) - order + 1)]
            for i, ngram in enumerate(windows(text, n) if order == n else spans):
                held[order][row, i] = chosen.setdefault(ngram, bool(torch.rand((), generator=g) < 0.4))
    at_hand |= {ngram for ngram, yes in chosen.items() if yes}
    got = of_n(ids, Cover(held))
    together = torch.cat([got[i, : len(text)] for i, text in enumerate(TEXTS)])
    torch.testing.assert_close(together, as_stored(of_n, TEXTS, at_hand), atol=2e-5, rtol=1e-4)


def test_with_all_ngrams_stored_the_states_are_exact(of_n: LocalLower) -> None:
    ids = pad_ids(TEXTS)
    every = Cover({order: torch.ones(ids.shape, dtype=torch.bool) for order in range(2, of_n.n + 1)})
    torch.testing.assert_close(of_n(ids, every), of_n(ids), atol=1e-6, rtol=0)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_equal_windows_are_found_whatever_the_vocabulary(width: int) -> None:
    g = torch.Generator().manual_seed(width)
    vocab = 1 << 20
    some = torch.tensor([0, 1, vocab - 2, vocab - 1])
    rows = some[torch.randint(4, (400, width), generator=g)]
    which, first = unique_rows(rows, vocab)
    assert torch.equal(rows[first][which], rows)
    assert len(first) == len({tuple(row) for row in rows.tolist()})
