"""Texts of a given number of tokens, cut from real text at its words."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hmi.model.tokenizer import Tokenizer

MEAN_LOG, SPREAD_LOG, LEAST, MOST = 3.9, 0.45, 8, 128
"""Real lengths: log-normal, as in sentences of scientific prose; 56 tokens on average."""
LONG_WORD = 6
"""Words of more tokens than this are left out: most are addresses and hashes."""
TRIES = 1_000


class Texts:
    """Draws texts. Two with the same seed draw the same texts."""

    def __init__(self, tokenizer: Path, corpus: Path, seed: int = 0) -> None:
        """Read the corpus and tokenise its words."""
        words, self._tokenizer = corpus.read_text().split(), Tokenizer(tokenizer)
        pieces = [len(e.ids) - 2 for e in self._tokenizer.encode(words, LONG_WORD + 3)]
        kept = [(w, n) for w, n in zip(words, pieces, strict=True) if 0 < n <= LONG_WORD]
        self._words = [w for w, _ in kept]
        self._ends = np.cumsum([0, *(n for _, n in kept)])
        self._draw = np.random.default_rng(seed)

    def of(self, tokens: int | None, count: int) -> list[str]:
        """Return `count` texts of exactly `tokens` tokens, [CLS] and [SEP] included; None: real lengths."""
        return [self._one(self._real() if tokens is None else tokens) for _ in range(count)]

    def tokens(self, text: str) -> int:
        """Return the tokens of a text, at most MOST."""
        return len(self._tokenizer.encode([text], MOST)[0])

    def _real(self) -> int:
        return int(np.clip(self._draw.lognormal(MEAN_LOG, SPREAD_LOG), LEAST, MOST))

    def _one(self, tokens: int) -> str:
        for _ in range(TRIES):
            start = int(self._draw.integers(0, len(self._words)))
            want = self._ends[start] + tokens - 2
            end = int(np.searchsorted(self._ends, want))
            if end < len(self._ends) and self._ends[end] == want:
                return " ".join(self._words[start:end])
        raise AssertionError(f"the text has no run of words with {tokens} tokens")
