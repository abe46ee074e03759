"""The choice of the next token from the scores of all words.

The order is that of transformers: penalties, temperature, top-k, top-p, min-p. A choice depends on the
scores, on what the sequence holds, on its seed and on the number of the token: so a seed gives its text
whatever else runs, and also when a sequence is set back and computed again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import xxhash
from hmi_kernels.decoder import ops
from numpy.typing import NDArray

from hmi.errors import InvalidInput

FEW = 64
"""Words that are looked at first. Nearly always the choice is among them."""
COLD = 1e-5
"""A temperature below which the best word is taken."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults choose the best."""

    temperature: float = 0.0
    """0: the best. Else scores are divided by it."""
    top_k: int = 0
    """Only that many of the best; 0: all."""
    top_p: float = 1.0
    """Only the best, as few as reach this probability together."""
    min_p: float = 0.0
    """Only words of at least this share of the best one's probability."""
    repetition_penalty: float = 1.0
    """Scores of words that the prompt or the answer has are divided by it if positive, else multiplied."""
    presence_penalty: float = 0.0
    """Taken from the scores of words that the answer has."""
    frequency_penalty: float = 0.0
    """Taken from the scores of the answer's words, once for each time."""
    seed: int = 0
    """Below 2^64."""
    logprobs: int | None = None
    """The number of best words whose probabilities are told beside the chosen one's; None: none is told."""

    def __post_init__(self) -> None:
        """Raise InvalidInput for a number out of its range."""
        ranges = {
            "temperature": (0, 100),
            "top_k": (0, 1 << 31),
            "top_p": (1e-9, 1),
            "min_p": (0, 1),
            "repetition_penalty": (1e-3, 1e3),
            "presence_penalty": (-100, 100),
            "frequency_penalty": (-100, 100),
            "seed": (0, (1 << 64) - 1),
            "logprobs": (0, FEW),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidInput(f"{name} must lie between {least} and {most}", field=name)


@dataclass(frozen=True)
class Chosen:
    """A token, and its natural log-probability by the model itself, without penalties or temperature."""

    id: int
    logprob: float | None = None
    best: Sequence[tuple[int, float]] = ()


@dataclass
class Sampler:
    """Chooses one sequence's tokens, one after another."""

    wants: Sampling
    prompt: Sequence[int]
    times: Counter[int] = field(default_factory=Counter)
    """How often each word was chosen."""

    def __post_init__(self) -> None:
        self._seen = set(self.prompt)

    def choose(self, row: NDArray[np.float32]) -> Chosen:
        """row: the scores of the next token, -inf for those that must not be chosen; it is changed in place.

        Raises ValueError if no word that may be chosen has a score that is a number.
        """
        wants = self.wants
        told: list[tuple[int, float]] = []
        total = 0.0
        if wants.logprobs is not None:
            own = row.copy()
            ids, scores, total = ops.best(row, max(1, wants.logprobs))
            pairs = zip(ids.tolist(), scores.tolist(), strict=True)
            told = [(i, x - total) for i, x in pairs][: wants.logprobs]
        self._penalise(row)
        chosen = self._best(row) if wants.temperature < COLD else self._drawn(row)
        self.times[chosen] += 1
        self._seen.add(chosen)
        return Chosen(chosen) if wants.logprobs is None else Chosen(chosen, float(own[chosen]) - total, told)

    def _penalise(self, row: NDArray[np.float32]) -> None:
        wants = self.wants
        if wants.repetition_penalty != 1:
            there = np.array(list(self._seen), np.int64)
            factor = np.float32(wants.repetition_penalty)
            row[there] = np.where(row[there] > 0, row[there] / factor, row[there] * factor)
        if (wants.presence_penalty or wants.frequency_penalty) and self.times:
            there, times = (np.array(part) for part in (list(self.times), list(self.times.values())))
            row[there] -= (wants.presence_penalty + wants.frequency_penalty * times).astype(np.float32)

    def _best(self, row: NDArray[np.float32]) -> int:
        ids, scores, _ = ops.best(row, 1)
        _check(scores)
        return int(ids[0])

    def _drawn(self, row: NDArray[np.float32]) -> int:
        """A word drawn by its probability: the first, in the order of probabilities, at which they add up
        to more than a number that depends on the seed and the token's place alone."""
        wants, place = self.wants, self.times.total()
        number = xxhash.xxh3_64_intdigest(place.to_bytes(8, "little"), seed=wants.seed) / 2**64
        ids, scores, total = ops.best(row, FEW, 1 / wants.temperature)
        _check(scores)
        shares = np.exp(scores.astype(np.float64) / wants.temperature - total)
        found = self._place(shares, number, whole=len(ids) < FEW)
        if found is None:
            row[np.isnan(row)] = -np.inf
            ids = np.argsort(-row, kind="stable")
            scaled = row[ids].astype(np.float64) / wants.temperature
            shares = np.exp(scaled - scaled[0])
            found = self._place(shares / shares.sum(), number, whole=True)
            assert found is not None
        return int(ids[found])

    def _place(self, shares: NDArray[np.float64], number: float, *, whole: bool) -> int | None:
        """The place of the chosen word; None: more words must be looked at. shares: of the best words,
        falling. whole: they are all words."""
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


def _check(scores: NDArray[np.float32]) -> None:
    if not len(scores) or not math.isfinite(scores[0]):
        raise ValueError("no word has a score that is a number")
