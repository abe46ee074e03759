"""Learns how training rows split marks from words, so that raw texts are split alike
(`hmi.model.text.splitting`).

Rows do not say where their text had spaces. A mark inside a word had none. A mark that stands apart from both
its neighbours may have had some: a comma does, a hyphen in rows that split `IL - 2` does not. So a mark that
is now and then joined to both neighbours in one word counts as joined, since texts write it so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice, pairwise

from hmi.model.text.splitting import ALIKE, ESCAPES, Cluster, clusters_of, default_pattern

RARE = 0.1
"""A mark between two letters or digits is joined if this fraction of its occurrences is, since most of the
others had a space in the text."""
MAX_PATTERNS = 256
"""The most patterns of a model. The commonest marks are kept."""
APOSTROPHE = "'"


def word_patterns(rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    """Return the patterns by which these rows of words were split, as far as they differ from the defaults.

    The commonest come first.
    """
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    escaped = set[str]()
    for words in rows:
        escaped.update(ESCAPES.keys() & words)
        for pattern in _patterns_in(words):
            counts[pattern.replace(" ", "")][pattern] += 1
    chosen = {name: _likely_pattern(name, found) for name, found in counts.items()}
    order = sorted(chosen, key=lambda name: (-counts[name].total(), name))
    learnt = (chosen[name] for name in order if chosen[name] != default_pattern(name))
    written = (f"{ESCAPES[word]}={word}" for word in sorted(escaped))
    return (*written, *islice(learnt, MAX_PATTERNS))


def _likely_pattern(name: str, found: Counter[str]) -> str:
    """The pattern of a mark, from how often the rows have each."""
    apart = " ".join(name)
    if len(name) < 3:
        return name if found[name] > found[apart] else apart
    clitic = f"{name[0]} {name[1:]}"
    best = max((name, clitic), key=lambda pattern: found[pattern])
    return best if found[best] and found[best] >= RARE * found[apart] else apart


def _patterns_in(words: Sequence[str]) -> Iterable[str]:
    """Yield a pattern for each mark of a row and its neighbours, with spaces where the row's words end."""
    row: list[tuple[Cluster, bool]] = [
        (cluster, i == 0)
        for word in words
        if word and word not in ESCAPES and not any(char.isspace() for char in word)
        for i, cluster in enumerate(clusters_of(word))
    ]
    for (before, _), (after, begins) in pairwise(row):
        if before.mark and after.mark:
            yield _joined((before, after), (begins,))
    for at, (cluster, begins) in enumerate(row):
        if cluster.mark:
            left = row[at - 1] if at else None
            right = row[at + 1] if at + 1 < len(row) else None
            yield from _of_mark(
                left and left[0], cluster, right and right[0], begins, right is None or right[1]
            )


def _of_mark(
    left: Cluster | None, mark: Cluster, right: Cluster | None, begins: bool, ends: bool
) -> Iterable[str]:
    """The patterns of a mark: between its neighbours, at the end of a word and at the beginning of one.

    begins, ends: whether the row's word begins, or ends, at the mark.
    """
    word_left = left is not None and not left.mark
    word_right = right is not None and not right.mark
    clitic = begins and not ends and word_left and ALIKE.get(mark.kind, mark.kind) == APOSTROPHE
    if left is not None and right is not None and word_left and word_right and (begins == ends or clitic):
        yield _joined((left, mark, right), (begins, ends))
    if left is not None and word_left and ends:
        yield _joined((left, mark), (begins,))
    if right is not None and word_right and begins and not clitic:
        yield _joined((mark, right), (ends,))


def _joined(clusters: Sequence[Cluster], breaks: Sequence[bool]) -> str:
    """A pattern of these clusters, with a space wherever a word ends."""
    rest = zip(clusters[1:], breaks, strict=True)
    return clusters[0].kind + "".join(" " * apart + cluster.kind for cluster, apart in rest)
