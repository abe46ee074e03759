"""Raw texts to words: every character but white space is in one word, and rows teach how marks are split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hmi.model.text.splitting import Splitter, SplitText
from hmi.training.tasks.word_patterns import MAX_PATTERNS, word_patterns

PATTERNS = st.lists(st.text("a0-.,'$() =", min_size=2, max_size=5), max_size=6)


@given(st.text(), PATTERNS)
@example("x\u0301\u200d\u0301 \U0001f468\u200d\U0001f469\u200d\U0001f467", [])
@example("\u200b\u0301\u2028a\u00a0\x1cb", [])
def test_every_character_but_white_space_is_in_one_word(text: str, patterns: list[str]) -> None:
    split = Splitter(patterns).split(text)
    assert all(a < b for a, b in split.spans)
    assert all(b <= c for (_, b), (c, _) in pairwise(split.spans))
    assert split.words == [text[a:b] for a, b in split.spans]
    left = [c for i, c in enumerate(text) if not any(a <= i < b for a, b in split.spans)]
    assert all(c.isspace() for c in left)
    assert not any(c.isspace() for word in split.words for c in word)


@given(st.lists(st.text(min_size=1), max_size=8))
def test_any_rows_teach_something_that_splits(words: list[str]) -> None:
    found = word_patterns([words, words])
    assert len(found) <= MAX_PATTERNS + 6
    text = " ".join(words)
    split = Splitter(found).split(text)
    assert [text[a:b] for a, b in split.spans] == Splitter(found).split(text).words or split.words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's 3.5 (e.g., 1,000 mg).", ["It's", "3.5", "(", "e.g", ".", ",", "1,000", "mg", ")", "."]),
        ("trans-context-free", ["trans-context-free"]),
        ("Wait... what?!", ["Wait", "...", "what", "?", "!"]),
        ("ann@x.org paid $5", ["ann@x.org", "paid", "$", "5"]),
        ("Müller\tcafe\u0301\r\nNaïve", ["Müller", "cafe\u0301", "Naïve"]),
        ("東京タワー is北", ["東", "京", "タワー", "is", "北"]),
        (
            "hi\U0001f468\u200d\U0001f469\u200d\U0001f467!",
            ["hi", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "!"],
        ),
        (
            "\U0001f44b\U0001f3fd \U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7",
            ["\U0001f44b\U0001f3fd", "\U0001f1e9\U0001f1ea", "\U0001f1eb\U0001f1f7"],
        ),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),
        ("  ", []),
    ],
)
def test_splits_without_patterns(text: str, words: list[str]) -> None:
    assert Splitter().split(text).words == words


@pytest.mark.parametrize(
    ("rows", "text", "words"),
    [
        (["Selegiline - induced", "L - dopa ( 2 . 5 mg )"], "IL-induced (3.5)", "IL - induced ( 3 . 5 )"),
        (["the IL-2 receptor", "HSB-2 cells -"], "IL-4-like", "IL-4-like"),
        (["what 's up", "it 's Ann 's"], "Bob's", "Bob 's"),
        (["what 's up", "it 's Ann 's"], "Bob\u2019s", "Bob \u2019s"),
        (["Parkinson ' s disease"] * 2, "Bob's", "Bob ' s"),
        (["st. paul", "st. louis"], "st. john", "st. john"),
        (["word , word ,", "3 , 4 , 5"], "a,b", "a , b"),
        (["costs $5", "at $7 ."], "pay $9.", "pay $9 ."),
        (["a b", "c d"], "x-y z.", "x-y z ."),
    ],
)
def test_marks_are_split_as_the_rows_split_them(rows: list[str], text: str, words: str) -> None:
    patterns = word_patterns(row.split() for row in rows)
    assert Splitter(patterns).split(text).words == words.split()


def test_brackets_of_treebanks_are_read_as_the_rows_write_them() -> None:
    patterns = word_patterns([["models", "-LRB-", "CFG", "-RRB-", "."]])
    split = Splitter(patterns).split("grammars (CFG).")
    assert split.words == ["grammars", "-LRB-", "CFG", "-RRB-", "."]
    assert split.spans == [(0, 8), (9, 10), (10, 13), (13, 14), (14, 15)]


def test_the_beginning_of_a_split() -> None:
    split = Splitter().split("one two three")
    assert split.upto(2) == SplitText(["one", "two"], [(0, 3), (4, 7)])
    assert split.upto(9) is split
