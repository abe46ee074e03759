"""How long a prefix of a text must be to give the first tokens of the whole text.

BERT's tokenizers clean a text character by character, split it at white space, punctuation and ideographs,
and tokenise each word by itself, so later text never changes earlier words. A prefix therefore gives the
same tokens as the whole text, except at its end: the cut may fall inside a word or a special token ("[MA").
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

Text = str | tuple[str, str] | list[str]
"""A text, a pair of texts, or the words of a text to tag."""

CHARACTERS_A_TOKEN = 8
"""The first prefix has this many characters for each token wanted."""
GROWTH = 4
"""A prefix that gave too few tokens is tried again at this many times its length."""
PARTS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
"""The components of a `tokenizer.json`, and the type that each must have for `Beginnings` to apply."""
_LETTERS = (
    "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f"
)
_LETTERS += "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3"
"""A regular expression's class of characters that are part of a word and that cleaning never removes wholly.

It is incomplete, but covers most texts.
"""
_SPACES = re.compile("[ \t\n\r]{2,}")


@dataclass(frozen=True)
class Beginnings:
    """The ways in which the tokens at the end of a prefix may differ, for one tokenizer."""

    margin: int
    """The last tokens of a prefix, this many, may differ from those of the whole text."""
    endless: re.Pattern[str] | None
    """Matches a word longer than the tokenizer's limit, which becomes one unknown token whatever its length.

    None if such a word could contain a special token.
    """
    spaces: bool
    """Whether a run of white space gives the same tokens as a single space."""

    def squeezed(self, text: str) -> str:
        """A possibly much shorter text with the same tokens: runs of spaces and overlong words are cut."""
        if self.spaces:
            text = _SPACES.sub(" ", text)
        return text if self.endless is None else self.endless.sub(r"\1", text)


def beginnings_of(fast: Tokenizer) -> Beginnings | None:
    """Inspect a tokenizer. None if it is not of BERT's kind, so that it must read whole texts."""
    parts: dict[str, Any] = json.loads(fast.to_str())
    if any((parts[name] or {}).get("type") != kind for name, kind in PARTS.items()):
        return None
    specials = [token["content"] for token in parts["added_tokens"]]
    longest: int = parts["model"]["max_input_chars_per_word"]
    # A special token that begins or ends with a letter could be cut out of a word.
    apart = not any(s[0].isalnum() or s[-1].isalnum() or len(s) > longest for s in specials)
    endless = re.compile(f"([{_LETTERS}]{{{longest + 1}}})[{_LETTERS}]+") if apart else None
    spaces = not any(sign.isspace() for sign in "".join(specials))
    return Beginnings(longest + max(map(len, specials)), endless, spaces)


def beginning(text: Text, characters: int) -> Text:
    """Cut a text, each text of a pair, or the words of a text taken together, to this many characters."""
    if isinstance(text, str):
        return text[:characters]
    if isinstance(text, tuple):
        return text[0][:characters], text[1][:characters]
    out: list[str] = []
    for word in text:
        if characters <= 0:
            break
        out.append(word[:characters])
        characters -= max(1, len(word))
    return out


def is_cut(short: Text, whole: Text) -> list[bool]:
    """Return whether `short` is shorter than `whole`: one element for a text, two for a pair."""
    if isinstance(short, list):
        return [len(short) < len(whole) or short[-1:] != list(whole[-1:])]
    if isinstance(short, str):
        return [len(short) < len(whole)]
    return [len(a) < len(b) for a, b in zip(short, whole, strict=True)]
