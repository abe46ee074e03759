"""Guesses of a text's next tokens, from the text itself and from its form.

A step reads them behind the text's last token, and its choices then say which of them came true. So a guess
decides how many tokens a step writes, and never which.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

MOST = 16
"""The most guessed tokens of a text in one step."""
BESIDE = 8
"""A step's work beside its rows, in rows. One of r rows takes about 10 + r (design note 35); the rest leaves
room for what a guess and a row's choice cost, and for shares that are not known well."""
FORM, LEAST, LONGEST = 0, 2, 6
"""The kinds of guesses: by the form, and by what followed the last 2, 3, …, or 6 and more ids."""
USUAL = (0.97, 0.0, 0.3, 0.5, 0.55, 0.6, 0.75)
"""By kind: the share of guesses that come true, as long as a text has not shown another."""
WEIGHT = 2.0
"""The number of guesses that `USUAL` counts for."""
KEPT = 0.98
"""The share of a guess that still counts one step later. So what was given up is tried again."""


def worth(texts: int) -> float:
    """Return the least probability at which a guessed row pays in a step that writes `texts` texts.

    The row costs 1 in BESIDE + texts, and saves, if it comes true, one in `texts` of a later step.
    """
    return texts / (BESIDE + texts)


class Guesses:
    """Guesses of one text, and how many of them have come true. What it guesses depends on what came true
    earlier, and on nothing that another text has."""

    def __init__(self, most: int) -> None:
        """most: the most ids that the text will have."""
        self._ids = np.zeros(most, np.int32)
        self._count = 0
        """The number of ids that are there."""
        self._tried, self._true = [0.0] * len(USUAL), [0.0] * len(USUAL)
        self._kinds: list[int] = []
        """The kinds of the newest guess, one for each token."""

    def of(self, ids: Sequence[int], form: Sequence[int], most: int, least: float) -> list[int]:
        """Guess what follows `ids`: what the form says, and then what followed such ids before.

        form: the tokens by which the form most likely goes on. most: the most tokens to guess. least: a token
        is guessed only if it comes true, with all before it, with at least this probability.
        """
        self._read(ids)
        self._kinds = []
        found, probability = list[int](), 1.0
        for id in form[:most]:
            probability *= self._share(FORM)
            if probability < least:
                return found
            found.append(id)
            self._kinds.append(FORM)
        end = self._count + len(found)
        self._ids[self._count : end] = found
        if len(found) == most or probability * max(map(self._share, range(LEAST, LONGEST + 1))) < least:
            return found
        at, length = self._place(end)
        for step in range(most - len(found) if length else 0):
            kind = min(length + step, LONGEST)
            probability *= self._share(kind)
            if probability < least:
                break
            self._ids[end + step] = self._ids[at + step]
            found.append(int(self._ids[at + step]))
            self._kinds.append(kind)
        return found

    def told(self, true: int) -> None:
        """So many tokens of the newest guess have come true, and the next one, if there is one, has not."""
        for i, kind in enumerate(self._kinds[: true + 1]):
            self._tried[kind] += 1
            self._true[kind] += i < true

    def _share(self, kind: int) -> float:
        return (self._true[kind] + WEIGHT * USUAL[kind]) / (self._tried[kind] + WEIGHT)

    def _read(self, ids: Sequence[int]) -> None:
        self._ids[self._count : len(ids)] = ids[self._count :]
        self._count = len(ids)
        for kept in (self._tried, self._true):
            kept[:] = [KEPT * count for count in kept]

    def _place(self, end: int) -> tuple[int, int]:
        """Return behind which place the most of the last ids, of all up to `end`, stood before, the latest of
        several, and the number of these ids. The number is 0 if there are fewer than LEAST."""
        ids, length = self._ids[:end], 0
        places = np.arange(0)
        for back in range(1, LONGEST + 1):
            if back > end:
                break
            if back == 1:
                still = np.flatnonzero(ids[:-1] == ids[-1])
            else:
                still = places[places >= back - 1]
                still = still[ids[still - back + 1] == ids[-back]]
            if not len(still):
                break
            places, length = still, back
        return (int(places[-1]) + 1, length) if length >= LEAST else (0, 0)
