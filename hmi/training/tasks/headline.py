"""The headline score: the metric that a model is judged by. Does not import numpy, since some code
only shows the score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADLINES = ("entity_f1", "accuracy", "micro_f1", "spearman", "token_accuracy")
"""The headline metric is the first of these that a task's metrics have."""


def headline_name(metrics: Mapping[str, Any]) -> str | None:
    return next((name for name in HEADLINES if name in metrics), None)


def headline(metrics: Mapping[str, Any]) -> float:
    """The headline score, by which epochs are compared; 0 if there is none."""
    name = headline_name(metrics)
    return 0.0 if name is None else float(metrics[name])
