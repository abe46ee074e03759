"""The engine's requests and answers."""

from __future__ import annotations

from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Versions:
    """What answered: each model's inputs of a call have the same."""

    model: int
    plot: str
    domain: str
    root: str


@dataclass(frozen=True)
class Provenance:
    """What made an answer. Only `plot` counts."""

    plot: dict[str, int]
    """Tokens by what answered their look-up: trigram, bigram, unigram, …, miss; of the exact reference `computed`."""
    layers: int
    """Upper layers that ran."""
    exact: bool
    versions: Versions


@dataclass(frozen=True, kw_only=True)
class InferResult(Answer):
    """One answer, filled in as its task has it, and what made it."""

    model: ModelId
    version: int
    truncated: bool = False
    provenance: Provenance | None = None
    timing: dict[str, float] = field(default_factory=dict)
    """queue_ms, retrieve_ms and compute_ms: the last two are those of the text's batches, added up."""
