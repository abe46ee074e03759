"""Decides with all rows of a tenant that has few: both ways of training are tried on parts of the rows.

Both versions are trained on some of the rows, as the jobs would train them, and answer the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hmi.jobs.comparing import HeldOutAnswers, answers_of_artefact
from hmi.jobs.improving.ledger import Ledger
from hmi.jobs.improving.trying import Train, Ways
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.tenant_training import Made
from hmi.jobs.training_data import Data
from hmi.model.root import Root
from hmi.training.choosing import FOLDS, Comparison, Version, cross_validated
from hmi.training.data.rows import Row
from hmi.training.recipe import HELD_OUT
from hmi.training.row_keys import hold_out


def decide_by_folds(
    ctx: JobContext, root: Root, plot: str, data: Data, seed: int, ways: Ways, ledger: Ledger
) -> Comparison:
    """Compare two ways of training on all rows. A resumed job goes on from the folds' checkpoints.

    plot: the PLOT version of both. Each fold gets an equal part of the budget, and so does the training that
    may follow. Raises HmiError, EnoughError.
    """
    fold = 0

    def both(train: list[Row], held: list[Row]) -> tuple[Version, Version]:
        nonlocal fold
        fold += 1
        own, dev = hold_out(train, HELD_OUT)
        part = replace(data, train=own, dev=dev)

        def said(name: str, way: Train) -> Version:
            folder = ctx.folder / f"fold-{fold}-{name}"
            folder.mkdir(exist_ok=True)
            return _version(answers_of_made(ctx, root, plot, part, way(part, folder), held))

        before = said("old", ways.old)
        with ledger.share(FOLDS - fold + 2):
            return before, said("new", ways.new)

    return cross_validated([*data.train, *data.dev], both, seed)


def answers_of_made(
    ctx: JobContext, root: Root, plot: str, data: Data, made: Made, rows: Sequence[Row]
) -> HeldOutAnswers:
    """Run a version that is not published on some rows."""
    return answers_of_artefact(
        ctx, root, plot, data.module, made.task, made.artefact, made.max_length, list(rows)
    )


def _version(answers: HeldOutAnswers) -> Version:
    return answers.task, answers.merged
