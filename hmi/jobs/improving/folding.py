"""Decides with all rows of a tenant that has few: both ways of training are tried on parts of the rows.

Both versions are trained on some of the rows, as the jobs would train them, and answer the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from hmi.core import ModelVersion
from hmi.jobs.improving.deciding import data_seed
from hmi.jobs.improving.teaching import Trial
from hmi.jobs.improving.trying import Train, TrainFunctions
from hmi.jobs.model.comparing import HeldOutAnswers, answers_of_artefact
from hmi.jobs.model.tenant_training import TrainedModel
from hmi.jobs.model.training_data import Data
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.second.choosing import FOLDS, Version, VersionComparison, cross_validated
from hmi.training.second.teacher import usable
from hmi.training.tasks.row_keys import hold_out


def decide_by_folds(
    trial: Trial, base: ModelVersion, data: Data, rows: Sequence[Row], ways: TrainFunctions
) -> VersionComparison:
    """Compare two ways of training on these rows. A resumed job goes on from the folds' checkpoints.

    In the first fold it turns out which teachers the budget allows, since all folds, and the training that
    may follow, need the same. Raises HmiError, StopTraining.
    """
    ctx, ledger = trial.ctx, trial.ledger
    fold = 0

    def both(train: list[Row], held: list[Row]) -> tuple[Version, Version]:
        nonlocal fold
        fold += 1
        own, dev = hold_out(train, HELD_OUT)
        # A text that judges must not also teach.
        part = replace(data, train=own, dev=dev, unlabelled=usable(data.unlabelled, held, 0))

        def said(name: str, way: Train) -> Version:
            folder = ctx.folder / f"fold-{fold}-{name}"
            folder.mkdir(exist_ok=True)
            return _version(answers_of_made(trial, base, part, way(part, folder), held))

        before = said("old", ways.old)
        with ledger.share(FOLDS + 1) if fold == 1 else nullcontext():
            return before, said("new", ways.new)

    return cross_validated(rows, both, data_seed(base))


def answers_of_made(
    trial: Trial, base: ModelVersion, data: Data, made: TrainedModel, rows: Sequence[Row]
) -> HeldOutAnswers:
    """Run a version that is not published on some rows."""
    parts = data.module, made.task, made.artefact, made.max_length
    return answers_of_artefact(trial.ctx, trial.root, base.plot_version, *parts, list(rows))


def _version(answers: HeldOutAnswers) -> Version:
    return answers.task, answers.merged
