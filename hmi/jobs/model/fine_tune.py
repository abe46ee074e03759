"""The job that trains a tenant's model: it checks the rows, looks up their PLOT features, trains
module and head from the right start, and publishes the version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hmi.core import ModelId, ModelVersion, Task, TaskRules
from hmi.errors import InvalidInput
from hmi.jobs.improving.handing_over import hand_over
from hmi.jobs.model import generation, import_module
from hmi.jobs.model import train_ramps as train_ramps_job
from hmi.jobs.model.comparing import Compare, HeldOutAnswers, Verdict, by_answers, judge_update, seen_by
from hmi.jobs.model.publishing import stored_version
from hmi.jobs.model.results import published_result
from hmi.jobs.model.tenant_training import TrainedModel, TrainingRun, train_on_rows
from hmi.jobs.model.training_data import Data, read_data
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import PinnedPlots
from hmi.jobs.specs import FineTuneSpec
from hmi.model.memory import keep_freed_memory
from hmi.model.sources.generative_root import GenerativeRoot, load_for_serving
from hmi.model.sources.root import Root
from hmi.model.tasks import KINDS, task_of_version
from hmi.model.tasks.embedding import Embedding
from hmi.model.tenant.artefact import Artefact
from hmi.stores.plot.plot_meta import PlotMeta
from hmi.stores.tensors.adapter_store import DamagedArtefact
from hmi.training.fit.learner import Learner
from hmi.training.tasks.row_keys import RowKeys
from plot_store import VersionInfo


def _warm_start(
    ctx: JobContext, spec: FineTuneSpec, root: Root | GenerativeRoot, trainer: Learner, data: Data
) -> str | None:
    """Load the weights that training starts from.

    An update continues from the live version if labels and module are the same; a new model from the
    sibling in options.start; an import from its adapter. If the live version is damaged or stands on
    another root, the update starts without it, and a remark on this is returned. Raises Damaged for a
    damaged sibling.
    """
    mode, task, source = spec.mode, data.task, spec.source
    if mode == "import":
        trainer.start_from(import_module.start_state(ctx, root.info, task.name, task.labels))
        return None
    if source is None:
        return None
    live = ctx.registry.model(ModelId.parse(source, "options.start")).live
    same = live.labels == task.labels and task_of_version(live).reads == task.reads
    if mode == "create" and live.module != data.module:
        raise InvalidInput(
            f"{source} has another module: leave module out to take that module over", field="options.start"
        )
    if live.root != root.info.name:
        return (
            f"the live version stands on root {live.root}: this update on {root.info.name} was trained "
            "afresh, on these rows alone"
        )
    if live.module != data.module or (mode == "update" and not same):
        return None
    try:
        artefact = Artefact.split(ctx.adapters.get(live.artefact))
    except DamagedArtefact as error:
        ctx.log(error.message)
        if mode != "update":
            raise error.of(f"version {live.version} of {source}, which options.start names,") from error
        return (
            f"the live version {live.version} is damaged: this update was trained afresh, on these rows alone"
        )
    # If the labels or the task differ, only the module can be reused, not the head and its companions.
    artefact = artefact if same else Artefact(artefact.module)
    trainer.start_from(artefact.map(lambda value: value.float()))
    return None


def _trained_before(ctx: JobContext, spec: FineTuneSpec) -> list[RowKeys]:
    """Row keys of the model that this one may continue from."""
    if spec.source is None:
        return []
    return [seen_by(ctx, ctx.registry.model(ModelId.parse(spec.source, "options.start")).live)]


def run(ctx: JobContext) -> dict[str, Any]:
    """Run the job."""
    keep_freed_memory()
    spec = FineTuneSpec.of(ctx.job)
    ctx.registry.rooms.check_job(ctx.job)  # the tenant may have used up its room since the job was queued
    if import_module.without_rows(ctx):
        return import_module.run(ctx)
    if spec.mode == "ramps":
        return train_ramps_job.run(ctx)
    if spec.mode == "tokens":
        from hmi.jobs.stage import profile_tokens

        return profile_tokens.run(ctx)
    options, name = spec.options, _check_task_kind(spec.task)
    # Rows are read first, so that their errors are reported at once.
    data = None if name == "embedding" else read_data(ctx.input, name, options)
    plot = _pinned_plot(ctx, spec.root or spec.domain)
    root = load_for_serving(ctx.roots.folder(plot.ref.split("/")[0], PlotMeta.of(plot).root_version))
    made, against = _made(ctx, spec, root, plot.id, data)
    verdict = Verdict()
    if spec.mode == "update":
        dev = [] if data is None else data.dev
        verdict = judge_update(ctx, dev, made.answers, spec.publish or "if-better", against)
    metrics = made.metrics if verdict.scores is None else {**made.metrics, "live": verdict.scores}
    if verdict.remark is not None:
        metrics = {**metrics, "warnings": [*metrics["warnings"], verdict.remark]}
    before = [] if made.afresh or data is None else _trained_before(ctx, spec)
    version = stored_version(
        ctx, spec, root, plot.id, data, made, before, metrics=metrics, held_back=verdict.held_back
    )
    record = ctx.registry.publish_model(spec.model_id, version, spec.options.depth)
    result = published_result(record, ctx.job.job, spec.publish)
    return result if data is None else {**result, "improving": hand_over(ctx, spec, record)}


def _made(
    ctx: JobContext, spec: FineTuneSpec, root: Root | GenerativeRoot, plot: str, data: Data | None
) -> tuple[TrainedModel, Callable[[ModelVersion], Compare]]:
    """The trained model, and how it is compared with the live version."""
    if isinstance(root, GenerativeRoot):
        if data is None or data.task.name != "generation":
            raise InvalidInput(
                f"root {root.info.name} is a language model: give task generation", field="task"
            )
        return _writing(ctx, spec, root, plot, data)
    if data is None:
        made, dev = _embedding(root, spec.options), []
    else:
        if data.task.name == "generation":
            raise InvalidInput(f"root {root.info.name} is an encoder, which cannot write", field="task")
        course = TrainingRun(lambda trainer: _warm_start(ctx, spec, root, trainer, data))
        made, dev = train_on_rows(ctx, spec.options, course, root, plot, data), data.dev
    return made, by_answers(ctx, root, dev, made.answers)


def _writing(
    ctx: JobContext, spec: FineTuneSpec, root: GenerativeRoot, plot: str, data: Data
) -> tuple[TrainedModel, Callable[[ModelVersion], Compare]]:
    def start(trainer: Learner) -> str | None:
        return _warm_start(ctx, spec, root, trainer, data)

    def against(live: ModelVersion) -> Compare:
        old = generation.losses_of(ctx, root, live, data.dev)
        new = made.answers.merged
        return lambda which: generation.compare_losses([old[i] for i in which], [new[i] for i in which])

    made = generation.train_writing(ctx, spec.options, start, root, plot, data)
    return made, against


def _embedding(root: Root, options: FineTuneOptions) -> TrainedModel:
    """An embedding model: the root's upper layers, pooled as the root's authors do. Nothing is trained."""
    rules = TaskRules(pooling=root.info.pooling, normalise=root.info.normalise)
    length = min(options.max_length, root.max_length)
    return TrainedModel(HeldOutAnswers(Embedding((), rules), []), Artefact(), length, {"dim": root.dim})


def _check_task_kind(value: str) -> Task:
    if value not in KINDS:
        raise InvalidInput(f"task {value!r} is unknown: use one of {', '.join(KINDS)}", field="task")
    return value  # type: ignore[return-value]  # narrowed by the check above


def _pinned_plot(ctx: JobContext, domain: str) -> VersionInfo:
    """The PLOT version to train on. It is fixed at the job's first start, so that a resumed run
    sees the same features."""
    pinned = ctx.pinned().plot
    if pinned is None:
        pinned = ctx.domain(domain).id
        ctx.pin(PinnedPlots(plot=pinned))
    return ctx.plots.version(pinned)
