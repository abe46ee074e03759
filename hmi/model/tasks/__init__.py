"""The tasks, implemented in one place for the job, the engine and the benchmarks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hmi.core import ModelVersion, Task, TaskRules
from hmi.model.golds import MAX_LABELS, Gold, Odds, checked_labels
from hmi.model.tasks.base import IGNORE, Answer, TaskKind
from hmi.model.tasks.embedding import Embedding
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tasks.regression import Regression
from hmi.model.tasks.sequence import Classification, Pair
from hmi.model.tasks.words import Tagging

__all__ = [
    "IGNORE",
    "KINDS",
    "MAX_LABELS",
    "Answer",
    "Gold",
    "Odds",
    "TaskKind",
    "checked_labels",
    "learn_task",
    "task_of",
    "task_of_version",
]

KINDS: Mapping[Task, type[TaskKind]] = {
    kind.name: kind for kind in (Classification, Pair, MultiLabel, Regression, Tagging, Embedding)
}


def task_of(name: Task, labels: Sequence[str] = (), rules: TaskRules | None = None) -> TaskKind:
    """The task of a model that exists."""
    return KINDS[name](tuple(labels), rules or TaskRules())


def task_of_version(version: ModelVersion) -> TaskKind:
    return task_of(version.task, version.labels, version.rules)


def learn_task(name: Task, golds: Sequence[Gold], *, paired: bool = False, field: str = "data") -> TaskKind:
    """The task that these training rows describe. Raises InvalidData naming `field`."""
    return KINDS[name].learn(golds, paired=paired, field=field)
