"""Decides between two versions of a tenant's model on the same held-out rows, by a paired bootstrap.

Both versions answer the same rows, so most of the luck of the draw is in both scores and cancels in their
difference. Resampling the rows (Efron, 1979; for scores of language tasks: Koehn, 2004) gives the
distribution of that difference for any headline metric, entity F1 included. The same resamples compare the
likelihoods that the versions give the right answers. Scores differ on few rows and likelihoods on all, so
likelihoods tell sooner which version knows more.

A tenant with few rows holds out too few to decide. There both versions are trained on parts of the rows and
answer the rest, so that every row decides (`cross_validated`). Where each row has one label, the second
version is trusted instead, unless the held-out rows say that it is worse (`rule_of`).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.model.tasks.sequence import Classification
from hmi.model.tenant.calibration import Floats, probabilities
from hmi.training.data.golds import Gold
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.tasks.calibration import ModelDecisions
from hmi.training.tasks.objectives import OBJECTIVES, objective_of

RESAMPLES = 1_000
SURE = 0.8
"""A new version is published if its score is no lower, and score or likelihood is higher in at least this
share of the resamples."""
ENOUGH = 100
"""With fewer held-out rows these do not decide alone (`rule_of`)."""
TRUSTED_ROWS = 1_000
"""With one label a row, fewer labelled rows than this, and few held out, a second version is trusted."""
LEAST_ROWS = 100
"""With fewer labelled rows than this a second version is not trusted, and nothing is tried."""
WORSE = 0.2
"""A new version is worse if score and likelihood are each higher in at most this share of the resamples."""
FOLDS = 4
LEAST = 1e-9
"""A right answer has at least this probability, so that one row does not decide alone."""
Version = tuple[TaskKind, Sequence[Tensor]]
"""A version's task, and its merged outputs for some rows, which the task reads."""
Rule = Literal["better", "by_folds", "not_worse"]
"""How a new version is chosen: it must be better on held-out rows, or better on all rows by cross-validation,
or not worse on the few rows that are held out."""
Both = Callable[[list[Row], list[Row]], tuple[Version, Version]]
"""(rows to train on, rows to answer) -> what the old and the new version answer when they are trained so."""


@dataclass(frozen=True)
class VersionComparison:
    """Two versions on the same rows: their headline scores, and the shares of resamples in which the new
    version has the higher score (`by_score`) and the higher likelihood. A tie counts half."""

    before: float
    after: float
    by_score: float
    by_likelihood: float
    rows: int

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def sure(self) -> float:
        """The greater of the two shares."""
        return max(self.by_score, self.by_likelihood)

    @property
    def better(self) -> bool:
        """Return whether the new version is better with confidence."""
        return self.gain >= 0 and self.sure >= SURE

    @property
    def worse(self) -> bool:
        """Return whether the new version is worse with confidence."""
        return max(self.by_score, self.by_likelihood) <= WORSE

    def passes(self, rule: Rule) -> bool:
        """Return whether the new version is to be published."""
        return not self.worse if rule == "not_worse" else self.better


def rule_of(task: TaskKind, rows: int, held_out: int, *, afresh: bool = True) -> Rule:
    """The rule by which two versions are compared.

    rows: the number of all labelled rows. held_out: the number of those that no version was trained on.
    afresh: whether the first version knows no other rows than these. Else both ways of training start from a
    version that knows the folds' rows.
    """
    if not afresh or held_out >= ENOUGH:
        return "better"
    trusted = isinstance(task, Classification) and not task.paired and rows < TRUSTED_ROWS
    return "not_worse" if trusted else "by_folds"


def least_rows(rule: Rule) -> int:
    """With fewer labelled rows than this nothing is tried; by the rule `better`, with fewer held-out rows."""
    return LEAST_ROWS if rule == "not_worse" else HELD_OUT.enough


def compare(golds: Sequence[Gold], old: Version, new: Version, seed: int) -> VersionComparison:
    """Compare two versions on the same rows. golds: the right answers of these rows."""
    return _compared(old[0], _evidence(golds, old), _evidence(golds, new), seed)


def cross_validated(rows: Sequence[Row], both: Both, seed: int, folds: int = FOLDS) -> VersionComparison:
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
        parts.append((_evidence(golds, old), _evidence(golds, new)))
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


def _evidence(golds: Sequence[Gold], version: Version) -> Floats:
    """Each row's parts of the score, and its log-likelihood, [rows, 3]."""
    task, merged = version
    objective = objective_of(task)
    likelihoods = _likelihoods(objective.decisions(golds, merged), len(golds))
    return np.column_stack([objective.parts(golds, merged), likelihoods])


def _likelihoods(made: ModelDecisions | None, rows: int) -> Floats:
    """The log-likelihood of each row's right answers [rows], at the temperature that suits the version best.

    All are 0 if the task gives no probabilities. Answers that the version does not know count nothing.
    """
    out = np.zeros(rows)
    if made is not None:
        known = made.gold >= 0
        temperature = made.fit(known) if known.sum() >= HELD_OUT.enough else 1.0
        sure = probabilities(made.logits[known], temperature)[np.arange(known.sum()), made.gold[known]]
        np.add.at(out, made.rows[known], np.log(np.maximum(sure, LEAST)))
    return out


def _compared(task: TaskKind, old: Floats, new: Floats, seed: int) -> VersionComparison:
    def score(evidence: Floats) -> float:
        return OBJECTIVES[task.name].score_of_parts(evidence[:, :2])

    draws = np.random.default_rng(seed).integers(len(old), size=(RESAMPLES, len(old)))
    differences = (
        np.array([score(new[draw]) - score(old[draw]) for draw in draws]),
        (new[:, 2] - old[:, 2])[draws].mean(1),
    )
    by_score, by_likelihood = (round(float(((of > 0) + 0.5 * (of == 0)).mean()), 4) for of in differences)
    return VersionComparison(round(score(old), 4), round(score(new), 4), by_score, by_likelihood, len(old))
