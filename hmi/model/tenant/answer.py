"""The answer to one input, for every task.

Does not import torch, so that code which only passes answers on starts quickly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Aggregation = Literal["none", "simple", "first", "average", "max"]
"""The rule by which tags of words become entities, as in transformers' pipelines
(`hmi.model.tags.entities`)."""
AGGREGATIONS: tuple[Aggregation, ...] = get_args(Aggregation)


@dataclass(frozen=True)
class Entity:
    """A part of a text with one label. `text` is `input[start:end]` of the text as the caller sent it."""

    label: str
    start: int
    """The index of its first character, in Unicode code points."""
    end: int
    """The index after its last character."""
    text: str
    score: float
    """The mean probability of its words' tags; if calibrated, the probability that the entity is right."""


@dataclass(frozen=True)
class InputAnswer:
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
    outputs: list[float] | None = None
    """The head's outputs in the order of the model's labels, before any softmax or sigmoid. None unless the
    request wants them, and for tagging and embedding."""
    entities: list[Entity] | None = None
    """The entities of a text in their order, for tagging models and texts that the caller has not split into
    words.
    """
    known: bool | None = None
    """False if the model says that it does not know: the text is unlike its training rows. None: the model
    has no threshold for this."""
