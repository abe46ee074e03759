"""Steps from results to answers that protocols share: labels in order, similarities, refusals of what a
result shows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from hmi.api.protocols.asks import AskResult
from hmi.api.protocols.base import Where
from hmi.core import ModelId, ModelVersion, Task
from hmi.engine import TextResult
from hmi.errors import InvalidInput, TooLarge

Transform = Literal["softmax", "sigmoid", "none"]
"""The function that makes scores of a head's outputs."""
LABELLED: tuple[Task, ...] = ("classification", "pair", "multilabel", "regression")
"""The tasks whose answers are labels or a number."""
VALUE = "value"
"""The label that a number is given under, in protocols that know labels with scores only."""


def live_of(where: Where, model: ModelId, tasks: Sequence[Task], call: str) -> ModelVersion:
    """The version of a model that answers. Raises NotFound, and InvalidInput if its task is not one of
    `tasks`. call: the name of the caller's call."""
    assert where.models is not None, "the server tells of its models"
    live = where.models.live(model)
    if live.task not in tasks:
        raise InvalidInput(
            f"{call} is for models of the task {' or '.join(tasks)}, and {model} is of the task {live.task}: "
            f"name another model, or use POST /infer/{model}",
            field="model",
        )
    return live


def ranked(output: TextResult, transform: Transform | None = None) -> list[tuple[str, float]]:
    """The labels of an answer with their scores, the best first. A number is one label, VALUE.

    The result must have `scores`, and with a `transform` also `outputs`. None: the task's own probabilities.
    Raises InvalidInput for a transform of a number.
    """
    if output.value is not None:
        if transform not in (None, "none"):
            raise InvalidInput(
                f"{output.model} answers a number, of which {transform} makes no sense: leave it out",
                field="parameters.function_to_apply",
            )
        return [(VALUE, output.value)]
    assert output.scores is not None, "the ask wants scores"
    scores = list(output.scores.items())
    if transform is not None:
        assert output.outputs is not None, "the ask wants the outputs"
        scores = list(zip(output.scores, _transformed(output.outputs, transform), strict=True))
    return sorted(scores, key=lambda pair: -pair[1])


def similarities(outputs: Sequence[TextResult]) -> list[float]:
    """The cosine of the first embedding and each of the others."""
    vectors = np.array([output.embedding for output in outputs], np.float64)
    lengths = np.maximum(np.linalg.norm(vectors, axis=1), np.finfo(np.float64).tiny)
    cosines: list[float] = ((vectors[1:] @ vectors[0]) / (lengths[1:] * lengths[0])).tolist()
    return cosines


def refuse_truncated(result: AskResult, field: str) -> None:
    """Raise TooLarge if an input was longer than what the model reads."""
    for i, output in enumerate(result.outputs):
        if output.truncated:
            raise TooLarge(
                f"{field}[{i}] is longer than the {output.tokens} tokens that {result.model} reads: shorten "
                "it, or let it be truncated",
                field=f"{field}[{i}]",
            )


def check_dimensions(result: AskResult, wanted: int | None) -> None:
    """Raise InvalidInput if the caller wants embeddings of another size than the model's."""
    size = len(result.outputs[0].embedding or ())
    if wanted not in (None, size):
        raise InvalidInput(
            f"{result.model} gives embeddings of {size} numbers, and was not trained for fewer: leave "
            "dimensions out",
            field="dimensions",
        )


def _transformed(outputs: Sequence[float], transform: Transform) -> list[float]:
    if transform == "none":
        return list(outputs)
    if transform == "sigmoid":
        return [0.5 * (1.0 + math.tanh(x / 2)) for x in outputs]  # does not overflow
    most = max(outputs)
    raised = [math.exp(x - most) for x in outputs]
    return [x / sum(raised) for x in raised]
