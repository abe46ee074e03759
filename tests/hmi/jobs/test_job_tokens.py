"""Long texts are cut before they are tokenised, and give exactly the first tokens of the whole text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hmi.errors import InvalidData
from hmi.jobs.plot.ngrams import pieces
from hmi.model.text.tokenizer import TEXTS_AT_ONCE, Text, Tokenizer, _at_once
from hmi.training.data.rows import MAX_ROW_CHARACTERS, read_labelled_rows
from tests.tiny import random_texts

LONG = " ".join(random_texts(200, 3))
ODD: list[Text] = [
    "good film",
    LONG,
    " " * 5000 + LONG,
    "x" * 9000 + " good " + LONG,
    "good " * 5 + "abc," * 5000,
    "ab" * 510 + "good " * 2000,
    (LONG, "good"),
    ("good", LONG),
    (LONG, " " * 3000 + LONG),
    ("x" * 3000, LONG),
    LONG.split(),
    ["\u200b"] * 40 + ["good"] * 40,
    ["good"] * 14,
    ["good"] * 15,
    ["good."] * 400,
]


@pytest.fixture(scope="module")
def tokenizer(tiny_source: Path) -> Tokenizer:
    return Tokenizer(tiny_source / "tokenizer.json")


@pytest.mark.parametrize("max_length", [8, 16, 64])
def test_a_cut_text_has_the_tokens_of_the_whole(tokenizer: Tokenizer, max_length: int) -> None:
    for text, got in zip(ODD, tokenizer.encode(ODD, max_length), strict=True):
        whole = tokenizer._fast.encode_batch([text], is_pretokenized=isinstance(text, list))[0]
        wanted = tokenizer._cut(whole, max_length)
        assert (got.ids, got.types, got.words) == (wanted.ids, wanted.types, wanted.words), str(text)[:40]
        assert got.truncated == wanted.truncated == (len(whole.ids) > max_length)


def test_order_is_kept_over_many_texts(tokenizer: Tokenizer) -> None:
    texts: list[Text] = [*random_texts(3 * TEXTS_AT_ONCE, 1)]
    texts[1::2] = [str(t).split() for t in texts[1::2]]
    alone = [tokenizer.encode([t], 16)[0] for t in texts[:: TEXTS_AT_ONCE // 2]]
    assert tokenizer.encode(texts, 16)[:: TEXTS_AT_ONCE // 2] == alone
    assert tokenizer.encode([], 16) == []


def test_a_batch_is_bounded_in_rows_and_characters() -> None:
    runs = list(_at_once(["a"] * 300 + ["b" * (3 << 20)] * 3 + [("c", "d")]))
    assert [len(run) for run in runs] == [256, 45, 1, 2]
    assert sum(map(len, runs)) == 304


def test_a_long_document_is_split_at_whitespace() -> None:
    text = " ".join(random_texts(50, 2))
    split = list(pieces(text, 100))
    assert "".join(split) == text
    assert max(map(len, split)) <= 100
    assert [w for piece in split for w in piece.split()] == text.split()
    assert [len(p) for p in pieces("x" * 250, 100)] == [100, 100, 50]
    assert list(pieces("short", 100)) == ["short"]


def test_a_tagging_row_is_bounded_like_a_text(tmp_path: Path) -> None:
    row = {"tokens": ["a" * (MAX_ROW_CHARACTERS // 2 + 1)] * 2, "tags": ["O", "O"]}
    (tmp_path / "rows").write_text(json.dumps(row) + "\n")
    with pytest.raises(InvalidData, match="characters, more than"):
        read_labelled_rows(tmp_path / "rows", "tagging")
