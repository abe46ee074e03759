"""The headline score: the metric that a model is judged by. Does not import numpy, since some code
only shows the score."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADLINES = ("entity_f1", "accuracy", "micro_f1", "spearman", "token_accuracy", "perplexity")
"""The headline metric is the first of these that a task's metrics have."""
LOWER_IS_BETTER = frozenset({"perplexity"})


def headline_name(metrics: Mapping[str, Any]) -> str | None:
    return next((name for name in HEADLINES if name in metrics), None)


def headline(metrics: Mapping[str, Any]) -> float:
    """The headline score, by which epochs are compared: the greatest is the best, so of a metric whose lower
    values are better it is the negative. 0 if there is none."""
    name = headline_name(metrics)
    score = 0.0 if name is None else float(metrics[name])
    return -score if name in LOWER_IS_BETTER else score
