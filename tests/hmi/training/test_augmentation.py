"""Augmentation: variants of rows with some words replaced."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.nn.functional import cosine_similarity

from hmi.model.sources.source import load_encoder
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.rows import Row
from hmi.training.second.augmentation import NEAREST, REPLACED_FRACTION, similar_words, variants

MANY = 10**6


@pytest.mark.parametrize(
    "text",
    [
        "The <<film>>, a 2nd one,\nwas  bad!",
        ("A cat sits.", "No cat; sits?"),
        ["U.S.", "-", "Senate", ",", "x"],
    ],
)
def test_what_is_between_words_stays(text: Any) -> None:
    def between(text: Any) -> Any:
        if isinstance(text, str):
            return re.sub(r"\w+", "w", text)
        return [
            ("w" if re.match(r"\w", part) else part) if isinstance(text, list) else between(part)
            for part in text
        ]

    made = variants([Row(text, "x")], 40, {}, 0, MANY)
    assert len(made) == 40
    assert all(
        type(row.text) is type(text) and between(row.text) == between(text) and row.label == ""
        for row in made
    )
    assert len({str(row.text) for row in made}) > 5


def test_markers_stay_and_words_of_marks_are_whole() -> None:
    for text in ("a <e1>b</e1> to [E2]c[/E2] d", "[1] a"):
        for row in variants([Row(text, "x")], 30, {}, 0, MANY):
            assert re.findall(r"<.*?>|\[.*?\]", str(row.text)) == re.findall(r"<.*?>|\[.*?\]", text)
    hindi, cafe = "\u0939\u093f\u0928\u094d\u0926\u0940", "cafe\u0301"
    made = variants([Row(f"{hindi} {cafe}", "x")], 30, {}, 0, MANY)
    assert {word for row in made for word in str(row.text).split()} == {hindi, cafe}


def test_a_near_word_takes_the_case_of_the_word() -> None:
    near = {"Senate": ["house"], "USA": ["france"], "a": ["the"], "I": ["we"]}
    made = " ".join(
        str(row.text) for row in variants([Row("Senate USA a I", "x")], 40, near, 0, MANY)
    ).split()
    assert set(made) == {*near, "House", "FRANCE", "the", "We"}


def test_a_row_with_a_word_has_one_changed_at_least() -> None:
    made = [row.text for row in variants([Row("one", "x")], 100, {"one": ["uno"]}, 0, MANY)]
    assert 30 < made.count("uno") < 70, "half are similar, half drawn: the same one"


def test_a_fixed_fraction_of_words_is_replaced_by_others_of_the_rows() -> None:
    rows = [Row(" ".join(f"w{i}" for i in range(100)), "x"), Row("other", "x")]
    made = [str(row.text).split() for row in variants(rows, 50, {}, 0, MANY)]
    long = [words for words in made if len(words) > 1]
    assert len(long) == 50
    changed = Counter(word for words in long for at, word in enumerate(words) if word != f"w{at}")
    assert REPLACED_FRACTION - 0.03 < changed.total() / 5000 < REPLACED_FRACTION + 0.03
    assert set(changed) <= {"other", *(f"w{i}" for i in range(100))}
    assert "other" in changed


def test_rows_take_turns_and_the_seed_decides() -> None:
    rows = [Row("!" * i, "x") for i in range(10)]
    assert Counter(row.text for row in variants(rows, 3, {}, 5, MANY)) == {"!" * i: 3 for i in range(10)}
    assert len({row.text for row in variants(rows, 3, {}, 5, 7)}) == 7
    assert variants(rows, 0, {}, 5, MANY) == []
    words = [Row(f"word{i} and another", "x") for i in range(10)]
    assert variants(words, 3, {}, 5, MANY) == variants(words, 3, {}, 5, MANY)
    assert variants(words, 3, {}, 5, MANY) != variants(words, 3, {}, 6, MANY)


def test_rows_without_a_word_are_copied() -> None:
    assert {row.text for row in variants([Row("?!", "x"), Row("", "x")], 1, {}, 0, MANY)} == {"?!", ""}


def test_similar_words_are_the_nearest_whole_words_of_the_vocabulary(tiny_source: Path) -> None:
    tokenizer = Tokenizer(tiny_source / "tokenizer.json")
    vectors = load_encoder(tiny_source).embeddings.word.weight
    whole = tokenizer.whole_words()
    assert all(word.isalpha() for word in whole.values())
    word = next(w for i, w in whole.items() if tokenizer.encode([w], 9)[0].ids[1:-1] == [i])
    found = similar_words([Row(f"{word} ?! unheardofword", "x")], tokenizer, vectors)
    assert list(found) == [word]
    own = next(i for i, w in whole.items() if w == word)
    slow = {
        w: float(cosine_similarity(vectors[own], vectors[i], dim=0)) for i, w in whole.items() if i != own
    }
    nearest = sorted(slow, key=lambda w: -slow[w])[:NEAREST]
    assert found[word] == nearest


def test_half_of_the_changed_words_are_similar_ones_where_there_are_any() -> None:
    rows = [Row("old " * 1000, "x"), Row("tree", "x")]
    made = " ".join(str(row.text) for row in variants(rows, 1, {"old": ["aged"]}, 0, MANY)).split()
    assert REPLACED_FRACTION / 2 - 0.05 < made.count("aged") / 1000 < REPLACED_FRACTION / 2 + 0.05
    assert set(made) <= {"old", "aged", "tree"}
