"""How much of a text a tokenizer must read, so that its first tokens are those of the whole text.

BERT's tokenizers clean a text character by character, split it into words at white space, punctuation and
ideographs, and tokenise each word by itself, so later text changes no earlier word. The beginning of a text
therefore gives the same tokens as the whole text, except at its end: a word may go on, or a special token may
have begun ("[MA").
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
"""A first guess; where it was too low, GROWTH times as much is read, and so on."""
GROWTH = 4
PARTS = {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer", "model": "WordPiece"}
LETTERS = (
    "A-Za-z0-9\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u0391-\u03a1\u03a3-\u03a9\u03b1-\u03c9\u0410-\u044f"
)
LETTERS += "\u05d0-\u05ea\u0621-\u063a\u0641-\u064a\u3041-\u3096\u30a1-\u30fa\uac00-\ud7a3"
"""Characters that are part of a word and of which cleaning leaves at least one. Not complete: those of most
texts."""
_SPACES = re.compile("[ \t\n\r]{2,}")


@dataclass(frozen=True)
class Beginnings:
    """What is known of one tokenizer."""

    margin: int
    """This many tokens at the end of a text's beginning may differ from the whole text's."""
    endless: re.Pattern[str] | None
    """A word of more letters than the tokenizer looks at: it is one unknown token, however long. None: it may
    hold a special token."""
    spaces: bool
    """Whether white space means nothing but the end of a word."""

    def squeezed(self, text: str) -> str:
        """A text that gives the same tokens and may be far shorter: without what only costs time."""
        if self.spaces:
            text = _SPACES.sub(" ", text)
        return text if self.endless is None else self.endless.sub(r"\1", text)


def beginnings_of(fast: Tokenizer) -> Beginnings | None:
    """None for a tokenizer of another kind, which must read the whole text."""
    parts: dict[str, Any] = json.loads(fast.to_str())
    if any((parts[name] or {}).get("type") != kind for name, kind in PARTS.items()):
        return None
    specials = [token["content"] for token in parts["added_tokens"]]
    longest: int = parts["model"]["max_input_chars_per_word"]
    # A special token that begins or ends with a letter could be cut out of a word.
    apart = not any(s[0].isalnum() or s[-1].isalnum() or len(s) > longest for s in specials)
    endless = re.compile(f"([{LETTERS}]{{{longest + 1}}})[{LETTERS}]+") if apart else None
    spaces = not any(sign.isspace() for sign in "".join(specials))
    return Beginnings(longest + max(map(len, specials)), endless, spaces)


def beginning(text: Text, characters: int) -> Text:
    """Cuts a text, each text of a pair, or all words together to this many characters."""
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
    """Of a text, or of each of a pair: whether its beginning is less than it."""
    if isinstance(short, list):
        return [len(short) < len(whole) or short[-1:] != list(whole[-1:])]
    if isinstance(short, str):
        return [len(short) < len(whole)]
    return [len(a) < len(b) for a, b in zip(short, whole, strict=True)]
