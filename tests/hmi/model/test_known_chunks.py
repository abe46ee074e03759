"""Tokens put together from known chunks are those of the tokenizer itself."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from hmi.model.text import tokenizer as tokenizer_room
from hmi.model.text.tokenizer import KnownChunks, Text, Tokenizer
from tests.hmi.model.test_beginnings import BITS, check
from tests.tiny import WORDS


def mixed(rng: random.Random, most: int) -> str:
    """Words and unusual bits, most of them parted by spaces."""
    bits = [rng.choice(WORDS if rng.random() < 0.6 else BITS)[:20] for _ in range(rng.randint(0, most))]
    return "".join(bit + rng.choice([" ", " ", "", "  ", "\n"]) for bit in bits)


def forms(rng: random.Random) -> list[Text]:
    words = mixed(rng, 12).split(" ")
    return [mixed(rng, 20), (mixed(rng, 12), mixed(rng, 12)), [word or "a" for word in words]]


@pytest.mark.parametrize("seed", range(60))
def test_short_texts_have_the_tokenizers_tokens(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    for text in forms(rng):
        for max_length in (6, 24, 200):
            check(tokenizer, text, max_length)
            check(tokenizer, text, max_length)  # all chunks are known now


def test_many_texts_are_the_same_as_each_alone(tokenizer: Tokenizer) -> None:
    rng = random.Random(5)
    texts = [text for _ in range(20) for text in forms(rng)]
    assert tokenizer.encode(texts, 40) == [tokenizer.encode([text], 40)[0] for text in texts]


class Counting:
    """A tokenizer that counts its calls."""

    def __init__(self, fast: FastTokenizer) -> None:
        self.fast, self.calls = fast, 0
        self.get_added_tokens_decoder = fast.get_added_tokens_decoder

    def encode(self, text: str, add_special_tokens: bool) -> object:
        self.calls += 1
        return self.fast.encode(text, add_special_tokens=add_special_tokens)


def test_known_chunks_do_not_reach_the_tokenizer(tokenizer: Tokenizer) -> None:
    counting = Counting(tokenizer._fast)
    chunks = KnownChunks(counting)  # type: ignore[arg-type]
    first = chunks.of_text("the cell, the virus")
    assert counting.calls == 1
    assert chunks.of_text("the cell, the virus") == first
    assert chunks.of_words(["virus", "the"]) is not None
    assert counting.calls == 1
    assert chunks.of_text("x" * (tokenizer_room.LONGEST + 1)) is None
    assert chunks.of_words(["two words"]) is None
    assert counting.calls == 1


def test_the_number_of_kept_chunks_is_limited(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_room, "KEPT", 50)
    chunks = KnownChunks(tokenizer._fast)
    for i in range(300):
        text = f"a{i} b{i} the"
        found = tokenizer._fast.encode(text, add_special_tokens=False)
        assert chunks.of_text(text) == (found.ids, found.word_ids)
        assert len(chunks._known) <= 50


@pytest.mark.parametrize("lstrip", [True, False])
@pytest.mark.parametrize("rstrip", [True, False])
def test_a_token_that_takes_spaces_changes_no_other_text(
    tiny_source: Path, tmp_path: Path, lstrip: bool, rstrip: bool
) -> None:
    """MPNet's mask does: a tenant that sent it could otherwise add it to other tenants' words."""
    fast = FastTokenizer.from_file(str(tiny_source / "tokenizer.json"))
    fast.add_special_tokens([AddedToken("<mark>", lstrip=lstrip, rstrip=rstrip)])
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    texts = ["the <mark> virus", "cell  <mark>  in", "the cell", "virus the", "a  cell", "<mark>", "in  the"]
    for text in (*texts, *reversed(texts), texts):
        check(tokenizer, text, 24)
