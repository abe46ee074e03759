"""The settings by which the next token of an answer is chosen. `hmi.execution.decoding.sampling` chooses."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hmi.errors import InvalidInput

MOST_LOGPROBS = 20
"""The most best words whose log-probabilities are told."""


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen. The defaults choose the best word."""

    temperature: float = 0.0
    """Scores are divided by it. 0 takes the best word."""
    top_k: int = 0
    """Keeps this many of the best words. 0 keeps all."""
    top_p: float = 1.0
    """Keeps the fewest best words whose probabilities add up to this."""
    min_p: float = 0.0
    """Keeps words that have at least this share of the best word's probability."""
    repetition_penalty: float = 1.0
    """Concerns words of the prompt and of the answer: divides a positive score, multiplies a negative one."""
    presence_penalty: float = 0.0
    """Is subtracted from the score of each word of the answer."""
    frequency_penalty: float = 0.0
    """Is subtracted from the score of each word of the answer, as often as the answer has the word."""
    seed: int = 0
    """From 0 to 2^64 - 1."""
    logprobs: int | None = None
    """A `Chosen` tells log-probabilities of its token and of this many best words. None: it tells none."""

    def __post_init__(self) -> None:
        """Raise InvalidInput for a number out of its range."""
        ranges = {
            "temperature": (0, 100),
            "top_k": (0, 1 << 31),
            "top_p": (math.ulp(0.0), 1),
            "min_p": (0, 1),
            "repetition_penalty": (1e-3, 1e3),
            "presence_penalty": (-100, 100),
            "frequency_penalty": (-100, 100),
            "seed": (0, (1 << 64) - 1),
            "logprobs": (0, MOST_LOGPROBS),
        }
        for name, (least, most) in ranges.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise InvalidInput(f"{name} must lie between {least} and {most}", field=name)
