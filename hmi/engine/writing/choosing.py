"""A text that is one of some choices, with the probability of each."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from hmi.engine.writing.request import WriteRequest, WrittenPiece, WrittenText
from hmi.errors import InvalidInput
from hmi.model.text.sampling import Sampling

AT_ONCE = 16
"""The most choices of one call that are read together. More in a step are hardly faster."""


@dataclass(frozen=True)
class ChosenText:
    """The likeliest choice, once all were read. See `WrittenPieces`."""

    outcome: WrittenText
    tokens: int

    @property
    def number(self) -> int:
        return self.outcome.version

    async def __aiter__(self) -> AsyncIterator[WrittenPiece | WrittenText]:
        yield WrittenPiece(self.outcome.text, self.outcome.scores)
        yield self.outcome


def told(request: WriteRequest) -> WriteRequest:
    """The request of each choice: it tells the log-probabilities of its tokens.

    Raises InvalidInput for what would change the choice.
    """
    wants = request.sampling
    if replace(wants, seed=0, logprobs=None) != Sampling() or request.stops:
        raise InvalidInput(
            "form.probabilities takes the likeliest choice: leave out temperature, penalties and stop",
            field="form.probabilities",
        )
    return replace(request, sampling=replace(wants, logprobs=wants.logprobs or 0))


def chosen(request: WriteRequest, texts: Sequence[WrittenText]) -> ChosenText:
    """The answer of a call, from the texts of its choices, in their order."""
    assert request.form is not None
    assert request.form.choices is not None
    sums = [math.fsum(score.logprob for score in text.scores) for text in texts]
    most = max(sums)
    shares = [math.exp(each - most) for each in sums]
    whole, best = math.fsum(shares), sums.index(most)
    choices = list(zip(request.form.choices, (share / whole for share in shares), strict=True))
    found = replace(
        texts[best],
        text=request.form.choices[best],
        cached_tokens=texts[0].cached_tokens,
        scores=texts[best].scores if request.sampling.logprobs is not None else (),
        choices=choices,
    )
    return ChosenText(found, texts[0].prompt_tokens + sum(text.written_tokens for text in texts))
