"""What a job `improve` tries: the version's own training, with a teacher's answers to more texts."""

from __future__ import annotations

from pathlib import Path

from hmi.core import ModelVersion
from hmi.jobs.comparing import seen_by
from hmi.jobs.improving.deciding import Candidate
from hmi.jobs.improving.ledger import Ledger
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImproveSpec
from hmi.jobs.teaching import Taught, taught_rows
from hmi.jobs.tenant_training import Course, Made, Start, train_on_rows
from hmi.jobs.training_data import Data
from hmi.model.artefact import Artefact
from hmi.model.root import Root
from hmi.training.recipe import Recipe
from hmi.training.row_keys import RowKeys
from hmi.training.teacher import Lesson
from hmi.training.trainer import Trainer

VARIANTS = 3
"""The teacher answers this many changed copies of each row."""


class NothingNewError(Exception):
    """There is nothing to train on that the version was not trained on. The text says why."""


def name_of(data: Data) -> str:
    """What is tried, in words."""
    texts = f"{len(data.unlabelled)} further texts and " if data.unlabelled else ""
    return f"a teacher tuned from the root's source, on {texts}{VARIANTS} changed copies of each row"


def refuse_old(spec: ImproveSpec) -> None:
    """Raise NothingNewError if the version was made in this way already."""
    if spec.options.variants >= VARIANTS:
        raise NothingNewError("the version was trained with a teacher on changed copies of its rows already")


def trained(
    ctx: JobContext, spec: ImproveSpec, base: ModelVersion, root: Root, data: Data, ledger: Ledger
) -> Candidate:
    """Train the candidate. A resumed job goes on from the teacher's answers and the last epoch.

    The teacher must answer within the budget. A training that the end of the budget cuts short is judged by
    its best epoch. Raises NothingNewError, EnoughError (the budget was spent before there was anything to
    judge), HmiError.
    """
    options, start = options_of(spec, base), start_of(ctx, spec, base)

    def teach(ctx: JobContext, root: Root, lesson: Lesson, recipe: Recipe, folder: Path) -> Taught:
        found = taught_rows(ctx, root, lesson, recipe, folder)
        if not found.rows:
            raise NothingNewError("; ".join(found.warnings))
        ledger.conclude()
        return found

    def train(on: Data, folder: Path) -> Made:
        course = Course(start, teach, folder, enough=lambda: ledger.over)
        return train_on_rows(ctx, options, course, root, base.plot_version, on)

    return Candidate(train(data, ctx.folder), train)


def options_of(spec: ImproveSpec, base: ModelVersion) -> FineTuneOptions:
    """The options of the version's own training, with changed copies of rows, and ramps if it has some."""
    return spec.options.model_copy(
        update={"variants": max(VARIANTS, spec.options.variants), "ramps": bool(base.ramps)}
    )


def starts_afresh(spec: ImproveSpec) -> bool:
    """Return whether the version knows no other rows than the job's. Else the candidate goes on from it."""
    return spec.mode == "create" and spec.options.start is None


def start_of(ctx: JobContext, spec: ImproveSpec, base: ModelVersion) -> Start:
    """Where the candidate starts: fresh as the version did, or from the version, so that it keeps what that
    has from an earlier version, another model or an adapter, which may be gone by now."""

    def start(trainer: Trainer) -> None:
        if not starts_afresh(spec):
            artefact = Artefact.split(ctx.adapters.get(base.artefact))
            trainer.start_from(artefact.map(lambda value: value.float()))

    return start


def rows_before(ctx: JobContext, spec: ImproveSpec, base: ModelVersion) -> list[RowKeys]:
    """The keys of the rows that the candidate knows beside the job's."""
    return [] if starts_afresh(spec) else [seen_by(ctx, base)]
