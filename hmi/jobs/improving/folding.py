"""Decides with all rows of a tenant that has few: both ways of training are tried on parts of the rows.

Both versions are trained on some of the rows, as the jobs would train them, and answer the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace

from hmi.core import ModelVersion
from hmi.jobs.comparing import HeldOutAnswers, answers_of_artefact
from hmi.jobs.improving.deciding import data_seed
from hmi.jobs.improving.teaching import Trial
from hmi.jobs.improving.trying import Train, Ways
from hmi.jobs.tenant_training import Made
from hmi.jobs.training_data import Data
from hmi.training.choosing import FOLDS, Comparison, Version, cross_validated
from hmi.training.data.rows import Row
from hmi.training.recipe import HELD_OUT
from hmi.training.row_keys import hold_out
from hmi.training.teacher import usable


def decide_by_folds(
    trial: Trial, base: ModelVersion, data: Data, rows: Sequence[Row], ways: Ways
) -> Comparison:
    """Compare two ways of training on these rows. A resumed job goes on from the folds' checkpoints.

    In the first fold it turns out which teachers the budget allows, since all folds, and the training that
    may follow, need the same. Raises HmiError, EnoughError.
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
    trial: Trial, base: ModelVersion, data: Data, made: Made, rows: Sequence[Row]
) -> HeldOutAnswers:
    """Run a version that is not published on some rows."""
    parts = data.module, made.task, made.artefact, made.max_length
    return answers_of_artefact(trial.ctx, trial.root, base.plot_version, *parts, list(rows))


def _version(answers: HeldOutAnswers) -> Version:
    return answers.task, answers.merged
