"""Marks words of unlabelled texts as a tenant's rows mark them.

Rows for relations mark the two things they are about, such as `<< aspirin >> inhibits [[ COX-2 ]]`. A text
from a corpus has no markers, and a teacher's label for it would say nothing. So words that rows often mark
get markers in the drawn texts, too.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

ALMOST_ALL = 0.9
"""A pair of markers belongs to the form of the rows if this fraction of them has it exactly once."""
LIKELY = 0.5
"""A word is taken for a marked one if rows mark it in this fraction of its occurrences."""
LONGEST = 6
"""At most this many words are marked together."""
_OPENING = re.compile(r"<<|\[\[|\{\{|<\w+>|\[\w+\]")
_CLOSING = {"<<": ">>", "[[": "]]", "{{": "}}"}
_CORE = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


@dataclass(frozen=True)
class Marking:
    """The markers of rows, and how often the rows mark a word."""

    pairs: tuple[tuple[str, str], ...]
    """The text before and after the marked words of each kind, with its spaces."""
    share: dict[str, float]
    """Word -> the fraction of its occurrences that are marked."""
    unseen: float
    """The same of words that the rows have once, which stands for words that they lack."""

    def without(self, text: str) -> str:
        """A row's text without its markers."""
        for opening, closing in self.pairs:
            text = text.replace(opening.strip(), "").replace(closing.strip(), "")
        return " ".join(text.split())

    def fits(self, text: str) -> bool:
        """Return whether a text can be marked: it has enough words, and none of the markers yet."""
        marks = [mark.strip() for pair in self.pairs for mark in pair]
        return len(text.split()) >= 2 * len(self.pairs) and not any(mark in text for mark in marks)

    def marked(self, text: str, rng: random.Random) -> str:
        """The text with one marker of each kind, around words that rows often mark.

        The marked words are near to one another, since those of rows are. Their kinds are random.
        """
        words, wanted = text.split(), len(self.pairs)
        spans = self._spans(words, wanted)
        at = rng.randrange(max(1, len(spans) - wanted))
        chosen = sorted(rng.sample(spans[at : at + wanted + 1], wanted), reverse=True)
        for (start, end), (opening, closing) in zip(chosen, rng.sample(self.pairs, wanted), strict=True):
            before, core, after = _parts(" ".join(words[start:end]))
            words[start:end] = [f"{before}{opening}{core}{closing}{after}"]
        return " ".join(words)

    def _spans(self, words: Sequence[str], wanted: int) -> list[tuple[int, int]]:
        """Runs of words that rows would mark, or if there are too few, the likeliest single words."""
        shares = [self.share.get(key, self.unseen) if (key := _key(word)) else 0.0 for word in words]
        runs = groupby(range(len(words)), lambda i: shares[i] >= LIKELY)
        spans = [_span(list(run)) for likely, run in runs if likely]
        if len(spans) >= wanted:
            return spans
        best = sorted(range(len(words)), key=lambda i: (-shares[i], i))[: wanted + 1]
        return [(i, i + 1) for i in sorted(best)]


def learn_marking(texts: Sequence[str]) -> Marking | None:
    """Learn how rows mark their words. None if they have no markers in common."""
    known = [mark for mark in dict.fromkeys(_OPENING.findall(texts[0])) if _is_common(mark, texts)]
    if not known:
        return None
    pairs = tuple((_spaced(mark, texts), _spaced(_closing(mark), texts)) for mark in known)
    inside, all_words = Counter[str](), Counter[str]()
    for text in texts:
        for mark in known:
            inside.update(_keys(text.partition(mark)[2].partition(_closing(mark))[0]))
        for mark in known:
            text = text.replace(mark, " ").replace(_closing(mark), " ")
        all_words.update(_keys(text))
    once = [word for word, count in all_words.items() if count == 1]
    unseen = sum(inside[word] for word in once) / max(1, len(once))
    return Marking(pairs, {word: inside[word] / count for word, count in all_words.items()}, unseen)


def _is_common(mark: str, texts: Sequence[str]) -> bool:
    closing = _closing(mark)
    having = sum(t.count(mark) == t.count(closing) == 1 and t.index(mark) < t.index(closing) for t in texts)
    return having >= ALMOST_ALL * len(texts)


def _closing(opening: str) -> str:
    return _CLOSING.get(opening) or f"{opening[0]}/{opening[1:]}"


def _spaced(mark: str, texts: Sequence[str]) -> str:
    """A marker with the space between it and the words that it marks, if most rows have one."""
    opens = _OPENING.fullmatch(mark) is not None
    spaced = sum((f"{mark} " if opens else f" {mark}") in text for text in texts)
    if 2 * spaced < len(texts):
        return mark
    return f"{mark} " if opens else f" {mark}"


def _span(run: list[int]) -> tuple[int, int]:
    return run[0], run[0] + min(len(run), LONGEST)


def _parts(text: str) -> tuple[str, str, str]:
    """The punctuation before a text, the text, and the punctuation after it."""
    found = _CORE.fullmatch(text)
    assert found is not None, "the pattern fits every text"
    before, core, after = found.groups()
    return (before, core, after) if core else ("", text, "")


def _key(word: str) -> str:
    return _parts(word)[1].casefold() if any(char.isalnum() for char in word) else ""


def _keys(text: str) -> Iterable[str]:
    return filter(None, map(_key, text.split()))
