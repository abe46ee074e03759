"""Alignments equal a slow plain form, are the same bits in every batch, and their scores are stored."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hmi.model.tenant.alignment import FIGURES, KINDS, Alignment, aligned_of, aligned_size
from hmi.model.text.batching import Encoded
from hmi.model.text.lexical import Bags, Lexical, lexical_from
from tests.hmi.model.test_lexical import text_of

DIM = 8
TOKENS = st.lists(st.sampled_from([5, 6, 1_005, 2_003, 2_050, 9_999, 30_000]), max_size=7)


def rows_of(window: Encoded, seed: int = 0) -> Tensor:
    """A row for each token that depends on the token's id and a little on its place."""
    out = [torch.randn(DIM, generator=torch.Generator().manual_seed(i)) for i in window.ids]
    return torch.stack(out) + 0.1 * torch.randn(
        len(window), DIM, generator=torch.Generator().manual_seed(seed)
    )


def plain(window: Encoded, rows: Tensor) -> list[float]:
    """Every number, one by one."""
    texts = [
        [i for i in range(len(window)) if window.types[i] == kind and window.words[i] is not None]
        for kind in (0, 1)
    ]
    if not all(texts):
        return [0.0] * aligned_size(DIM)
    (one, other), ids = texts, window.ids
    (figures, vectors), (others, more) = (_of_one(ids, rows, a, b) for a, b in ((one, other), (other, one)))
    return [*figures, *others, *vectors, *more]


def _of_one(
    ids: list[int], rows: Tensor, mine: list[int], theirs: list[int]
) -> tuple[list[float], list[float]]:
    cosines = [[float(torch.cosine_similarity(rows[i], rows[j], dim=0)) for j in theirs] for i in mine]
    best = [max(row) for row in cosines]
    at = [row.index(max(row)) for row in cosines]
    plain_weights = [math.log(max(ids[i], 1_000) / 1_000) + 0.05 for i in mine]
    share = [w / sum(plain_weights) for w in plain_weights]
    weights, other = [len(mine) * s for s in share], {ids[j] for j in theirs}
    has = [ids[i] in other for i in mine]
    pairs, others = (list(pairwise([ids[i] for i in places])) for places in (mine, theirs))
    count, order = len(mine), [b > a for a, b in pairwise(at)]
    figures = [
        sum(has) / count,
        sum(s for s, h in zip(share, has, strict=True) if h),
        sum(best) / count,
        sum(s * b for s, b in zip(share, best, strict=True)),
        *(sorted(best)[min(k, count - 1)] for k in range(3)),
        max([w for w, h in zip(weights, has, strict=True) if not h], default=0.0),
        max([0.0, *(w * (1 - b) for w, b in zip(weights, best, strict=True))]),
        max([w for w, h in zip(weights, has, strict=True) if h], default=0.0),
        sum(p in others for p in pairs) / len(pairs) if pairs else 0.0,
        sum(order) / len(order) if order else 1.0,
        math.log(count),
    ]
    apart = [(rows[i] - rows[theirs[j]]).abs() for i, j in zip(mine, at, strict=True)]
    mean = sum((s * d for s, d in zip(share, apart, strict=True)), torch.zeros(DIM))
    far = [s * (1 - b) * rows[i] for i, s, b in zip(mine, share, best, strict=True)]
    largest = torch.stack(apart).max(0).values
    return figures, [*mean.tolist(), *largest.tolist(), *sum(far, torch.zeros(DIM)).tolist()]


@settings(max_examples=60, deadline=None)
@given(TOKENS, TOKENS, st.integers(0, 9))
def test_alignments_equal_the_plain_form(first: list[int], second: list[int], seed: int) -> None:
    window = text_of(first, second)
    rows = rows_of(window, seed)
    torch.testing.assert_close(
        aligned_of(rows, [window])[0], torch.tensor(plain(window, rows)), atol=1e-5, rtol=1e-4
    )


def fitted(labels: int) -> Alignment:
    """An alignment with a random map."""
    alignment, g = Alignment(labels, DIM), torch.Generator().manual_seed(0)
    for name, tensor in alignment.state_dict().items():
        tensor.copy_(torch.rand(tensor.shape, generator=g) + (0.1 if name == "scale" else -0.5))
    return alignment


def test_a_pair_has_the_same_alignment_and_scores_alone_as_in_a_batch() -> None:
    windows = [text_of([5, 2_003], [2_003]), text_of([6], []), text_of(list(range(1_000, 1_040)), [1_001, 7])]
    rows, alignment = [rows_of(window) for window in windows], fitted(3)
    together = aligned_of(torch.cat(rows), windows)
    scores = alignment(together)
    for i, (window, mine) in enumerate(zip(windows, rows, strict=True)):
        assert torch.equal(aligned_of(mine, [window])[0], together[i])
        assert torch.equal(alignment(aligned_of(mine, [window]))[0], scores[i])


def test_scores_equal_the_plain_form() -> None:
    alignment, aligned = fitted(3), 3 * torch.randn(5, aligned_size(DIM))
    for mine, pair in zip(alignment(aligned), aligned, strict=True):
        for o, got in enumerate(mine.tolist()):
            x = ((pair[:FIGURES] - alignment.mean) / alignment.scale).clamp(-4, 4)
            wanted = alignment.bias[o] + pair[FIGURES:] @ alignment.vectors[o]
            wanted += x @ alignment.weight[o, :FIGURES] + (x * x - 1) @ alignment.weight[o, FIGURES:]
            assert got == pytest.approx(float(wanted), rel=1e-4, abs=1e-4)


def test_equal_texts_match_in_full() -> None:
    window = text_of([2_003, 9_999, 30_000], [2_003, 9_999, 30_000])
    rows = rows_of(window)
    rows[5:8] = rows[1:4]
    aligned = aligned_of(rows, [window])[0]
    torch.testing.assert_close(aligned[:4], torch.ones(4))
    assert aligned[7] == 0.0
    torch.testing.assert_close(aligned[10:12], torch.ones(2))
    assert torch.equal(aligned[:13], aligned[13:FIGURES])
    torch.testing.assert_close(aligned[FIGURES:], torch.zeros(KINDS * DIM))


def test_rows_of_length_0_and_windows_without_a_second_text_have_finite_alignments() -> None:
    windows = [text_of([5, 6], [5]), text_of([5, 6])]
    aligned = aligned_of(torch.zeros(sum(map(len, windows)), DIM), windows)
    assert bool(torch.isfinite(aligned).all())
    assert not aligned[1].any()


def test_figures_unlike_all_training_rows_get_no_wild_scores() -> None:
    alignment, aligned = fitted(2), torch.zeros(2, aligned_size(DIM))
    aligned[0, :FIGURES], aligned[1, :FIGURES] = 1e3, 1e6
    scores = alignment(aligned)
    assert torch.equal(scores[0], scores[1])
    assert float(scores.abs().max()) < FIGURES * (4 + 4**2)


@pytest.mark.parametrize("labels", [3, 20])
def test_an_alignment_comes_back_from_its_tensors_and_older_tensors_have_none(labels: int) -> None:
    lexical = Lexical(16, labels, fitted(labels))
    aligned = torch.rand(aligned_size(DIM))
    bags = [Bags(torch.tensor([1, 2]), torch.tensor([0, 2]), torch.tensor([0]), aligned)] * 2
    back = lexical_from(lexical.state_dict())
    assert torch.equal(back.scores(bags), lexical.scores(bags))
    older = {name: value for name, value in lexical.state_dict().items() if "alignment" not in name}
    assert lexical_from(older).alignment is None
    assert not torch.equal(lexical_from(older).scores(bags), lexical.scores(bags))
