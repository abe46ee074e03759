"""What goes into the engine and what comes out."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hmi.core import ModelId
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
class InferResult:
    """One answer. Sequence tasks fill label and score, tagging fills tags and tag_scores (one a word)."""

    model: ModelId
    version: int
    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    tags: list[str] | None = None
    tag_scores: list[float] | None = None
    truncated: bool = False
    provenance: dict[str, Any] | None = None
    timing: dict[str, float] = field(default_factory=dict)
    """queue_ms, retrieve_ms and compute_ms: the last two are those of the text's batch."""
