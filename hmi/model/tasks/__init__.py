"""The tasks: what the head of each reads, and how its output becomes an answer.

For the losses see `hmi.training.tasks.objectives`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hmi.core import ModelVersion, Task, TaskRules
from hmi.model.tasks.base import InputAnswer, TaskKind
from hmi.model.tasks.embedding import Embedding
from hmi.model.tasks.generation import Generation
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tasks.regression import Regression
from hmi.model.tasks.sequence import Classification, Pair
from hmi.model.tasks.words import Tagging

__all__ = ["KINDS", "InputAnswer", "TaskKind", "task_of", "task_of_version"]

KINDS: Mapping[Task, type[TaskKind]] = {
    kind.name: kind for kind in (Classification, Pair, MultiLabel, Regression, Tagging, Embedding, Generation)
}


def task_of(name: Task, labels: Sequence[str] = (), rules: TaskRules | None = None) -> TaskKind:
    """The task object for a model's task, labels and rules."""
    return KINDS[name](tuple(labels), rules or TaskRules())


def task_of_version(version: ModelVersion) -> TaskKind:
    """The task object of a model's version."""
    return task_of(version.task, version.labels, version.rules)
