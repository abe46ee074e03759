"""Draws texts for a teacher from the sample of a domain's corpus: those nearest to a tenant's rows.

The passages are cut to texts as long as the rows. Nearness is the cosine of TF-IDF vectors over the rows' own
words. Every row gets an equal share of the texts, its nearest ones, so that rare labels and subjects have
texts, too (docs/design/0021-pool-and-leaves.md).
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from hmi.model.text.splitting import splitter_of
from hmi.training.data.passages import sentences
from hmi.training.data.rows import Row
from hmi.training.tasks.word_patterns import word_patterns

_ALMOST_ALL = 0.9
"""A pair of markers belongs to the form of the rows if this fraction of them has it exactly once."""
_LIKELY = 0.5
"""A word is taken for a marked one if rows mark it in this fraction of its occurrences."""
_LONGEST_MARK = 6
"""At most this many words are marked together."""
_OPENING = re.compile(r"<<|\[\[|\{\{|<\w+>|\[\w+\]")
_CLOSING = {"<<": ">>", "[[": "]]", "{{": "}}"}
_CORE = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)


@dataclass(frozen=True)
class _Marking:
    """The markers of rows, and how often the rows mark a word.

    Rows for relations mark the two things they are about, such as `<< aspirin >> inhibits [[ COX-2 ]]`. A
    text from a corpus has no markers, and a teacher's label for it would say nothing. So words that rows
    often mark get markers in the drawn texts, too.
    """

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
        runs = groupby(range(len(words)), lambda i: shares[i] >= _LIKELY)
        spans = [_span(list(run)) for likely, run in runs if likely]
        if len(spans) >= wanted:
            return spans
        best = sorted(range(len(words)), key=lambda i: (-shares[i], i))[: wanted + 1]
        return [(i, i + 1) for i in sorted(best)]


def learn_marking(texts: Sequence[str]) -> _Marking | None:
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
    return _Marking(pairs, {word: inside[word] / count for word, count in all_words.items()}, unseen)


def _is_common(mark: str, texts: Sequence[str]) -> bool:
    closing = _closing(mark)
    having = sum(t.count(mark) == t.count(closing) == 1 and t.index(mark) < t.index(closing) for t in texts)
    return having >= _ALMOST_ALL * len(texts)


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
    return run[0], run[0] + min(len(run), _LONGEST_MARK)


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


MAX_ROWS = 4_000
"""The texts are drawn for at most this many rows, a random sample of more."""
MAX_CANDIDATES = 120_000
"""At most this many texts are compared with the rows: the first ones."""
MAX_WORDS = 512
"""A text keeps at most this many words, more than a model reads."""
LONGEST = 0.95
"""A text has at most as many words as the row at this quantile of lengths."""
COMMON = 0.2
"""A word in more than this fraction of the candidates says nothing about nearness."""
NEAREST = 4
"""For each row this many times its share of the texts are found, since rows have nearest texts in common."""
BLOCK = 64
"""Rows that are compared with all candidates at once."""
_WORD = re.compile(r"\w+")
_CLAUSE = re.compile(r"(?<=[,;:])\s+|\s+(?=[–—(])")


def draw_pool(
    rows: Sequence[Row],
    texts: Iterable[str],
    most: int,
    seed: int,
    *,
    held_out: Sequence[Row] = (),
    near: bool = True,
) -> list[Row]:
    """Draw at most `most` texts for a teacher, unlabelled and in the form of the rows.

    rows: the tenant's training rows. texts: passages of a domain's sample. The texts are about as long as the
    rows, have the markers that all rows have, and are split into words as the rows are. None of them equals a
    row or a held-out row, whatever its case and marks. With `near` they are the nearest to the rows, nearest
    first, and then random ones if fewer are near; else all are random. The result depends on the arguments
    alone. Rows that are pairs of texts, or have no words, get none.
    """
    if most < 1 or not rows or isinstance(rows[0].text, tuple):
        return []
    rng = random.Random(seed)
    form = _form_of(rows)
    own = [_plain(form.plain(row)) for row in rows]
    if not any(own):
        return []
    known = {*own, *(_plain(form.plain(row)) for row in held_out)}
    found = list(islice(_candidates(texts, form, known, rng), MAX_CANDIDATES))
    some = own if len(own) <= MAX_ROWS else rng.sample(own, MAX_ROWS)
    order = _nearest(some, [key for _, key in found], most) if near else []
    taken = set(order)
    rest = [i for i in range(len(found)) if i not in taken]
    order += rng.sample(rest, min(len(rest), most - len(order)))
    return [Row(form.written(found[i][0], rng), "") for i in order]


@dataclass(frozen=True)
class _Form:
    """The form of the rows' texts: their words, markers and lengths."""

    words: tuple[str, ...] | None
    """The patterns by which rows of words were split; None if rows are plain texts."""
    marking: _Marking | None
    lengths: tuple[tuple[int, int], ...]
    """The numbers of sentences and of words of each row."""
    longest: int
    """The number of words that few rows exceed."""

    def plain(self, row: Row) -> str:
        """A row's text without markers."""
        text = " ".join(row.text) if isinstance(row.text, list) else str(row.text)
        return text if self.marking is None else self.marking.without(text)

    def fits(self, text: str) -> bool:
        """Return whether a text can have this form."""
        return self.marking is None or self.marking.fits(text)

    def written(self, text: str, rng: random.Random) -> str | list[str]:
        """A drawn text in this form."""
        if self.words is not None:
            return splitter_of(self.words).split(text).words
        return text if self.marking is None else self.marking.marked(text, rng)


def _form_of(rows: Sequence[Row]) -> _Form:
    lists = [row.text for row in rows if isinstance(row.text, list)]
    marking = None if lists else learn_marking([str(row.text) for row in rows])
    form = _Form(word_patterns(lists) if lists else None, marking, (), 0)
    plain = [form.plain(row) for row in rows]
    lengths = [(sum(1 for _ in sentences(text)), len(_WORD.findall(text))) for text in plain]
    longest = sorted(words for _, words in lengths)[math.ceil(LONGEST * (len(rows) - 1))]
    return replace(form, lengths=tuple(lengths), longest=min(MAX_WORDS, longest))


def _candidates(
    texts: Iterable[str], form: _Form, known: set[str], rng: random.Random
) -> Iterator[tuple[str, str]]:
    """Cut passages to texts that are as long as the rows, and yield each with its key (`_plain`).

    A text has as many sentences as a random row, or more if it would have less than a third of its words.
    Each is yielded once. Sentences and texts whose key is in `known` are left out.
    """
    for passage in texts:
        held: list[tuple[str, str]] = []
        count, words = rng.choice(form.lengths)
        for sentence in sentences(passage):
            key = _plain(sentence)
            if not key or key in known:
                continue
            held.append((sentence, key))
            if len(held) < count or 3 * sum(1 + key.count(" ") for _, key in held) < words:
                continue
            text, key = (" ".join(parts) for parts in zip(*held, strict=True))
            cut = _cut(text, form.longest)
            if cut != text:
                text, key = cut, _plain(cut)
            if key not in known and form.fits(text):
                known.add(key)
                yield text, key
            held, (count, words) = [], rng.choice(form.lengths)


def _cut(text: str, longest: int) -> str:
    """A text of at most `longest` words between spaces: whole clauses, if they are at least half of that."""
    words = text.split()
    if len(words) <= longest:
        return text
    kept: list[str] = []
    for clause in _CLAUSE.split(text):
        if len(kept) + len(clause.split()) > longest:
            break
        kept += clause.split()
    return " ".join(kept if 2 * len(kept) >= longest else words[:longest])


def _plain(text: str) -> str:
    """The words of a text: texts that differ in case, spaces and punctuation alone have the same."""
    return " ".join(_WORD.findall(text.casefold()))


def _nearest(rows: Sequence[str], candidates: Sequence[str], most: int) -> list[int]:
    """The indices of the candidates nearest to the rows, at most `most`, each once. Both are given as keys.

    First each row's nearest one, then each row's second, and so on. A row is not given texts that share no
    word with it but common ones.
    """
    if not candidates:
        return []
    weights, own = _vectors(rows, candidates)
    count = min(len(candidates), NEAREST * math.ceil(most / len(rows)) + NEAREST)
    blocks = [_ranked(own[at : at + BLOCK], weights, count) for at in range(0, len(rows), BLOCK)]
    places = np.concatenate([places for places, _ in blocks]).T  # [rank, row]
    scores = np.concatenate([scores for _, scores in blocks]).T
    order = np.argsort(-scores, axis=1, kind="stable")
    flat = np.take_along_axis(places, order, 1)[np.take_along_axis(scores, order, 1) > 0]
    _, first = np.unique(flat, return_index=True)
    chosen: list[int] = flat[np.sort(first)][:most].tolist()
    return chosen


def _ranked(
    rows: csr_array, candidates: csr_array, count: int
) -> tuple[NDArray[np.intp], NDArray[np.float32]]:
    """The `count` best candidates of each row and their scores, best first; [rows, count] both."""
    products: NDArray[np.float32] = (rows @ candidates.T).toarray()
    best = np.argpartition(products, -count, axis=1)[:, -count:]
    scores = np.take_along_axis(products, best, 1)
    order = np.lexsort((best, -scores), axis=1)
    return np.take_along_axis(best, order, 1), np.take_along_axis(scores, order, 1)


def _vectors(rows: Sequence[str], candidates: Sequence[str]) -> tuple[csr_array, csr_array]:
    """TF-IDF vectors of (candidates, rows) over the words of the rows, each of length 1.

    A candidate's length also counts its words that no row has, so that a text of other words is not near.
    """
    vocabulary = {word: i for i, word in enumerate(sorted({w for row in rows for w in row.split()}))}
    counts, others = _counted(candidates, vocabulary)
    found = np.asarray((counts > 0).sum(axis=0)).ravel()
    idf = np.log((1 + len(candidates)) / (1 + found)) * (found <= max(1, COMMON * len(candidates)))
    rare = np.log(1 + len(candidates)) / 2
    own, _ = _counted(rows, vocabulary)
    return _scaled(counts, idf, others * rare**2), _scaled(own, idf, np.zeros(len(rows)))


def _counted(texts: Sequence[str], vocabulary: dict[str, int]) -> tuple[csr_array, NDArray[np.float64]]:
    """Which words of the vocabulary each text has [texts, words], and its number of other words [texts]."""
    ids, starts, others = list[int](), [0], np.zeros(len(texts))
    for i, text in enumerate(texts):
        words = set(text.split())
        known = [vocabulary[word] for word in words if word in vocabulary]
        others[i] = len(words) - len(known)
        ids += sorted(known)
        starts.append(len(ids))
    shape = (len(texts), len(vocabulary))
    return csr_array((np.ones(len(ids), np.float32), ids, starts), shape=shape), others


def _scaled(counts: csr_array, idf: NDArray[np.float64], others: NDArray[np.float64]) -> csr_array:
    """Weigh words by `idf` and scale each text to length 1.

    others [texts]: what words without a place in `counts` add to a text's squared length.
    """
    weighed = (counts * idf).tocsr().astype(np.float32)
    lengths = np.sqrt(np.asarray(weighed.multiply(weighed).sum(axis=1)).ravel() + others)
    scale = np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    scaled: csr_array = (weighed.multiply(scale[:, None])).tocsr().astype(np.float32)
    scaled.eliminate_zeros()
    return scaled
