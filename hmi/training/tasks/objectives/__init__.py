"""The objective of each task: its targets, loss and metrics. The training side of `hmi.model.tasks`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.model.tasks import TaskKind
from hmi.model.tasks.generation import Generation
from hmi.training.data.golds import Gold
from hmi.training.tasks.objectives.base import IGNORE, TaskObjective
from hmi.training.tasks.objectives.texts import (
    ClassificationObjective,
    MultiLabelObjective,
    PairObjective,
    RegressionObjective,
)
from hmi.training.tasks.objectives.words import TaggingObjective

__all__ = ["IGNORE", "OBJECTIVES", "TaskObjective", "learn_task", "objective_of"]

OBJECTIVES: Mapping[Task, type[TaskObjective[Any]]] = {
    "classification": ClassificationObjective,
    "pair": PairObjective,
    "multilabel": MultiLabelObjective,
    "regression": RegressionObjective,
    "tagging": TaggingObjective,
}
"""The objective of every task that has a head. Embeddings are not trained, and language models learn from
tokens (`hmi.training.writing`)."""


def objective_of(task: TaskKind) -> TaskObjective[Any]:
    """The objective of a task. Raises KeyError for one without a head."""
    return OBJECTIVES[task.name](task)


def learn_task(name: Task, golds: Sequence[Gold], *, paired: bool = False, field: str = "data") -> TaskKind:
    """The task that the right answers of training rows describe. Raises InvalidData, which names
    `field`; InvalidInput for an embedding."""
    if name == "generation":
        return Generation()
    if name not in OBJECTIVES:
        raise InvalidInput("an embedding model learns nothing from rows: leave the data out", field=field)
    task: TaskKind = OBJECTIVES[name].learn(golds, paired=paired, field=field)
    return task
