"""Cuts documents into sentences and passages, and draws a bounded, uniform sample of a corpus's passages.

A sample's unit is the passage: sentences of one document that follow one another, up to MAX_CHARACTERS. A
task of sentences gets its texts by cutting passages into sentences, a task of paragraphs takes them whole,
and a passage holds about as many tokens as a model reads by default.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import xxhash

from hmi.stores.tensors.samples import MAX_BYTES, MAX_PASSAGES

MAX_CHARACTERS = 1_000
"""A passage has at most this many characters. Passages of English text then have up to 230 tokens."""
MIN_CHARACTERS = 12
"""Shorter passages, such as numbers and headings, are left out."""
_END = re.compile(r"""[.!?…]["'”’)\]]*\s+(?=["'“‘(\[]*[^\W_a-z])|[。！？]|\n[^\S\n]*\n""")
"""The end of a sentence, or of a paragraph."""
_ABBREVIATED = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|al|approx|cf|ca|dr|e\.g|eq|etc|fig|figs|i\.e|inc|jr|mr|mrs|ms|no|prof|ref|st|vs)\.\s*$",
    re.IGNORECASE,
)
"""A full stop after an initial or an abbreviation does not end a sentence."""


def sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, with single spaces between their words.

    The rules fit languages that end sentences with a full stop or an ideographic one. Text without any is one
    sentence.
    """
    start = 0
    for found in _END.finditer(text):
        if not _ABBREVIATED.search(text[max(start, found.end() - 12) : found.end()]):
            yield from _tidy(text[start : found.end()])
            start = found.end()
    yield from _tidy(text[start:])


def passages(document: str) -> Iterator[str]:
    """Yield the passages of a document: whole sentences as far as they fit, and pieces of longer ones."""
    held = ""
    for sentence in sentences(document):
        for piece in _pieces(sentence):
            if held and len(held) + 1 + len(piece) > MAX_CHARACTERS:
                yield held
                held = ""
            held = f"{held} {piece}" if held else piece
    if held:
        yield held


def sample_corpus(
    documents: Iterable[str], *, seed: int = 0, passages_most: int = MAX_PASSAGES, bytes_most: int = MAX_BYTES
) -> list[str]:
    """Draw a sample of a corpus's passages in one pass, with memory for the sample alone.

    A passage's hash is its place in a random order, and the sample is the longest beginning of this order
    that keeps both limits. So each distinct passage has the same chance, however often it occurs, and the
    order of the documents does not matter. The sample of two corpora together is the sample of their
    samples. Returns the passages in the random order: each beginning of it is a uniform sample, too.
    """
    drawn = _Drawn(passages_most, bytes_most)
    for document in documents:
        for passage in passages(document):
            if len(passage) >= MIN_CHARACTERS:
                drawn.add(passage, seed)
    return drawn.ordered()


@dataclass
class _Drawn:
    """The passages with the smallest hashes so far, within the limits."""

    passages_most: int
    bytes_most: int
    _bytes: int = 0
    _below: int = 1 << 64
    """A passage with this hash or a greater one did not fit."""
    _heap: list[tuple[int, bytes]] = field(default_factory=list)
    """The greatest hash first, as a negative number."""
    _held: set[int] = field(default_factory=set)

    def add(self, passage: str, seed: int) -> None:
        raw = passage.encode(errors="replace")
        place = xxhash.xxh3_64_intdigest(raw, seed)
        if place >= self._below or place in self._held:
            return
        heapq.heappush(self._heap, (-place, raw))
        self._held.add(place)
        self._bytes += len(raw)
        while len(self._heap) > self.passages_most or self._bytes > self.bytes_most:
            last, dropped = heapq.heappop(self._heap)
            self._below = -last
            self._held.remove(-last)
            self._bytes -= len(dropped)

    def ordered(self) -> list[str]:
        return [raw.decode() for _, raw in sorted(self._heap, reverse=True)]


def _tidy(text: str) -> Iterator[str]:
    words = " ".join(text.split())
    if words:
        yield words


def _pieces(sentence: str) -> Iterator[str]:
    """Cut a sentence that is longer than a passage, at spaces where there are some."""
    while len(sentence) > MAX_CHARACTERS:
        at = sentence.rfind(" ", MAX_CHARACTERS // 2, MAX_CHARACTERS + 1)
        cut = at if at > 0 else MAX_CHARACTERS
        yield sentence[:cut].rstrip()
        sentence = sentence[cut:].lstrip()
    if sentence:
        yield sentence
