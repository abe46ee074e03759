"""The job that trains a tenant's model: it checks the rows, looks up their PLOT features, trains
module and head, and publishes the version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from hmi.core import ModelId, ModelVersion, Task, TaskRules, now
from hmi.errors import InvalidInput, NotFound
from hmi.jobs import import_module
from hmi.jobs import train_ramps as train_ramps_job
from hmi.jobs.comparing import HeldOutAnswers, Verdict, judge_update, seen_by
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.results import published_result
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.runtime.folders import PinnedPlots
from hmi.jobs.specs import FineTuneSpec
from hmi.jobs.teaching import taught_rows
from hmi.jobs.training_data import Data, read_data
from hmi.model.artefact import Artefact
from hmi.model.memory import keep_freed_memory
from hmi.model.root import Root, load_root
from hmi.model.tasks import KINDS, TaskKind, task_of_version
from hmi.model.tasks.embedding import Embedding
from hmi.stores.adapter_store import DamagedArtefact
from hmi.stores.plot_meta import PlotMeta
from hmi.training.calibrating import calibrated, calibrated_entities
from hmi.training.checkpoint import CHECKPOINT, Resumed, resume_training, write_training
from hmi.training.early_stopping import History, train_to_best
from hmi.training.features import dev_examples, examples_of
from hmi.training.knowing import learn_known
from hmi.training.objectives import objective_of
from hmi.training.objectives.words import TaggingObjective
from hmi.training.plan import plan_training
from hmi.training.ramps import Texts, ramps_by_default, train_ramps
from hmi.training.remarks import remarks
from hmi.training.row_keys import RowKeys, joined_keys, keys_as_text
from hmi.training.splits import Split, class_weights, encoded_split, merged_outputs, task_targets
from hmi.training.teacher import Lesson
from hmi.training.trainer import Trainer, tenant_trainer
from plot_store import Reader, VersionInfo


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
        from hmi.jobs import profile_tokens  # needs the engine, which takes half a second to import

        return profile_tokens.run(ctx)
    options, name = spec.options, _known(spec.task)
    # Rows are read first, so that their errors are reported at once.
    data = None if name == "embedding" else read_data(ctx.input, name, options)
    plot = _pinned_plot(ctx, spec.domain)
    root = load_root(ctx.layout.root(plot.ref.split("/")[0], PlotMeta.of(plot).root_version))
    made = _embedding(root, options) if data is None else _fine_tuned(ctx, spec, root, plot, data)
    verdict, about = Verdict(), {"task": str(name)}
    if data is not None:
        before = [] if made.afresh else _trained_before(ctx, spec)
        about["rows"] = keys_as_text(joined_keys(data.train, *before))
    if spec.mode == "update":
        dev = [] if data is None else data.dev
        verdict = judge_update(ctx, root, dev, made.answers, spec.publish or "if-better")
    metrics = made.metrics if verdict.scores is None else {**made.metrics, "live": verdict.scores}
    if verdict.remark is not None:
        metrics = {**metrics, "warnings": [*metrics["warnings"], verdict.remark]}
    artefact, size = ctx.adapters.put(made.artefact.joined(), about)
    model = spec.model_id
    record = ctx.registry.publish_model(
        model,
        ModelVersion(
            version=0,
            artefact=artefact,
            domain=spec.domain,
            plot_version=plot.id,
            root=root.info.name,
            root_version=root.info.version,
            task=name,
            labels=made.task.labels,
            rules=made.task.rules,
            module=None if data is None else data.module,
            max_length=made.max_length,
            metrics=metrics,
            lexical=bool(made.artefact.lexical),
            transitions=options.transitions,
            ramps=made.ramps,
            temperature=made.temperature,
            known=made.known,
            entity_calibration=made.entities,
            rest=options.rest or "fp16",
            bytes=size,
            created=now(),
            job=ctx.job.job,
            held_back=verdict.held_back,
        ),
    )
    return published_result(record, ctx.job.job, spec.publish)


@dataclass(frozen=True)
class Made:
    """A model that is ready to be published, with its answers on the held-out rows."""

    answers: HeldOutAnswers
    artefact: Artefact
    max_length: int
    metrics: dict[str, Any]
    temperature: float | None = None
    """That calibrates its probabilities."""
    ramps: tuple[int, ...] = ()
    """The sites of its ramps."""
    afresh: str | None = None
    """A remark if an update started without the live version's weights, because that version is damaged."""
    known: tuple[float, ...] = ()
    """The version's `known`."""
    entities: tuple[float, float] | None = None
    """The version's `entity_calibration`."""

    @property
    def task(self) -> TaskKind:
        return self.answers.task


def _embedding(root: Root, options: FineTuneOptions) -> Made:
    """An embedding model: the root's upper layers, pooled as the root's authors do. Nothing is trained."""
    rules = TaskRules(pooling=root.info.pooling, normalise=root.info.normalise)
    length = min(options.max_length, root.max_length)
    return Made(HeldOutAnswers(Embedding((), rules), []), Artefact(), length, {"dim": root.dim})


def _fine_tuned(ctx: JobContext, spec: FineTuneSpec, root: Root, plot: VersionInfo, data: Data) -> Made:
    recipe, windows = spec.options.recipe(), data.task.rules.windows
    max_length = min(recipe.max_length, root.max_length)
    train, dev = (
        encoded_split(r, root.tokenizer, max_length, windows=windows) for r in (data.train, data.dev)
    )
    weights = class_weights(data.task, train, task_targets(data.task, train), recipe.class_weights)
    about: dict[str, Any] = {**_about(train, weights), "read": data.read}
    warnings = [*data.notes, *remarks(data.task, data.train, data.dev, dev_given=data.dev_given)]
    if data.unlabelled or recipe.variants:
        taught = taught_rows(
            ctx, root, Lesson(data.task, train, dev, data.unlabelled, max_length, weights), recipe
        )
        about["teacher"] = taught.metrics
        warnings += taught.warnings
        train = encoded_split([*data.train, *taught.rows], root.tokenizer, max_length, windows=windows)
    with ctx.plots.reader(plot.id) as reader:
        made = _train(ctx, spec, root, reader, data, train, dev, weights)
    warnings += [made.afresh] if made.afresh else []
    return replace(made, metrics={**made.metrics, **about, "warnings": warnings})


def _train(
    ctx: JobContext,
    spec: FineTuneSpec,
    root: Root,
    reader: Reader,
    data: Data,
    train: Split,
    dev: Split,
    weights: tuple[float, ...] | None,
) -> Made:
    """Train, with a checkpoint after each epoch, and keep the weights of the best epoch, rounded."""
    task, targets = data.task, task_targets(data.task, train)
    recipe = replace(spec.options.recipe(), module=data.module)
    plan = plan_training(recipe, task, len(targets), weights=weights)
    held_out = dev_examples(root, reader, dev, plan.lexical)
    given = examples_of(root, reader, train, targets, plan.lexical)
    trainer = tenant_trainer(root, data.module, plan, given)
    checkpoint = ctx.folder / CHECKPOINT
    begun = resume_training(checkpoint, trainer)
    if begun is None:
        begun = Resumed(History(), _warm_start(ctx, spec, root, trainer, data))

    def report(step: int, total: int, loss: float) -> None:
        ctx.progress(step, total, phase="fine-tuning", loss=loss)

    def keep(history: History) -> None:
        write_training(checkpoint, trainer, history, begun.remark)
        ctx.checkpointed()

    history = train_to_best(
        trainer,
        lambda: _judged(trainer.reading(task), dev, trainer.predict(held_out))[1],
        report,
        keep_best=len(dev.rows) >= recipe.held_out.enough,
        start=begun.history,
        after_epoch=keep,
    )
    published = trainer.publishable(history.kept.artefact, spec.options.rest or "fp16")
    # Score the rounded weights that users get, not the fp32 ones.
    answers, metrics = _judged(trainer.reading(task), dev, trainer.predict(held_out, exact=True))
    metrics = {**metrics, "epoch": history.kept.epoch, "epochs": plan.epochs, "epochs_run": history.epochs}
    temperature, figures = _calibrated(answers, dev, recipe.held_out.enough)
    fitted, of_entities = _calibrated_entities(answers, dev)
    if figures := {**figures, **of_entities}:
        metrics["calibration"] = {**metrics["calibration"], **figures}
    seen = learn_known(root, reader, answers.task, [train.upto(len(data.train)), dev])
    published = replace(published, known=seen.tensors)
    metrics = {**metrics, "known": seen.metrics} if seen.metrics else metrics
    sites: tuple[int, ...] = ()
    if _wants_ramps(spec.options, train, root, task):
        texts = Texts(train, given), Texts(dev, held_out)
        ramps = train_ramps(trainer, answers.task, *texts, partial(ctx.progress, phase="training ramps"))
        published, sites = replace(published, ramps=ramps.tensors), ramps.sites
        metrics = {**metrics, "ramps": {**ramps.metrics, "unseen": True}}
    length = min(recipe.max_length, root.max_length)
    return Made(answers, published, length, metrics, temperature, sites, begun.remark, seen.shares, fitted)


def _wants_ramps(options: FineTuneOptions, train: Split, root: Root, task: TaskKind) -> bool:
    if options.ramps is not None:
        return options.ramps
    return ramps_by_default(len(train.encoded), len(root.upper), task.outputs)


def _calibrated(answers: HeldOutAnswers, dev: Split, enough: int) -> tuple[float | None, dict[str, Any]]:
    """The temperature, if there are enough rows, and figures for the report."""
    golds = [row.label for row in dev.rows]
    return calibrated(objective_of(answers.task).decisions(golds, answers.merged), len(golds), enough)


def _calibrated_entities(
    answers: HeldOutAnswers, dev: Split
) -> tuple[tuple[float, float] | None, dict[str, Any]]:
    """The calibration of entities' scores, for tagging, and figures for the report."""
    objective = objective_of(answers.task)
    if not isinstance(objective, TaggingObjective) or answers.task.rules.scheme == "free":
        return None, {}
    return calibrated_entities(*objective.entities([row.label for row in dev.rows], answers.merged))


def _judged(task: TaskKind, dev: Split, outputs: Sequence[Tensor]) -> tuple[HeldOutAnswers, dict[str, Any]]:
    """Tune the task's rules (such as a threshold) on these rows. Returns its answers and metrics on them."""
    golds, merged = [row.label for row in dev.rows], merged_outputs(task, dev, outputs)
    task = objective_of(task).tuned(golds, merged)
    return HeldOutAnswers(task, merged), objective_of(task).score(golds, merged)


def _about(train: Split, weights: tuple[float, ...] | None) -> dict[str, Any]:
    """Report fields about the tenant's own rows."""
    return {
        "train_rows": len(train.rows),
        "truncated_rows": sum(e.truncated for e in train.encoded),
        "windows": len(train.encoded),
        "class_weights": weights is not None,
    }


def _known(value: str) -> Task:
    if value not in KINDS:
        raise InvalidInput(f"task {value!r} is unknown: use one of {', '.join(KINDS)}", field="task")
    return value  # type: ignore[return-value]  # narrowed by the check above


def _pinned_plot(ctx: JobContext, domain: str) -> VersionInfo:
    """The PLOT version to train on. It is fixed at the job's first start, so that a resumed run
    sees the same features."""
    pinned = ctx.pinned().plot
    if pinned is None:
        refs = ctx.plots.refs()
        if domain not in refs:
            raise NotFound(f"domain {domain} does not exist: create it first", field="domain")
        pinned = refs[domain].id
        ctx.pin(PinnedPlots(plot=pinned))
    return ctx.plots.version(pinned)


def _warm_start(ctx: JobContext, spec: FineTuneSpec, root: Root, trainer: Trainer, data: Data) -> str | None:
    """Load the weights that training starts from.

    An update continues from the live version if labels and module are the same; a new model from the
    sibling in options.start; an import from its adapter. If the live version is damaged, the update
    starts without it, and a remark on this is returned. Raises Damaged for a damaged sibling.
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
