"""The trial of a job `improve`: the version's own training, with teachers' answers to more texts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hmi.core import ModelVersion
from hmi.jobs.improving.teaching import Trial, taught_by_several
from hmi.jobs.model.comparing import seen_by
from hmi.jobs.model.teaching import Taught, taught_rows
from hmi.jobs.model.tenant_training import Start, Teach, TrainedModel, TrainingRun, train_on_rows
from hmi.jobs.model.training_data import Data
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImproveSpec
from hmi.model.sources.root import Root
from hmi.model.tenant.artefact import Artefact
from hmi.training.fit.learner import Learner
from hmi.training.plans.recipe import Recipe
from hmi.training.second.second_version import COPIES, EPOCHS
from hmi.training.second.teacher import Lesson
from hmi.training.tasks.row_keys import RowKeys

PARTS = {"given": "further texts", "corpus": "texts of the domain", "copies": "changed copies of rows"}
"""The parts of a pool, in words."""


class NothingNewError(Exception):
    """There is nothing to train on that the version was not trained on. The text says why."""


NAME = "several teachers' answers to more texts"
"""The trial in words, before it is known which teachers and texts there are."""


def name_of(made: TrainedModel) -> str:
    """Return the trial in words: the teachers with their weights, and the texts."""
    about = made.metrics["teacher"]
    teachers = " and ".join(f"{one['name']} (weight {one['weight']:g})" for one in about["teachers"])
    texts = ", ".join(f"{count} {PARTS[part]}" for part, count in about["pool"].items() if count)
    return f"teachers tuned from {teachers}, on {texts}"


Train = Callable[[Data, Path], TrainedModel]
"""Trains a version on some rows, with its checkpoints in a folder."""


@dataclass(frozen=True)
class TrainFunctions:
    """Two ways to train on some rows, with checkpoints in a folder: as the version was, and as is tried."""

    old: Train
    new: Train
    final: Train
    """It trains as `new` does. The end of the budget then only cuts the training short."""


def ways_of(trial: Trial, spec: ImproveSpec, base: ModelVersion) -> TrainFunctions:
    """The ways of a job. A resumed job goes on from the teachers' answers and the last epoch.

    They raise NothingNewError, StopTraining (the budget was spent before there was anything to judge) and
    HmiError.
    """
    ctx, ledger, start = trial.ctx, trial.ledger, start_of(trial.ctx, spec, base)

    def teach(ctx: JobContext, root: Root, lesson: Lesson, recipe: Recipe, folder: Path) -> Taught:
        found = taught_by_several(trial, lesson, recipe, folder)
        if not found.rows:
            raise NothingNewError("; ".join(found.warnings))
        return found

    def teach_at_last(ctx: JobContext, root: Root, lesson: Lesson, recipe: Recipe, folder: Path) -> Taught:
        found = teach(ctx, root, lesson, recipe, folder)
        ledger.conclude()
        return found

    def way(teach: Teach, enough: Callable[[], bool], options: FineTuneOptions) -> Train:
        def train(on: Data, folder: Path) -> TrainedModel:
            course = TrainingRun(start, teach, folder, enough=enough)
            return train_on_rows(ctx, options, course, trial.root, base.plot_version, on)

        return train

    return TrainFunctions(
        way(taught_rows, lambda: False, spec.options.model_copy(update={"ramps": False})),
        way(teach, lambda: False, options_of(spec, ramps=False)),
        way(teach_at_last, ledger.enough, options_of(spec, ramps=bool(base.ramps))),
    )


def options_of(spec: ImproveSpec, *, ramps: bool) -> FineTuneOptions:
    """The options of a training on teachers' answers."""
    variants = max(COPIES, spec.options.variants)
    changed = {"ramps": ramps, "variants": variants, "epochs": spec.options.epochs or EPOCHS}
    return spec.options.model_copy(update=changed)


def starts_afresh(spec: ImproveSpec) -> bool:
    """Return whether the version knows no other rows than the job's. Else the candidate goes on from it."""
    return spec.mode == "create" and spec.options.start is None


def start_of(ctx: JobContext, spec: ImproveSpec, base: ModelVersion) -> Start:
    """Return a function that loads the weights from which the candidate starts.

    If the version started from nothing, so does the candidate. Else it starts from the version, which has all
    that it began from: an earlier version, another model or an adapter. These may be gone by now.
    """

    def start(trainer: Learner) -> None:
        if not starts_afresh(spec):
            artefact = Artefact.split(ctx.adapters.get(base.artefact))
            trainer.start_from(artefact.map(lambda value: value.float()))

    return start


def rows_before(ctx: JobContext, spec: ImproveSpec, base: ModelVersion) -> list[RowKeys]:
    """The keys of the rows that the candidate knows beside the job's."""
    return [] if starts_afresh(spec) else [seen_by(ctx, base)]
