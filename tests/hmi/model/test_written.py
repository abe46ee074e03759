"""The text of an answer as it comes: the same as of all its tokens at once, cut at stop strings."""

from __future__ import annotations

import random

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hmi.model.text.written import Written

TEXT = "Grüße, 世界! 🎉👩‍👩‍👧 naïve café \n\n the end of the text; the end."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes alone: no character but ASCII is one token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def pieces(tokenizer: Tokenizer, text: str, stops: list[str]) -> tuple[list[str], Written]:
    written = Written(lambda ids: str(tokenizer.decode(list(ids))), stops)
    found = [written.push(i) for i in tokenizer.encode(text).ids]
    return [*found, written.end()], written


def test_pieces_are_whole_characters_and_make_the_text(tokenizer: Tokenizer) -> None:
    found, written = pieces(tokenizer, TEXT, [])
    assert "".join(found) == TEXT
    assert written.stopped is None
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in found)
    assert found[0] == "G", "what is certain is given at once"


def test_nothing_after_a_stop_string_is_given_nor_any_of_it(tokenizer: Tokenizer) -> None:
    draw = random.Random(1)
    for _ in range(300):
        begin = draw.randrange(len(TEXT))
        stops = [TEXT[begin : begin + draw.randrange(1, 9)], "never", "the enx", ""]
        found, written = pieces(tokenizer, TEXT, stops)
        assert "".join(found) == TEXT[: TEXT.index(stops[0])]
        assert written.stopped == stops[0]
    found, written = pieces(tokenizer, "an ap", ["apple", "pear"])
    assert "".join(found) == "an ap"
    assert found[-1] == "ap", "the beginning of a stop string is held back"
    assert written.stopped is None


def test_of_two_stop_strings_the_first_ends_the_text(tokenizer: Tokenizer) -> None:
    found, written = pieces(tokenizer, "one two three", ["three", "two t", "two"])
    assert ("".join(found), written.stopped) == ("one ", "two")
    assert written.push(50) == written.end() == ""


def test_bytes_that_are_no_whole_character_are_left_out(tokenizer: Tokenizer) -> None:
    written = Written(lambda ids: str(tokenizer.decode(list(ids))))
    ids = tokenizer.encode("a世").ids
    assert "".join([*map(written.push, ids[:-1]), written.end()]) == "a"
