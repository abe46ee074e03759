"""A text that is one of some choices, with the probability of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from hmi.engine.writing.draft import Draft
from hmi.engine.writing.pieces import Pieces
from hmi.engine.writing.request import WriteRequest, WrittenPiece, WrittenText
from hmi.errors import InvalidInput
from hmi.model.text.sampling import Sampling

AT_ONCE = 16
"""The most choices of one call that are read together. More in a step are hardly faster."""


@dataclass(eq=False)
class Choosing(Pieces):
    """The likeliest choice, while the choices are read."""

    read: list[Draft] = field(default_factory=list)
    """The choices of which something was read."""

    @property
    def tokens(self) -> int:
        """See `WrittenPieces`."""
        return 0 if self.at_fault else sum(draft.tokens for draft in self.read)

    def choose(self, texts: Sequence[WrittenText]) -> None:
        """Send the answer. texts: of all choices, in their order."""
        found = _chosen(self.request, texts)
        self.send(WrittenPiece(found.text, found.scores))
        self.send(found)


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


def _chosen(request: WriteRequest, texts: Sequence[WrittenText]) -> WrittenText:
    assert request.form is not None
    assert request.form.choices is not None
    sums = [math.fsum(score.logprob for score in text.scores) for text in texts]
    most = max(sums)
    shares = [math.exp(each - most) for each in sums]
    whole, best = math.fsum(shares), sums.index(most)
    choices = list(zip(request.form.choices, (share / whole for share in shares), strict=True))
    return replace(
        texts[best],
        text=request.form.choices[best],
        cached_tokens=texts[0].cached_tokens,
        scores=texts[best].scores if request.sampling.logprobs is not None else (),
        choices=choices,
    )
