"""A teacher's outputs for held-out rows and texts: how several are mixed, and how they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from hmi.model.files import read_checkpoint, write_checkpoint
from hmi.model.tasks import TaskKind
from hmi.model.tasks.sequence import Classification
from hmi.model.tasks.words import Tagging
from hmi.training.data.golds import Gold
from hmi.training.data.rows import Row
from hmi.training.second.teacher import MAX_SOFT_LABELS, gold_of, soft_tags
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import objective_of

DEV, TEXTS, OUTSIDE = "dev", "texts", "outside"
PARTS = 4
"""Weights of teachers are multiples of 1 / PARTS."""


@dataclass(frozen=True)
class TeacherOutputs:
    """A teacher's merged outputs for the held-out rows and for the texts, and its score on dev.

    `task` reads the outputs. `cpu_s` are the CPU seconds of tuning and answering.
    """

    name: str
    task: TaskKind
    dev: list[Tensor]
    texts: list[Tensor]
    score: float
    cpu_s: float
    outside: list[Tensor] | None = None
    """Outputs for the training rows from cross-validation, if the teacher is a probe and dev has few rows."""


def weigh(
    said: Sequence[TeacherOutputs], train: Sequence[Row], dev: Sequence[Row]
) -> tuple[list[float], float]:
    """The teachers' weights, which add up to 1, whose mixture scores best, and that score.

    Held-out rows decide, or the cross-validated answers to the training rows, if all teachers have some.
    Among equal weights the most even ones win, since several teachers err less together than each alone.
    """
    outside = [one.outside for one in said if one.outside is not None]
    decides = len(outside) == len(said)
    golds = [row.label for row in (train if decides else dev)]
    outputs = outside if decides else [one.dev for one in said]

    def score(weights: Sequence[float]) -> float:
        task, merged = mix(said, weights, outputs)
        return headline(objective_of(task).score(golds, merged))

    grid = [
        tuple(part / PARTS for part in parts)
        for parts in product(range(PARTS + 1), repeat=len(said))
        if sum(parts) == PARTS
    ]
    best = max(((score(w), -max(w), w) for w in grid), key=lambda found: found[:2])
    return list(best[2]), best[0]


def mix(
    said: Sequence[TeacherOutputs], weights: Sequence[float], outputs: Sequence[Sequence[Tensor]]
) -> tuple[TaskKind, list[Tensor]]:
    """The weighted geometric mean of the teachers' answers, and the task that reads it.

    outputs[i]: merged outputs of teacher i, for the same inputs in the same order. A teacher of weight 0 is
    left out.
    """
    heard = [(one, weight, of) for one, weight, of in zip(said, weights, outputs, strict=True) if weight > 0]
    parts = [[weight * output for output in of] for _, weight, of in heard]
    merged = [torch.stack(each).sum(0) for each in zip(*parts, strict=True)]
    tables = [(weight, getattr(one.task, "transitions", None)) for one, weight, _ in heard]
    task = heard[0][0].task
    if all(table is not None for _, table in tables):
        task = task.with_transitions(torch.stack([w * torch.as_tensor(t) for w, t in tables]).sum(0))
    return task, merged


def mixed_golds(said: Sequence[TeacherOutputs], weights: Sequence[float]) -> list[Gold]:
    """The right answers that the mixture gives the texts: soft labels in tasks with one label a text, and
    soft tags in tagging."""
    task, merged = mix(said, weights, [one.texts for one in said])
    if isinstance(task, Tagging):
        return [soft_tags(task, output) for output in merged]
    soft = isinstance(task, Classification) and len(task.labels) <= MAX_SOFT_LABELS
    return [gold_of(task.answer(output, scores=soft)) for output in merged]


def store_said(path: Path, said: TeacherOutputs) -> None:
    """Write a teacher's outputs as a checkpoint. Raises StorageFull."""
    tensors: dict[str, Tensor] = {}
    for part in (DEV, TEXTS, OUTSIDE):
        outputs = getattr(said, part) or []
        rows = [output.reshape(-1, output.shape[-1]) for output in outputs]
        tensors[part] = torch.cat(rows) if rows else torch.empty(0, 1)
        tensors[f"{part}.lengths"] = torch.tensor([len(of) for of in rows], dtype=torch.int64)
    table = getattr(said.task, "transitions", None)
    if table is not None:
        tensors["transitions"] = torch.as_tensor(table)
    write_checkpoint(path, tensors, {"name": said.name, "score": said.score, "cpu_s": said.cpu_s})


def stored_said(path: Path, task: TaskKind) -> TeacherOutputs | None:
    """Read what `store_said` wrote for this task; None if it is missing or damaged. Raises Unavailable."""
    found = read_checkpoint(path)
    if found is None:
        return None
    tensors, about = found

    def outputs(part: str) -> list[Tensor]:
        each = tensors[part].split(tensors[f"{part}.lengths"].tolist())
        return list(each) if task.name == "tagging" else [output[0] for output in each]

    return TeacherOutputs(
        about["name"],
        task.with_transitions(tensors.get("transitions")),
        outputs(DEV),
        outputs(TEXTS),
        about["score"],
        about["cpu_s"],
        outputs(OUTSIDE) or None,
    )
