"""The answers of ramps and models, by task: how uncertain one is, and whether two are equal.

All outputs are merged ones (`TaskKind.merge`), those of a ramp of a regression with its second output. An
answer has a short form, a number of 64 bits, by which two answers of one model are compared.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
import xxhash
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.model.tenant.calibration import Floats
from hmi.model.tenant.uncertainty import VALUE_TOLERANCE
from hmi.stages.early_exit import rule
from hmi.stages.early_exit.report import Label

TOLERANCE = VALUE_TOLERANCE
"""Two values agree if they differ by at most this fraction of the standard deviation of the training values.
If all early values were off by so much, their correlation with the full model's would still be .97."""
_VALUE = struct.Struct("<d")


def uncertainty(task: TaskKind, outputs: Sequence[Tensor]) -> Floats:
    """The uncertainty of each output of a ramp: [outputs]. NEVER for a tagged text without words."""
    if task.name == "tagging":
        return np.array([rule.of_labels(o.numpy()).max() if len(o) else rule.NEVER for o in outputs])
    numbers = torch.stack(list(outputs)).numpy()
    if task.name == "regression":
        return rule.of_values(rule.expected_error(numbers[:, 1]), TOLERANCE)
    if task.name == "multilabel":
        return rule.of_sets(numbers, task.rules.threshold)
    return rule.of_labels(numbers)


def short_forms(task: TaskKind, outputs: Sequence[Tensor]) -> list[int]:
    """The short form of each output's answer."""
    if task.name == "tagging":
        return [_of_tags(task.answer(output).tags or ()) for output in outputs]
    if task.name == "regression":
        return [_of_value(task.answer(output).value or 0.0) for output in outputs]
    numbers = torch.stack(list(outputs))
    if task.name == "multilabel":
        given = numbers.sigmoid().numpy().astype(np.float64) >= task.rules.threshold
        return [xxhash.xxh3_64_intdigest(row.tobytes()) for row in given]
    labels: list[int] = numbers.softmax(-1).numpy().argmax(-1).tolist()
    return labels


def agrees(task: TaskKind, one: int, other: int) -> bool:
    """Return whether two answers are equal, given in their short form; values, within the tolerance."""
    if task.name != "regression":
        return one == other
    (a,), (b,) = (_VALUE.unpack(value.to_bytes(8, "little")) for value in (one, other))
    return bool(abs(a - b) <= TOLERANCE * task.rules.spread)


def agreeing(task: TaskKind, some: Sequence[int], others: Sequence[int]) -> list[bool]:
    """`agrees` of each pair."""
    return [agrees(task, a, b) for a, b in zip(some, others, strict=True)]


def short_of(task: TaskKind, label: Label) -> int | None:
    """The short form of a right answer; None if the model cannot give it."""
    if task.name == "regression":
        return _of_value(float(label)) if isinstance(label, int | float) else None
    if isinstance(label, int | float):
        return None
    if isinstance(label, str):
        single = task.name in ("classification", "pair") and label in task.labels
        return task.labels.index(label) if single else None
    if task.name == "tagging":
        return _of_tags(label)
    if task.name != "multilabel" or not set(label) <= set(task.labels):
        return None
    return xxhash.xxh3_64_intdigest(np.isin(task.labels, list(label)).tobytes())


def _of_tags(tags: Sequence[str]) -> int:
    return xxhash.xxh3_64_intdigest("\0".join(tags).encode())


def _of_value(value: float) -> int:
    return int.from_bytes(_VALUE.pack(value), "little")
