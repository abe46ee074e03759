"""Splitting of raw text into words with their places, as the rows of a tagging model were split.

Words never cross white space. Inside what stands between two spaces, letters and digits stay together, a
combining mark or the rest of an emoji stays with the character before it, and each ideograph is a word. Every
other character is a mark. Whether a mark is joined to its neighbours differs between rows: some have the word
`IL-2`, others the words `IL`, `-`, `2`. So a model has patterns, learnt from its rows
(`hmi.training.tasks.word_patterns`), and marks without a pattern follow defaults. Loads no torch.

A pattern is a mark with its neighbours, `a` for a letter and `0` for a digit, written with a space where
words end:

- `a-a` keeps a hyphen between letters inside its word, `a - a` makes it a word, `a 'a` splits `it's` before
  the apostrophe;
- `a.` keeps a mark at the end of a word, as in `inc.`, and `a .` splits it off; `$0` and `$ 0` do the same
  for a mark at the beginning;
- `..` joins two marks, and `) .` splits them;
- `(=-LRB-` lets the model read another word for a mark: treebanks write brackets so.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

ALIKE = {"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"'} | dict.fromkeys(
    "\u2010\u2011\u2012\u2013\u2212", "-"
)
"""A mark without a pattern of its own follows that of this one."""
ESCAPES = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""Words that stand for brackets in rows from treebanks."""
INNER_JOINED = frozenset("-'._&@/+")
"""Marks that stay inside a word between letters or digits, unless a pattern says otherwise."""
NUMBER_JOINED = frozenset(",:")
"""The same between two digits."""
ZERO_WIDTH_JOINER = "\u200d"
IDEOGRAPH = "\u5b57"
"""The kind of an ideograph. Ideographs need no pattern, since each is a word."""
_IDEOGRAPHS = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)
"""The ranges of BERT's tokenizers, which make each of these characters a word, too."""
_FLAG_LETTERS = range(0x1F1E6, 0x1F200)
_SKIN_TONES = range(0x1F3FB, 0x1F400)
KEPT_CHUNKS = 1 << 14
"""The most chunks between spaces whose splits are kept."""
LONGEST_KEPT = 64
"""A longer chunk is split anew each time, so that what is kept stays small."""

Span = tuple[int, int]
"""The start and end of a word, in code points."""


@dataclass(frozen=True)
class SplitText:
    """The words of a text, and their places in it."""

    words: list[str]
    """The words as the model reads them: the text of their spans, but for words that rows write otherwise."""
    spans: list[Span]

    def upto(self, count: int) -> SplitText:
        """The first `count` words."""
        return self if count >= len(self.words) else SplitText(self.words[:count], self.spans[:count])


@dataclass(frozen=True)
class Cluster:
    """A character with what belongs to it."""

    kind: str
    """`a` for a letter, `0` for a digit, IDEOGRAPH, or the mark itself."""
    start: int
    end: int

    @property
    def mark(self) -> bool:
        return self.kind not in ("a", "0", IDEOGRAPH)


class Splitter:
    """Splits texts by one model's patterns. Thread-safe."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._learnt = {pattern.replace(" ", ""): pattern for pattern in patterns}
        self._written = {mark: word for word, mark in ESCAPES.items() if f"{mark}={word}" in patterns}
        """The words that the model reads in place of some marks."""

    def split(self, text: str) -> SplitText:
        """Split a text into words. Every character but white space is in the span of exactly one word."""
        words: list[str] = []
        spans: list[Span] = []
        end = 0
        for chunk in text.split():
            start = text.index(chunk, end)
            end = start + len(chunk)
            if chunk.isascii() and chunk.isalnum():
                words.append(chunk)
                spans.append((start, end))
                continue
            for a, b in _split_cached(self, chunk) if len(chunk) <= LONGEST_KEPT else self.split_chunk(chunk):
                words.append(self._written.get(chunk[a:b], chunk[a:b]) if self._written else chunk[a:b])
                spans.append((start + a, start + b))
        return SplitText(words, spans)

    def split_chunk(self, chunk: str) -> list[Span]:
        """The words of a text without white space."""
        clusters = clusters_of(chunk)
        inner = [after.start for i, after in enumerate(clusters[1:], 1) if self._breaks(clusters, i)]
        return list(pairwise([0, *inner, len(chunk)]))

    def _breaks(self, clusters: Sequence[Cluster], at: int) -> bool:
        """Return whether a word begins at a cluster that is not the chunk's first."""
        before, after = clusters[at - 1], clusters[at]
        if IDEOGRAPH in (before.kind, after.kind):
            return True
        if before.mark and after.mark:
            return " " in self._pattern(before.kind + after.kind)
        if after.mark:
            return " " in self._pattern(context(clusters, at)).partition(after.kind)[0]
        return before.mark and " " in self._pattern(context(clusters, at - 1)).partition(before.kind)[2]

    def _pattern(self, name: str) -> str:
        """The pattern of a mark with its neighbours: learnt, or that of a mark like it, or the default."""
        return self._learnt.get(name) or self._alike(name) or default_pattern(name)

    def _alike(self, name: str) -> str | None:
        alike = "".join(ALIKE.get(char, char) for char in name)
        found = self._learnt.get(alike) if alike != name else None
        rest = iter(name)
        return None if found is None else "".join(c if c == " " else next(rest) for c in found)


@lru_cache(maxsize=256)
def splitter_of(patterns: tuple[str, ...]) -> Splitter:
    """The splitter of a model's patterns."""
    return Splitter(patterns)


@lru_cache(maxsize=KEPT_CHUNKS)
def _split_cached(splitter: Splitter, chunk: str) -> list[Span]:
    return splitter.split_chunk(chunk)


def clusters_of(chunk: str) -> list[Cluster]:
    """The clusters of a text without white space."""
    found: list[Cluster] = []
    for i, char in enumerate(chunk):
        before = found[-1] if found else None
        if before is not None and _continues(chunk, i, before):
            found[-1] = Cluster(before.kind, before.start, i + 1)
        else:
            found.append(Cluster(kind_of(char), i, i + 1))
    return found


def kind_of(char: str) -> str:
    """The kind of a cluster that begins with this character."""
    if char.isalpha():
        return IDEOGRAPH if any(a <= ord(char) <= b for a, b in _IDEOGRAPHS) else "a"
    return "0" if char.isnumeric() else char


def context(clusters: Sequence[Cluster], at: int) -> str:
    """The pattern of the mark at `at`, without spaces: the mark with the letter or digit on each side."""
    left = clusters[at - 1].kind if at and not clusters[at - 1].mark else ""
    right = clusters[at + 1].kind if at + 1 < len(clusters) and not clusters[at + 1].mark else ""
    return f"{left}{clusters[at].kind}{right}"


def default_pattern(name: str) -> str:
    """The pattern of a mark that rows say nothing about."""
    if len(name) == 3:
        mark = ALIKE.get(name[1], name[1])
        joined = mark in INNER_JOINED or (mark in NUMBER_JOINED and name[0] == name[2] == "0")
    else:
        joined = len(name) == 2 and name[0] == name[1]
    return name if joined else " ".join(name)


def _continues(chunk: str, at: int, before: Cluster) -> bool:
    """Return whether a character belongs to the cluster before it."""
    char = chunk[at]
    if char.isascii():
        return False
    if chunk[at - 1] == ZERO_WIDTH_JOINER and before.mark:
        return True  # the next part of an emoji
    if ord(char) in _FLAG_LETTERS:
        return before.end - before.start == 1 and ord(chunk[before.start]) in _FLAG_LETTERS
    return ord(char) in _SKIN_TONES or unicodedata.category(char) in ("Mn", "Mc", "Me", "Cf")
