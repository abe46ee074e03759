"""The answer to one input, for every task.

Does not import torch, so that code which only passes answers on starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Answer:
    """The answer to one input. Fields that its task does not have are None."""

    label: str | None = None
    score: float | None = None
    """The probability of `label`."""
    scores: dict[str, float] | None = None
    """The probability of every label, if the request asked for it."""
    labels: list[tuple[str, float]] | None = None
    """Of a multi-label task: the labels that reach the threshold, each with its
    probability, likeliest first."""
    value: float | None = None
    """Of a regression, in the units of the training rows."""
    tags: list[str] | None = None
    """Of tagging: one tag for each word."""
    tag_scores: list[float] | None = None
    """The probability of each tag in `tags`."""
    embedding: list[float] | None = None
