"""Of a long text the tokenizer reads little more than is kept, and the tokens are those of the whole text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from hmi.model.text.beginnings import Text, beginnings_of
from hmi.model.text.tokenizer import Tokenizer
from tests.tiny import WORDS

SPACES = [*"   ", "\n", "\t\r", "  " * 40, "\u00a0", "\u3000", "\u2028"]
INVISIBLE = ["\u200b", "\x00", "\x01" * 30, "\ufeff"]
LATIN = ["a" * 99, "a" * 100, "a" * 101, "a" * 400, "s" * 100, "s" * 150]
LONG_WORDS = ["\u00e9" * 150, "\u0436" * 130, "\uac00" * 120, "\u304c" * 101, "\u0130" * 120]
IDEOGRAPHS = ["\u4e2d\u6587\u5b57", "\u4e2d" * 50, "\U00020000", "\uf900", "\u30fb", "\ufffd"]
ACCENTS = ["\u0e01\u0e34" * 60, "e\u0301", "\u0301" * 60, "\u0323\u0301", "\u302e\u0301\u0323", "\u034f"]
NORMALIZED = ["\u2260", "\u037e", "\u1100\u1161\u11a8", "\u212b", "\u00df", "\ufb01", "\u03a3\u03c2"]
EMOJI = ["\U0001f600", "\U0001f468\u200d\U0001f469"]
SPECIAL = ["[MASK]", "[MA", "SK]", "[", "]", "[CLS]", "[SEP][SEP]", "<mask>", "<mas", "<s>", "</s", "[UNK]"]
SUBWORDS = ["##s", "...", "," * 20, "\u2014", "un", "known", "ing", "ed"]
BITS = [*SPACES, *INVISIBLE, *LATIN, *LONG_WORDS, *IDEOGRAPHS, *ACCENTS, *NORMALIZED]
BITS += [*EMOJI, *SPECIAL, *SUBWORDS]
"""What texts are composed of."""


def nasty(rng: random.Random) -> str:
    """A text of few kinds of bits, so that long runs of each occur."""
    kinds = rng.choices([*BITS, *WORDS], k=rng.randint(1, 6))
    return "".join(rng.choice(kinds) for _ in range(rng.randint(1, 600)))[: rng.choice([50, 3_000, 20_000])]


def check(tokenizer: Tokenizer, text: Text, max_length: int) -> None:
    (got,) = tokenizer.encode([text], max_length)
    whole = tokenizer._fast.encode_batch([text], is_pretokenized=isinstance(text, list))[0]
    wanted = tokenizer._cut(whole, max_length)
    assert (got.ids, got.types, got.words) == (wanted.ids, wanted.types, wanted.words), repr(text)[:200]
    assert got.truncated == wanted.truncated == (len(whole.ids) > max_length)


@pytest.mark.parametrize("seed", range(150))
def test_a_beginning_gives_the_tokens_of_the_whole(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    max_length = rng.choice([6, 16, 64])
    check(tokenizer, nasty(rng), max_length)
    check(tokenizer, (nasty(rng), nasty(rng)), max_length)
    check(
        tokenizer,
        [nasty(rng)[: rng.choice([3, 20, 4_000])] or "a" for _ in range(rng.randint(1, 80))],
        max_length,
    )


def test_every_place_to_cut_is_right(tokenizer: Tokenizer) -> None:
    """A beginning may end anywhere: inside a word, a special token, a combining mark, a run of spaces."""
    known = beginnings_of(tokenizer._fast)
    assert known is not None
    at = 8 * (6 + known.margin)
    for bit in BITS:
        for shift in range(0, 2 * len(bit) + 2, max(1, len(bit) // 8)):
            for start in (
                "the " * at,
                "the " + "\x01" * at,
            ):  # few tokens: also the end of the text may be kept
                check(tokenizer, start[: at - shift] + bit + bit + " good", 6)
                check(tokenizer, start[: at - shift] + bit + "the cell " * 300, 6)


class Counting:
    """A tokenizer that counts the characters it reads."""

    def __init__(self, fast: Any) -> None:
        self.fast, self.characters = fast, 0

    def encode_batch(self, texts: list[Any], is_pretokenized: bool) -> Any:
        self.characters += sum(sum(map(len, t)) if isinstance(t, list | tuple) else len(t) for t in texts)
        return self.fast.encode_batch(texts, is_pretokenized=is_pretokenized)


@pytest.mark.parametrize(
    "text",
    [
        "a" + " " * 100_000 + "b",
        "a" * 100_000,
        "\u0436" * 50_000,
        "\u4e2d" * 33_000,
        "," * 100_000,
        "good " * 20_000,
        ["a" * 9] * 10_000,
        ["a" * 100_000],
        ("a" * 50_000, "," * 50_000),
        [" " * 50_000 + "good"] * 2,
    ],
)
def test_the_work_is_that_of_what_is_kept(
    tokenizer: Tokenizer, text: Text, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(tokenizer._fast)
    monkeypatch.setattr(tokenizer, "_fast", counting)
    tokenizer.encode([text], 64)
    assert 0 < counting.characters < 10_000, "the whole text was read to keep 64 tokens of it"


def test_a_tokenizer_of_another_kind_reads_the_whole_text() -> None:
    fast = FastTokenizer(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"))
    fast.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # type: ignore[assignment]
    assert beginnings_of(fast) is None


def test_special_tokens_with_letters_or_spaces_are_not_squeezed(tiny_source: Path, tmp_path: Path) -> None:
    fast = FastTokenizer.from_file(str(tiny_source / "tokenizer.json"))
    fast.add_special_tokens([AddedToken("x  y", normalized=False), AddedToken("good", normalized=False)])
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path / "tokenizer.json")
    for text in ("x  y" + "  " * 3_000 + "x  y", "a" * 3_000 + "good" + "a" * 3_000 + "x  y" * 400):
        check(tokenizer, text, 6)
        check(tokenizer, text, 64)
