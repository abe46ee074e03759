"""Tabi's equation (5): whole words, special tokens, both segments (design/0012)."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.cascade.pruning import kept_tokens, received

Text = tuple[list[float], list[int], list[int], float]


@st.composite
def texts(draw: st.DrawFn) -> Text:
    """[CLS] words [SEP] (words [SEP]) padding, each word of one to three pieces."""
    words, segments = [-1], [0]
    for segment in range(draw(st.integers(1, 2))):
        for word in range(draw(st.integers(0, 5))):
            pieces = draw(st.integers(1, 3))
            words += [word] * pieces
            segments += [segment] * pieces
        words.append(-1)
        segments.append(segment)
    padding = draw(st.integers(0, 2))
    words += [-1] * padding
    segments += [0] * padding
    importance = draw(st.lists(st.floats(0, 5), min_size=len(words), max_size=len(words)))
    return importance, words, segments, draw(st.sampled_from([0.0, 0.5, 0.7, 0.9, 1.0, 2.0, 50.0]))


def by_hand(importance: list[float], words: list[int], segments: list[int], scale: float) -> list[bool]:
    """The reference: word by word."""
    tokens = [i for i, word in enumerate(words) if word >= 0]
    stays = [word < 0 for word in words]
    if not tokens:
        return stays
    mean = math.fsum(importance[i] for i in tokens) / len(tokens)
    for segment in {segments[i] for i in tokens}:
        own = sorted({words[i] for i in tokens if segments[i] == segment})
        pieces = {w: [i for i in tokens if segments[i] == segment and words[i] == w] for w in own}
        best = {w: max(importance[i] for i in pieces[w]) for w in own}
        chosen = [w for w in own if best[w] > scale * mean] or [max(own, key=lambda w: best[w])]
        for word in chosen:
            for i in pieces[word]:
                stays[i] = True
    return stays


@settings(max_examples=80)
@given(texts())
def test_equation_5_equals_a_walk_over_words(text: Text) -> None:
    importance, words, _, scale = text
    inside = [i for i, word in enumerate(words) if word >= 0]
    mean = math.fsum(importance[i] for i in inside) / max(1, len(inside))
    near = [abs(importance[i] - scale * mean) < 1e-9 for i in inside]
    if not any(near):  # a mean that is rounded in another order may fall on either side of a tie
        assert kept_tokens(*text).tolist() == by_hand(*text)


@settings(max_examples=50)
@given(texts())
def test_words_are_whole_specials_stay_and_no_segment_is_emptied(text: Text) -> None:
    _, words, segments, _ = text
    stays = kept_tokens(*text)
    assert all(stay for stay, word in zip(stays, words, strict=True) if word < 0)
    fates: dict[tuple[int, int], set[bool]] = {}
    for stay, word, segment in zip(stays.tolist(), words, segments, strict=True):
        if word >= 0:
            fates.setdefault((segment, word), set()).add(stay)
    assert all(len(fate) == 1 for fate in fates.values())
    for segment in {segment for segment, _ in fates}:
        assert any(True in fate for (own, _), fate in fates.items() if own == segment)


def test_special_tokens_do_not_count_in_the_mean() -> None:
    # With [CLS] and [SEP] in it the mean would be 41, and both words would go.
    assert kept_tokens([100, 3, 1, 100], [-1, 0, 1, -1], [0] * 4, 0.9).tolist() == [True, True, False, True]


def test_a_word_stays_if_one_of_its_pieces_does() -> None:
    stays = kept_tokens([0, 5, 0.1, 0.1, 0, 0], [-1, 0, 0, 1, 2, -1], [0] * 6, 1.0)
    assert stays.tolist() == [True, True, True, False, False, True]


def test_the_same_word_index_in_two_segments_is_two_words() -> None:
    stays = kept_tokens([0, 9, 0, 9, 0.1, 0], [-1, 0, -1, 0, 1, -1], [0, 0, 0, 1, 1, 1], 0.5)
    assert stays.tolist() == [True, True, True, True, False, True]
    both = kept_tokens([0, 1, 0, 9, 0], [-1, 0, -1, 0, -1], [0, 0, 0, 1, 1], 1.0)
    assert both.all(), "the first segment's only word stays, although it receives less than the mean"


def test_without_words_everything_stays() -> None:
    assert kept_tokens([1, 1], [-1, -1], [0, 0], 5.0).all()
    assert kept_tokens([], [], [], 5.0).tolist() == []


def test_a_scale_of_0_drops_only_what_receives_nothing_and_nan_keeps_all() -> None:
    assert kept_tokens([0, 1e-9, 0], [0, 1, 2], [0] * 3, 0.0).tolist() == [False, True, False]
    assert kept_tokens([np.nan, 1.0, 2.0], [0, 1, 2], [0] * 3, 1.0).all()


def test_more_words_go_at_a_higher_scale() -> None:
    importance, words = np.random.default_rng(0).random(30), list(range(30))
    counts = [
        int(kept_tokens(importance, words, [0] * 30, scale).sum()) for scale in (0.0, 0.5, 0.7, 0.9, 1.5, 9)
    ]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 1


def test_attention_is_summed_over_layers_heads_and_queries() -> None:
    attention = np.random.default_rng(1).random((2, 3, 4, 5))
    slow = np.zeros(5)
    for layer in attention:
        for head in layer:
            for query in head:
                slow += query
    assert received(attention) == pytest.approx(slow)
    assert received(attention) == pytest.approx(received(attention[0]) + received(attention[1]))


def test_a_negative_scale_is_refused() -> None:
    with pytest.raises(ValueError, match="scale"):
        kept_tokens([1.0], [0], [0], -0.1)
