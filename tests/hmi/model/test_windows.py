"""Long texts in windows: each token is in a window, each word is read where it stands most central."""

from __future__ import annotations

import random

import pytest

from hmi.model.sources.root import Root
from hmi.model.text.batching import Encoded
from hmi.model.text.reach import MAX_WINDOWS, reach
from hmi.model.text.windows import central_pieces, encode_texts, windows_of
from tests.tiny import random_texts


def text_of(pieces: list[int]) -> Encoded:
    """A text whose word i has pieces[i] pieces; ids show the position."""
    words = [w for w, count in enumerate(pieces) for _ in range(count)]
    ids = [1, *range(100, 100 + len(words)), 2]
    return Encoded(ids, [0] * len(ids), [None, *words, None])


@pytest.mark.parametrize("seed", range(30))
def test_windows_cover_the_text_and_begin_at_words(seed: int) -> None:
    rng = random.Random(seed)
    length = rng.randint(10, 40)
    pieces = [rng.randint(1, 3) for _ in range(rng.randint(1, 100))]
    text = text_of(pieces)
    if len(text) > reach(length):
        return
    windows = windows_of(text, length)
    assert len(windows) <= MAX_WINDOWS
    assert {i for w in windows for i in w.ids} == set(text.ids), "no token is lost"
    for window in windows:
        assert len(window) <= length
        assert (window.ids[0], window.ids[-1]) == (1, 2)
        at = window.ids[1] - 100 + 1
        assert at == 1 or text.words[at] != text.words[at - 1], "a window begins with a word's first piece"
    for word, (window, position) in central_pieces(windows).items():
        mine = windows[window]
        assert mine.words[position] == word
        assert mine.words[position - 1] != word, "its first piece"
        inside = min(position, len(mine) - 1 - position)
        others = [(w, w.words.index(word)) for w in windows if word in w.words]
        assert inside == max(min(p, len(w) - 1 - p) for w, p in others if w.words[p - 1] != word)
    assert set(central_pieces(windows)) == set(range(len(pieces)))


def test_a_text_that_fits_stays_as_it_is() -> None:
    text = text_of([1] * 8)
    assert windows_of(text, 10) == [text]
    assert len(windows_of(text_of([1] * 9), 10)) == 2


def test_beyond_the_most_windows_a_text_is_cut(tiny_root: Root) -> None:
    tokenizer = tiny_root.tokenizer
    short, long, huge = random_texts(1, low=3, high=3)[0], " ".join(["cell"] * 40), " ".join(["gene"] * 5000)
    found = encode_texts(tokenizer, [short, long, huge], 16, windows=True)
    assert [len(windows) for windows in found] == [1, 4, MAX_WINDOWS]
    assert [any(w.truncated for w in windows) for windows in found] == [False, False, True]
    assert all(len(w) <= 16 for windows in found for w in windows)
    cut = encode_texts(tokenizer, [long], 16, windows=False)
    assert [len(windows) for windows in cut] == [1]
    assert cut[0][0].truncated
