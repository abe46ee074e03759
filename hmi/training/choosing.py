"""Decides between two versions of a tenant's model on the same held-out rows, by a paired bootstrap.

Both versions answer the same rows, so most of the luck of the draw is in both scores and cancels in their
difference. Resampling the rows (Efron, 1979; for scores of language tasks: Koehn, 2004) gives the
distribution of that difference for any headline metric, entity F1 included.

A tenant with few rows holds out too few to decide. There both versions are trained on parts of the rows and
answer the rest, so that every row decides (`cross_validated`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hmi.model.calibration import Floats
from hmi.model.tasks import TaskKind
from hmi.training.data.rows import Row
from hmi.training.golds import Gold
from hmi.training.objectives import OBJECTIVES, objective_of

RESAMPLES = 1_000
SURE = 0.9
"""A new version is published if it is better in at least this share of the resamples."""
ENOUGH = 100
"""With fewer held-out rows all rows decide, by cross-validation."""
FOLDS = 4
Version = tuple[TaskKind, Sequence[Tensor]]
"""A version's task, and its merged outputs for some rows, which the task reads."""
Both = Callable[[list[Row], list[Row]], tuple[Version, Version]]
"""(rows to train on, rows to answer) -> what the old and the new version answer when they are trained so."""


@dataclass(frozen=True)
class Comparison:
    """The difference of two headline scores on the same rows. `sure`: the share of resamples in which the new
    version is better; a tie counts half."""

    before: float
    after: float
    sure: float
    rows: int

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def better(self) -> bool:
        """Return whether the new version is better with confidence."""
        return self.sure >= SURE


def compare(golds: Sequence[Gold], old: Version, new: Version, seed: int) -> Comparison:
    """Compare two versions on the same rows. golds: the right answers of these rows."""
    return _compared(old[0], _parts(golds, old), _parts(golds, new), seed)


def cross_validated(rows: Sequence[Row], both: Both, seed: int, folds: int = FOLDS) -> Comparison:
    """Compare two ways of training on every row, each answered by versions that were not trained on it.

    `both` is called once for each fold. Raises what it raises.
    """
    parts: list[tuple[Floats, Floats]] = []
    task: TaskKind | None = None
    for held in folds_of(rows, folds, seed):
        out = set(held)
        golds = [rows[i].label for i in held]
        old, new = both([row for i, row in enumerate(rows) if i not in out], [rows[i] for i in held])
        task = new[0]
        parts.append((_parts(golds, old), _parts(golds, new)))
    assert task is not None
    before, after = (np.concatenate(of) for of in zip(*parts, strict=True))
    return _compared(task, before, after, seed)


def folds_of(rows: Sequence[Row], folds: int, seed: int) -> list[list[int]]:
    """Divide rows into folds, each row into one, so that rows with one label are spread evenly."""
    rng = random.Random(seed)
    by_label: dict[Gold | None, list[int]] = defaultdict(list)
    for i, row in enumerate(rows):
        by_label[row.label if isinstance(row.label, str) else None].append(i)
    order = [
        i for label in sorted(by_label, key=str) for i in rng.sample(by_label[label], len(by_label[label]))
    ]
    return [sorted(order[fold::folds]) for fold in range(min(folds, len(rows)))]


def _parts(golds: Sequence[Gold], version: Version) -> Floats:
    task, merged = version
    return objective_of(task).parts(golds, merged)


def _compared(task: TaskKind, old: Floats, new: Floats, seed: int) -> Comparison:
    score = OBJECTIVES[task.name].score_of_parts
    draws = np.random.default_rng(seed).integers(len(old), size=(RESAMPLES, len(old)))
    difference = np.array([score(new[draw]) - score(old[draw]) for draw in draws])
    sure = float(((difference > 0) + 0.5 * (difference == 0)).mean())
    return Comparison(round(score(old), 4), round(score(new), 4), round(sure, 4), len(old))
