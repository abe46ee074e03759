"""The choice of the next token from the scores of all words.

What a guide does not allow is left out first. Then the order is that of transformers: penalties, temperature,
top-k, top-p, min-p. A choice depends only on the scores, the sequence's ids, its guide, its seed and the
token's number. So a seed gives the same text whatever else runs, and after a sequence was set back.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from hmi.execution.decoding.scores import FEW, GuidedRow, HostRow, ScoreRow
from hmi.model.text.guides import Guide
from hmi.model.text.sampling import Sampling

MANY = 4096
"""The number that it looks at next. Sorting all words takes as long as a layer."""
COLD = 1e-5
"""Below this temperature the best word is taken."""
NONE = "no word has a score that is a number"


class Chosen(NamedTuple):
    """A chosen token. Log-probabilities are natural, by the model itself: no penalties, no temperature."""

    id: int
    logprob: float | None = None
    best: Sequence[tuple[int, float]] = ()
    """The best words' ids and log-probabilities, the best first."""


@dataclass
class Sampler:
    """Chooses the tokens of one sequence, one after another."""

    wants: Sampling
    prompt: Sequence[int]
    times: Counter[int] = field(default_factory=Counter)
    """How often each id was chosen."""

    def __post_init__(self) -> None:
        self._seen = set(self.prompt)

    @property
    def scale(self) -> float:
        """The factor of scores in a draw: 1 / temperature. It is 1 if nothing is drawn."""
        temperature = self.wants.temperature
        return 1.0 if temperature < COLD else 1 / temperature

    def choose(self, row: ScoreRow, guide: Guide | None = None) -> Chosen:
        """Choose the next token, and count it. Returns it.

        row: the words' scores. guide: allows some words; None: all. Raises ValueError if the best score is
        infinite, or if all scores of words that may come are -inf or not-a-number.
        """
        wants = self.wants
        told: list[tuple[int, float]] = []
        total = 0.0
        if wants.logprobs is not None:
            ids, scores, total = row.best(max(1, wants.logprobs))
            pairs = zip(ids.tolist(), scores.tolist(), strict=True)
            told = [(i, x - total) for i, x in pairs][: wants.logprobs]
        changed = self._penalised(row if guide is None else GuidedRow(row, guide))
        chosen = self._best(changed) if wants.temperature < COLD else self._drawn(changed)
        self.times[chosen] += 1
        self._seen.add(chosen)
        return Chosen(chosen) if wants.logprobs is None else Chosen(chosen, row.of(chosen) - total, told)

    def _penalised(self, row: ScoreRow) -> ScoreRow:
        """The row after penalties: itself, if there are none."""
        wants = self.wants
        repeated = wants.repetition_penalty != 1
        written = (wants.presence_penalty or wants.frequency_penalty) and self.times
        if not (repeated or written):
            return row
        scores = row.whole().copy()
        if repeated:
            there = np.array(list(self._seen), np.int64)
            factor = np.float32(wants.repetition_penalty)
            scores[there] = np.where(scores[there] > 0, scores[there] / factor, scores[there] * factor)
        if written:
            there, times = (np.array(part) for part in (list(self.times), list(self.times.values())))
            penalty = wants.presence_penalty + wants.frequency_penalty * times
            scores[there] -= penalty.astype(np.float32)
        return HostRow(scores)

    def _best(self, row: ScoreRow) -> int:
        word, score = row.first()
        if not math.isfinite(score):
            raise ValueError(NONE)
        return word

    def _drawn(self, row: ScoreRow) -> int:
        """Draw a word by its probability, and return its id.

        The seed and the token's number give a number from 0 to 1. Probabilities are added up from the
        greatest on. The word at which the sum first exceeds that number is drawn.
        """
        wants, place = self.wants, self.times.total()
        number = xxhash.xxh3_64_intdigest(place.to_bytes(8, "little"), seed=wants.seed) / 2**64
        ids, scores, total = row.best(FEW, self.scale)
        if not len(scores) or not math.isfinite(scores[0]):
            raise ValueError(NONE)
        shares = np.exp(scores.astype(np.float64) / wants.temperature - total)
        found = self._place(shares, number, whole=len(ids) < FEW)
        for many in (MANY, None):
            if found is None:
                every = row.whole()
                ids = _sorted_best(every, len(every) if many is None else many)
                shares = np.exp(every[ids].astype(np.float64) / wants.temperature - total)
                found = self._place(shares, number, whole=len(ids) == len(every))
        assert found is not None
        return int(ids[found])

    def _place(self, shares: NDArray[np.float64], number: float, *, whole: bool) -> int | None:
        """Return the index of the drawn word in `shares`. None: the draw needs more words.

        shares: probabilities of the best words, falling. number: from 0 to 1; it draws. whole: `shares` has
        all words.
        """
        wants, kept = self.wants, len(shares)
        if 0 < wants.top_k <= kept:
            kept, whole = wants.top_k, True
            shares = shares[:kept] / shares[:kept].sum()
        elif wants.top_k and not whole:
            return None
        sums = shares.cumsum()
        # The first word that reaches the sum stays.
        within = int(np.searchsorted(sums, wants.top_p)) + 1 if wants.top_p < 1 else len(shares) + 1
        enough = 1 + int(np.searchsorted(-shares[1:], -wants.min_p * shares[0], side="right"))
        kept = min(within, enough, kept)
        if kept == len(shares) and not whole:
            # The cut, if there is one, lies among words that were not looked at.
            if wants.top_p < 1 or wants.min_p > 0 or number >= sums[-1]:
                return None
            return int(np.searchsorted(sums, number, side="right"))
        return min(int(np.searchsorted(sums[:kept], number * sums[kept - 1], side="right")), kept - 1)


def _sorted_best(row: NDArray[np.float32], many: int) -> NDArray[np.int64]:
    """The ids of at least the `many` best words, the best first, and of equal ones the lower id."""
    row = np.where(np.isnan(row), -np.inf, row)
    least = np.partition(row, len(row) - many)[len(row) - many] if many < len(row) else -np.inf
    ids = np.flatnonzero(row >= least)
    return ids[np.argsort(-row[ids], kind="stable")]
