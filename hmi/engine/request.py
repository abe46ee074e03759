"""The engine's requests and answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hmi.core import ModelId
from hmi.model.answer import Answer

if TYPE_CHECKING:
    from hmi.model.tokenizer import Text


@dataclass(frozen=True)
class InferRequest:
    """One text, pair or list of words for one model. `deadline` is a `time.monotonic()` time, None = none."""

    model: ModelId
    text: Text
    exact: bool = False
    scores: bool = False
    provenance: bool = False
    deadline: float | None = None
    place: str = "inputs"
    """How the caller names this text: the `field` of errors about it."""
    model_place: str | None = None
    """The field that names the model; None where no field does."""
    ask: int = 0
    """Which of a call's requests the text belongs to; usage counts requests by it."""


@dataclass(frozen=True)
class Versions:
    """What answered: each model's inputs of a call have the same."""

    model: int
    plot: str
    domain: str
    root: str


@dataclass(frozen=True)
class Provenance:
    """What made an answer, or several of one model in one call."""

    plot: Mapping[str, int]
    """Tokens by what answered their look-up: trigram, bigram, unigram, …, miss; of the exact reference
    `computed`."""
    layers: int
    """Upper layers that ran: of several answers, and of several windows, the most."""
    exact: bool
    versions: Versions
    stages: Mapping[str, str] = field(default_factory=dict)
    """The setting of each execution stage that was not off."""

    @classmethod
    def together(cls, parts: Sequence[Provenance]) -> Provenance:
        """Of all these, one at least, which have the same model, versions and settings: counts are added
        up."""
        plot: Counter[str] = Counter()
        for part in parts:
            plot.update(part.plot)
        return replace(parts[0], plot=dict(plot), layers=max(part.layers for part in parts))


@dataclass(frozen=True, kw_only=True)
class InferResult(Answer):
    """One answer, filled in as its task has it, and what made it."""

    model: ModelId
    version: int
    truncated: bool = False
    provenance: Provenance | None = None
    timing: dict[str, float] = field(default_factory=dict)
    """queue_ms, retrieve_ms and compute_ms: the last two are those of the text's batches, added up."""
