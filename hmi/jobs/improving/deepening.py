"""The deeper trial of a job `improve`: the same rows and teachers' answers, and a module in each layer of the
source. It needs a root of the same source that looks up no layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from hmi.core import ModelRecord, ModelVersion, ModuleSpec, RootRecord
from hmi.errors import NotFound
from hmi.jobs.improving.teaching import Trial, taught_by_several
from hmi.jobs.improving.trying import options_of, starts_afresh
from hmi.jobs.model.teaching import Taught
from hmi.jobs.model.tenant_training import TrainedModel, TrainingRun, train_on_rows
from hmi.jobs.model.training_data import Data
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.specs import ImproveSpec
from hmi.model.sources.root import Root, load_root
from hmi.stores.plot.plots import current_version
from hmi.training.plans.recipe import Recipe
from hmi.training.second.teacher import Lesson


@dataclass(frozen=True)
class VersionCandidate:
    """A version that may be published, with what it stands on."""

    root: Root
    plot: str
    """The PLOT version that its features come from."""
    data: Data
    made: TrainedModel


def deeper_root(
    ctx: JobContext, model: ModelRecord, base: ModelVersion, spec: ImproveSpec
) -> RootRecord | None:
    """The root that a deeper version would stand on; None if none is tried.

    The model wants none, it computes all layers already, there is no such root, or the version knows rows
    that this job does not have.
    """
    if model.depth == "fast" or not starts_afresh(spec):
        return None
    found = ctx.registry.full_root(base.root)
    return None if found is None or found.name == base.root else found


def trained_deeper(
    trial: Trial, spec: ImproveSpec, base: ModelVersion, data: Data, record: RootRecord
) -> VersionCandidate:
    """Train on the answers that the other trial has left in the job's folder, or ask the teachers now.

    The end of the budget cuts the training short. Raises as the training of a version does, StopTraining.
    """
    ctx = trial.ctx
    plot = _kept_plot(ctx, record)
    root = load_root(ctx.roots.folder(record.name, record.version))
    on = replace(data, module=spec.options.module or ModuleSpec())
    folder = ctx.folder / "deeper"
    folder.mkdir(exist_ok=True)

    def teach(ctx: JobContext, root: Root, lesson: Lesson, recipe: Recipe, folder: Path) -> Taught:
        found = taught_by_several(trial, lesson, recipe, ctx.folder)
        trial.ledger.conclude()
        return found

    course = TrainingRun(lambda trainer: None, teach, folder, enough=trial.ledger.enough)
    options = options_of(spec, ramps=bool(base.ramps))
    with trial.ledger.share(1):
        return VersionCandidate(root, plot, on, train_on_rows(ctx, options, course, root, plot, on))


def _kept_plot(ctx: JobContext, record: RootRecord) -> str:
    """The root's PLOT version. From here on the root cannot be deleted before the job has ended.

    Raises NotFound if it was deleted just before.
    """
    ctx.registry.update_job(
        ctx.job.job, lambda job: job.model_copy(update={"spec": {**job.spec, "root": record.name}})
    )
    found = current_version(ctx.plots, record.name)
    if found is None:
        raise NotFound(f"root {record.name} was deleted meanwhile", field="root")
    return found.id
