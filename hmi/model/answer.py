"""The answer to one input, for every task. Does not import torch, for code that only passes answers on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The answer to one input; what its task does not have is None."""

    label: str | None = None
    score: float | None = None
    scores: dict[str, float] | None = None
    """The probability of every label, where it was asked for."""
    labels: list[tuple[str, float]] | None = None
    """For a multi-label task: the labels given and their probabilities, the likeliest first."""
    value: float | None = None
    tags: list[str] | None = None
    tag_scores: list[float] | None = None
    embedding: list[float] | None = None
