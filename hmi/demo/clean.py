"""Text helpers: excerpts, sentences, words, and a split that depends on a key alone."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any

_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\]%][.!?])\s+(?=[A-Z(\[])")
_WORD = re.compile(r"[^\W_]+(?:[-'’.,/][^\W_]+)*|[^\w\s]")
_QUOTED = re.compile(r"\b(?:writes?|wrote)\b")
_SPACE = re.compile(r"\s+")
_SUBJECT_WORDS = 8
_SIGNATURE_WORDS = 10


def squeeze(text: str) -> str:
    """Return the text on one line with single spaces."""
    return _SPACE.sub(" ", text).strip()


def excerpt(text: str, words: int, start: int = 0) -> str:
    return " ".join(text.split()[start : start + words])


def sentences(text: str) -> list[str]:
    """Split at each full stop that is followed by a capital. It is crude, but the same for every tenant."""
    return [s for s in (squeeze(part) for part in _SENTENCE_END.split(text)) if s]


def words_of(text: str) -> list[str]:
    """Return words and punctuation marks, as a tagging tenant would send them."""
    return _WORD.findall(text)


def news_body(text: str) -> str:
    """Return a newsgroup article without what gives its group away: subject, attribution and signature.

    The source has neither lines nor punctuation. So the first words count as the subject, everything up to
    the last "writes" near the start as an attribution, and the last words as a signature. Words that are
    quoted inside the body remain.
    """
    head = " ".join(text.split()[:60])
    attributions = list(_QUOTED.finditer(head))
    words = text[attributions[-1].end() :].split() if attributions else text.split()[_SUBJECT_WORDS:]
    return " ".join(words[: max(0, len(words) - _SIGNATURE_WORDS)])


def split_of(key: str, seed: int = 0, *, dev: float = 0.1, test: float = 0.2) -> str:
    """Return "train", "dev" or "test" by a hash of `key`: the same for every tenant."""
    digest = hashlib.blake2b(f"{seed} {key}".encode(), digest_size=8).digest()
    place = int.from_bytes(digest, "big") / 2**64
    return "test" if place < test else "dev" if place < test + dev else "train"


def fold(row: Mapping[str, Any]) -> str:
    """Return the row's text in lower case with letters and digits only, to compare texts."""
    tokens = " ".join(row.get("tokens", []))
    text = f"{row.get('text', row.get('prompt', ''))} {row.get('text_pair', '')} {tokens}"
    return re.sub(r"[\W_]+", "", text).lower()
