"""The headline score: the metric that a model is judged by. Does not import numpy, for code that
only shows it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

HEADLINES = ("entity_f1", "accuracy", "micro_f1", "spearman", "token_accuracy")
"""A task's metrics hold one of these that counts: the first that is there."""


def headline_name(metrics: Mapping[str, Any]) -> str | None:
    return next((name for name in HEADLINES if name in metrics), None)


def headline(metrics: Mapping[str, Any]) -> float:
    """The one figure by which epochs are compared."""
    name = headline_name(metrics)
    return 0.0 if name is None else float(metrics[name])
