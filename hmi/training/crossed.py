"""Crossed pairs: unlabelled pairs of texts for a teacher to label, made from the labelled ones.

Copies with replaced words change what a pair's label depends on, which words the texts share, at random. A
first text beside another row's second text is natural language on both sides. Two texts drawn at random share
next to nothing and teach little, so most of them are near each other: they share rare words.
"""

from __future__ import annotations

import math
import random
import re
from collections import defaultdict
from collections.abc import Sequence

from hmi.training.data.rows import Row

NEAR_SHARE = 0.75
"""The share of the pairs whose texts are near each other. The others are drawn at random."""
NEAREST = 8
"""A near partner is drawn from this many."""
MOST_ROWS = 64
"""A word that more second texts have says little, and is not looked up."""
_WORD = re.compile(r"\w+")


def crossed_pairs(rows: Sequence[Row], most: int, seed: int) -> list[Row]:
    """Pair first texts with other rows' second texts: at most `most` pairs, each once, without labels.

    rows: of pairs of texts; a pair of theirs is not made again. Rows are drawn by `seed`. There are fewer
    than `most` pairs if few texts share words. Returns no pair for rows of single texts.
    """
    pairs = [row.text for row in rows if isinstance(row.text, tuple)]
    seconds = list(dict.fromkeys(second for _, second in pairs))
    if len(pairs) < 2 or len(seconds) < 2:
        return []
    rng, near = random.Random(seed), _Near(seconds)
    known, found = set(pairs), dict[tuple[str, str], None]()
    for _ in range(-(-most // len(pairs)) * 2):  # some draws give a pair that is known
        for first, _ in rng.sample(pairs, len(pairs)):
            if len(found) == most:
                return [Row(pair, "") for pair in found]
            nearest = near.to(first) if rng.random() < NEAR_SHARE else []
            pair = first, rng.choice(nearest or seconds)
            if pair not in known:
                found[pair] = None
    return [Row(pair, "") for pair in found]


class _Near:
    """Finds the texts that share rare words with a text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts, self._having = texts, defaultdict[str, list[int]](list)
        self._known: dict[str, list[str]] = {}
        for i, text in enumerate(texts):
            for word in sorted(_words(text)):
                self._having[word].append(i)

    def to(self, text: str) -> list[str]:
        """The NEAREST texts by the summed rarity of the words they share with `text`."""
        if text not in self._known:
            scores: dict[int, float] = defaultdict(float)
            for word in sorted(_words(text)):
                having = self._having.get(word, ())
                if 0 < len(having) <= MOST_ROWS:
                    for i in having:
                        scores[i] += math.log((1 + len(self._texts)) / len(having))
            best = sorted(scores, key=lambda i: (-scores[i], i))[: NEAREST + 1]
            self._known[text] = [self._texts[i] for i in best]
        return self._known[text]


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text.lower()))
