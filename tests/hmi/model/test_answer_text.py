"""The text of an answer as it comes: the same as of all its tokens at once, cut at stop strings."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from hmi.model.text.answer_text import HELD, AnswerText

TEXT = "Grüße, 世界! 🎉👩‍👩‍👧 naïve café \n\n the end of the text; the end."


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Bytes alone: no character but ASCII is one token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def pieces(tokenizer: Tokenizer, text: str, stops: list[str]) -> tuple[list[str], AnswerText]:
    written = AnswerText(lambda ids: str(tokenizer.decode(list(ids))), stops)
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


@pytest.mark.parametrize(
    ("text", "stops", "given", "stop"),
    [("one two three", ["three", "two t", "two"], "one ", "two"), ("xabcd", ["abcd", "bc"], "xa", "bc")],
)
def test_of_two_stop_strings_the_first_that_is_complete_ends_the_text(
    tokenizer: Tokenizer, text: str, stops: list[str], given: str, stop: str
) -> None:
    found, written = pieces(tokenizer, text, stops)
    assert ("".join(found), written.stopped) == (given, stop)
    assert written.push(50) == written.end() == ""
    at_once = AnswerText(lambda ids: text * len(ids), stops)
    assert (at_once.push(1), at_once.stopped) == (given, stop)


@pytest.mark.parametrize("text", ["สวัสดี x", "🎉🎉é🎉ñ🎉 x", "สวัสดี", "a  é b"])
def test_bytes_of_a_tokenizer_that_falls_back_to_them(text: str) -> None:
    """As Llama 2's: every run of bytes that is not valid is broken as a whole, and a first space is lost."""
    vocab = {f"<0x{i:02X}>": i for i in range(256)} | {letter: 256 + i for i, letter in enumerate("▁abx")}
    made = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    parts = decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)
    made.decoder = decoders.Sequence(list(parts))
    ids = made.encode("▁" + text.replace(" ", "▁")).ids
    written = AnswerText(lambda some: str(made.decode(list(some))))
    assert "".join([*map(written.push, ids), written.end()]) == text


def test_bytes_that_are_no_whole_character_are_left_out(tokenizer: Tokenizer) -> None:
    written = AnswerText(lambda ids: str(tokenizer.decode(list(ids))))
    ids = tokenizer.encode("a世").ids
    assert "".join([*map(written.push, ids[:-1]), written.end()]) == "a"


def test_bytes_that_never_become_a_character_are_given_after_a_few_tokens(tokenizer: Tokenizer) -> None:
    broken = tokenizer.encode("é").ids[:1]
    decoded: list[int] = []

    def decode(ids: Sequence[int]) -> str:
        decoded.append(len(ids))
        return str(tokenizer.decode(list(ids)))

    written = AnswerText(decode)
    found = [written.push(i) for i in broken * 200]
    assert "".join(found) == "\N{REPLACEMENT CHARACTER}" * 200
    assert max(decoded) <= 2 * HELD
