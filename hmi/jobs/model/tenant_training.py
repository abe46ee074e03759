"""The training of a tenant's model on rows: module and head, with all that belongs to them.

The jobs `fine_tune` and `improve` share it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from hmi.jobs.model.comparing import HeldOutAnswers
from hmi.jobs.model.teaching import Taught, taught_rows
from hmi.jobs.model.training_data import Data
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.model.memory import give_back_memory
from hmi.model.sources.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tenant.artefact import Artefact
from hmi.training.data.long_texts import Limit
from hmi.training.data.meaning.conflicts import conflicts_of
from hmi.training.data.rows import Row
from hmi.training.fit.checkpoint import CHECKPOINT, Resumed, resume_training, write_training
from hmi.training.fit.early_stopping import History, StopTraining, train_to_best
from hmi.training.fit.features import dev_examples, examples_of
from hmi.training.fit.learner import Learner
from hmi.training.fit.novelty import learn_known
from hmi.training.fit.plan import plan_training
from hmi.training.fit.trainer import Trainer, tenant_trainer
from hmi.training.for_stages.ramps import RampTexts, ramps_by_default, train_ramps
from hmi.training.plans.recipe import Recipe
from hmi.training.second.teacher import Lesson
from hmi.training.tasks.calibration import calibrated, calibrated_entities
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.objectives.words import TaggingObjective
from hmi.training.tasks.remarks import cut_remarks, remarks
from hmi.training.tasks.splits import Split, class_weights, encoded_split, merged_outputs, task_targets
from plot_store import Reader

Start = Callable[[Learner], str | None]
"""Loads the weights that a training starts from. Returns a remark for the user, or None."""
Teach = Callable[[JobContext, Root, Lesson, Recipe, Path], Taught]
"""Lets a teacher answer texts. The folder keeps the answers for a resumed run."""


@dataclass(frozen=True)
class TrainingRun:
    """The parts of a training that its job decides."""

    start: Start
    teach: Teach = taught_rows
    folder: Path | None = None
    """The folder for checkpoints; None: the job's."""
    enough: Callable[[], bool] = lambda: False
    """Asked at each step. Once it is true, the training ends, and its best epoch so far is kept."""


@dataclass(frozen=True)
class TrainedModel:
    """A model that is ready to be published, with its answers on the held-out rows."""

    answers: HeldOutAnswers
    artefact: Artefact
    max_length: int
    metrics: dict[str, Any]
    temperature: float | None = None
    """The temperature that calibrates its probabilities."""
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


def train_on_rows(
    ctx: JobContext, options: FineTuneOptions, course: TrainingRun, root: Root, plot: str, data: Data
) -> TrainedModel:
    """Train a model on the rows, and on a teacher's answers if there are texts for one. A run that is resumed
    goes on from the checkpoints.

    plot: the PLOT version to look features up in. Raises InvalidData (diverged), Conflict (a teacher's source
    is gone), Damaged, StopTraining (`course.enough` before an epoch has ended).
    """
    folder = course.folder or ctx.folder
    recipe, windows = options.recipe(), data.task.rules.windows
    max_length = min(recipe.max_length, root.max_length)
    train, dev = (
        encoded_split(r, root.tokenizer, max_length, windows=windows) for r in (data.train, data.dev)
    )
    weights = class_weights(data.task, train, task_targets(data.task, train), recipe.class_weights)
    about: dict[str, Any] = {**_row_figures(train, weights), "read": data.read}
    if data.task.name in ("classification", "pair"):
        about |= _reachable(data.dev)
    warnings = [*data.notes, *remarks(data.task, data.train, data.dev, dev_given=data.dev_given)]
    warnings += cut_remarks(Limit(max_length, windows), training=train, **{"held-out": dev})
    if data.unlabelled or recipe.variants:
        lesson = Lesson(data.task, train, dev, data.unlabelled, max_length, weights)
        taught = course.teach(ctx, root, lesson, recipe, folder)
        about["teacher"] = taught.metrics
        warnings += taught.warnings
        train = encoded_split([*data.train, *taught.rows], root.tokenizer, max_length, windows=windows)
    give_back_memory()  # of the teachers and of the tokeniser
    with ctx.plots.reader(plot) as reader:
        made = _train(ctx, options, course, root, reader, data, train, dev, weights)
    warnings += [made.afresh] if made.afresh else []
    return replace(made, metrics={**made.metrics, **about, "warnings": warnings})


def _reachable(dev: list[Row]) -> dict[str, float]:
    """The accuracy that a perfect model could reach on the held-out rows, if they name texts differently."""
    reach = conflicts_of((row.text, row.label) for row in dev).reach
    return {"reachable_accuracy": reach} if reach < 1 else {}


def _train(
    ctx: JobContext,
    options: FineTuneOptions,
    course: TrainingRun,
    root: Root,
    reader: Reader,
    data: Data,
    train: Split,
    dev: Split,
    weights: tuple[float, ...] | None,
) -> TrainedModel:
    """Train, with a checkpoint after each epoch, and keep the weights of the best epoch, rounded."""
    task, targets = data.task, task_targets(data.task, train)
    recipe = replace(options.recipe(), module=data.module)
    plan = plan_training(recipe, task, len(targets), weights=weights)
    held_out = dev_examples(root, reader, dev, plan.lexical)
    given = examples_of(root, reader, train, targets, plan.lexical)
    trainer = tenant_trainer(root, data.module, plan, given)
    checkpoint = (course.folder or ctx.folder) / CHECKPOINT
    begun = resume_training(checkpoint, trainer)
    if begun is None:
        begun = Resumed(History(), course.start(trainer))

    def report(step: int, total: int, loss: float) -> None:
        ctx.progress(step, total, phase="fine-tuning", loss=loss)
        if course.enough():
            raise StopTraining

    def keep(history: History) -> None:
        write_training(checkpoint, trainer, history, begun.remark)
        ctx.checkpointed()

    history = train_to_best(
        trainer,
        lambda: _tune_rules(trainer.reading(task), dev, trainer.predict(held_out))[1],
        report,
        keep_best=recipe.held_out.chooses(len(dev.rows)),
        start=begun.history,
        after_epoch=keep,
    )
    published = trainer.publishable(history.kept.artefact, options.rest or "fp16")
    # Score the rounded weights that users get, not the fp32 ones.
    answers, metrics = _tune_rules(trainer.reading(task), dev, trainer.predict(held_out, exact=True))
    metrics = {**metrics, "epoch": history.kept.epoch, "epochs": plan.epochs, "epochs_run": history.epochs}
    temperature, figures = _calibrated(answers, dev, recipe.held_out.enough)
    fitted, of_entities = _calibrated_entities(answers, dev)
    if figures := {**figures, **of_entities}:
        metrics["calibration"] = {**metrics["calibration"], **figures}
    seen = learn_known(root, reader, answers.task, [train.upto(len(data.train)), dev])
    published = replace(published, known=seen.tensors)
    metrics = {**metrics, "known": seen.metrics} if seen.metrics else metrics
    length = min(recipe.max_length, root.max_length)
    made = TrainedModel(
        answers, published, length, metrics, temperature, (), begun.remark, seen.shares, fitted
    )
    if not _wants_ramps(options, train, root, task):
        return made
    return _with_ramps(ctx, trainer, made, RampTexts(train, given), RampTexts(dev, held_out))


def _with_ramps(
    ctx: JobContext, trainer: Trainer, made: TrainedModel, fit: RampTexts, held: RampTexts
) -> TrainedModel:
    ramps = train_ramps(
        trainer, made.task, fit, held, lambda done, total: ctx.progress(done, total, phase="training ramps")
    )
    return replace(
        made,
        artefact=replace(made.artefact, ramps=ramps.tensors),
        ramps=ramps.sites,
        metrics={**made.metrics, "ramps": {**ramps.metrics, "unseen": True}},
    )


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


def _tune_rules(
    task: TaskKind, dev: Split, outputs: Sequence[Tensor]
) -> tuple[HeldOutAnswers, dict[str, Any]]:
    """Tune the task's rules (such as a threshold) on these rows. Returns its answers and metrics on them."""
    golds, merged = [row.label for row in dev.rows], merged_outputs(task, dev, outputs)
    task = objective_of(task).tuned(golds, merged)
    return HeldOutAnswers(task, merged), objective_of(task).score(golds, merged)


def _row_figures(train: Split, weights: tuple[float, ...] | None) -> dict[str, Any]:
    """Report fields about the tenant's own rows."""
    return {
        "train_rows": len(train.rows),
        "truncated_rows": sum(e.truncated for e in train.encoded),
        "windows": len(train.encoded),
        "class_weights": weights is not None,
    }
