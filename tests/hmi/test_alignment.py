"""Alignment figures equal a slow plain form, are the same bits in every batch, and are trained and stored."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hmi.model.alignment import FIGURES, MOST, Alignment, figures_of
from hmi.model.batching import Encoded
from hmi.model.lexical import Bags, Lexical, lexical_from
from tests.hmi.test_lexical import text_of

DIM = 8
TOKENS = st.lists(st.sampled_from([5, 6, 1_005, 2_003, 2_050, 9_999, 30_000]), max_size=7)


def rows_of(window: Encoded, seed: int = 0) -> Tensor:
    """A row for each token that depends on the token's id and a little on its place."""
    out = [torch.randn(DIM, generator=torch.Generator().manual_seed(i)) for i in window.ids]
    return torch.stack(out) + 0.1 * torch.randn(
        len(window), DIM, generator=torch.Generator().manual_seed(seed)
    )


def plain(window: Encoded, rows: Tensor) -> list[float]:
    """Every figure, one by one."""
    texts = [
        [i for i in range(len(window)) if window.types[i] == kind and window.words[i] is not None]
        for kind in (0, 1)
    ]
    if not all(texts):
        return [0.0] * FIGURES
    return [x for a, b in (texts, texts[::-1]) for x in _of_one(window.ids, rows, a, b)]


def _of_one(ids: list[int], rows: Tensor, mine: list[int], theirs: list[int]) -> list[float]:
    cosines = [[float(torch.cosine_similarity(rows[i], rows[j], dim=0)) for j in theirs] for i in mine]
    best = [max(row) for row in cosines]
    at = [row.index(max(row)) for row in cosines]
    plain_weights = [math.log(max(ids[i], 1_000) / 1_000) + 0.05 for i in mine]
    share = [w / sum(plain_weights) for w in plain_weights]
    weights, other = [len(mine) * s for s in share], {ids[j] for j in theirs}
    has = [ids[i] in other for i in mine]
    pairs, others = (list(pairwise([ids[i] for i in places])) for places in (mine, theirs))
    count, order = len(mine), [b > a for a, b in pairwise(at)]
    return [
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


@settings(max_examples=60, deadline=None)
@given(TOKENS, TOKENS, st.integers(0, 9))
def test_figures_equal_the_plain_form(first: list[int], second: list[int], seed: int) -> None:
    window = text_of(first, second)
    rows = rows_of(window, seed)
    torch.testing.assert_close(
        figures_of(rows, [window])[0], torch.tensor(plain(window, rows)), atol=1e-5, rtol=1e-4
    )


def test_a_pair_has_the_same_figures_and_scores_alone_as_in_a_batch() -> None:
    windows = [text_of([5, 2_003], [2_003]), text_of([6], []), text_of(list(range(1_000, 1_040)), [1_001, 7])]
    rows = [rows_of(window) for window in windows]
    together = figures_of(torch.cat(rows), windows)
    alignment = Alignment(3)
    with torch.no_grad():
        alignment.weight.normal_()
        alignment.standardise(together)
        scores = alignment(together)
        for i, (window, mine) in enumerate(zip(windows, rows, strict=True)):
            assert torch.equal(figures_of(mine, [window])[0], together[i])
            assert torch.equal(alignment(figures_of(mine, [window]))[0], scores[i])


def test_equal_texts_match_in_full() -> None:
    window = text_of([2_003, 9_999, 30_000], [2_003, 9_999, 30_000])
    rows = rows_of(window)
    rows[5:8] = rows[1:4]
    figures = figures_of(rows, [window])[0]
    torch.testing.assert_close(figures[:4], torch.ones(4))
    assert figures[7] == 0.0
    torch.testing.assert_close(figures[10:12], torch.ones(2))
    assert torch.equal(figures[:13], figures[13:])


def test_rows_of_length_0_and_windows_without_a_second_text_have_finite_figures() -> None:
    windows = [text_of([5, 6], [5]), text_of([5, 6])]
    figures = figures_of(torch.zeros(sum(map(len, windows)), DIM), windows)
    assert bool(torch.isfinite(figures).all())
    assert not figures[1].any()


def test_scores_stay_bounded_for_figures_unlike_all_training_rows() -> None:
    alignment = Alignment(2)
    alignment.standardise(torch.zeros(4, FIGURES))
    with torch.no_grad():
        alignment.weight.fill_(1.0)
        scores = alignment(torch.full((1, FIGURES), 1e6))
    torch.testing.assert_close(scores, torch.full((1, 2), FIGURES * (MOST + MOST**2 - 1)))


@pytest.mark.parametrize("labels", [3, 20])
def test_an_alignment_comes_back_from_its_tensors_and_older_tensors_have_none(labels: int) -> None:
    lexical = Lexical(16, labels, aligned=True)
    assert lexical.alignment is not None
    with torch.no_grad():
        lexical.alignment.weight.normal_()
        lexical.alignment.standardise(torch.rand(9, FIGURES))
    bags = [Bags(torch.tensor([1, 2]), torch.tensor([0, 2]), torch.tensor([0]), torch.rand(FIGURES))] * 2
    back = lexical_from(lexical.state_dict())
    assert torch.equal(back.scores(bags), lexical.scores(bags))
    older = {name: value for name, value in lexical.state_dict().items() if "alignment" not in name}
    assert lexical_from(older).alignment is None
    assert not torch.equal(lexical_from(older).scores(bags), lexical.scores(bags))
