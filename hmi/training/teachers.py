"""Several teachers for one tenant: each is tuned from another source, and dev decides how much each says.

A small source is tuned whole. Of a deep one only the upper half is tuned, which takes half the time and
memory (docs/design/0024-better-by-itself.md). A source has its own tokenizer, so teachers meet only in their
outputs for whole texts and words: log-probabilities of labels or of each word's tags, or values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from hmi.model.encoder import Encoder
from hmi.model.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tasks.sequence import Classification
from hmi.model.tokenizer import Tokenizer
from hmi.training.backbones import Backbone, EncoderBackbone, UpperHalfBackbone
from hmi.training.data.rows import Row
from hmi.training.early_stopping import train_to_best
from hmi.training.golds import Gold
from hmi.training.plan import TrainPlan, plan_training
from hmi.training.recipe import Recipe
from hmi.training.reports import PhaseReport
from hmi.training.said import Said, mixed_golds
from hmi.training.splits import Split, encoded_split, judge, merged_outputs, task_targets
from hmi.training.teacher import Lesson, encoder_examples, teacher_recipe
from hmi.training.trainer import Trainer

WHOLE = 6
"""A source with at most this many layers is tuned whole, of a deeper one the upper half."""
DEEP_BATCH = 32
"""Rows of a step of a deep source. Its steps cost much beside the rows: each moves all of its weights."""
DEEP_EPOCHS = 5
"""The most epochs of a deep source. Its best one is early."""
REPORT_EVERY = 256
"""Texts labelled between two progress reports."""


@dataclass(frozen=True)
class TeacherSource:
    """A model that teachers are tuned from, in fp32, with its own tokenizer."""

    name: str
    encoder: Encoder
    tokenizer: Tokenizer

    @property
    def deep(self) -> bool:
        return len(self.encoder.layers) > WHOLE

    def backbone(self) -> Backbone:
        """A copy of what is tuned."""
        if not self.deep:
            return EncoderBackbone(self.encoder)
        return UpperHalfBackbone(self.encoder, len(self.encoder.layers) // 2)


@dataclass(frozen=True)
class TextLesson:
    """A teacher's training rows, held-out rows, and the texts that it answers, none of them tokenised.

    `weights` are the weights of the classes in the loss.
    """

    task: TaskKind
    train: list[Row]
    dev: list[Row]
    texts: list[Row]
    max_length: int
    weights: tuple[float, ...] | None = None


def teach_with(source: TeacherSource, lesson: TextLesson, recipe: Recipe, report: PhaseReport) -> Said:
    """Tune a teacher on the lesson's rows and let it answer dev and the texts.

    Raises InvalidData (diverged).
    """
    begun, task = time.process_time(), lesson.task

    def split(rows: list[Row]) -> Split:
        return encoded_split(rows, source.tokenizer, lesson.max_length, windows=task.rules.windows)

    train, dev = split(lesson.train), split(lesson.dev)
    targets = task_targets(task, train)
    plan = _plan(source, lesson, recipe, len(targets))
    trainer = Trainer(
        source.backbone(), source.encoder.shape.dim, plan, encoder_examples(train.encoded, targets)
    )
    held_out = encoder_examples(dev.encoded, [[]] * len(dev.encoded))
    best = train_to_best(
        trainer,
        lambda: judge(trainer.reading(task), dev, trainer.predict(held_out)),
        lambda step, total, loss: report("training a teacher", step, total, loss),
        keep_best=len(dev.rows) >= recipe.held_out.enough,
    ).kept
    trainer.load(best.artefact)
    read = trainer.reading(task)
    answers = _likelihoods(read, merged_outputs(read, dev, trainer.predict(held_out)))
    texts: list[Tensor] = []
    for at in range(0, len(lesson.texts), REPORT_EVERY):
        some = split(lesson.texts[at : at + REPORT_EVERY])
        outputs = trainer.predict(encoder_examples(some.encoded, [[]] * len(some.encoded)))
        texts += _likelihoods(read, merged_outputs(read, some, outputs))
        report("labelling texts", len(texts), len(lesson.texts), None)
    return Said(source.name, read, answers, texts, best.score, time.process_time() - begun)


def teach(
    encoder: Encoder, root: Root, lesson: Lesson, recipe: Recipe, report: PhaseReport
) -> tuple[float, list[Gold]]:
    """Tune one teacher from the root's source, and let it answer the lesson's texts.

    Returns its score on dev and its answer to each text. Raises InvalidData (diverged).
    """
    rows = TextLesson(
        lesson.task, lesson.train.rows, lesson.dev.rows, lesson.texts, lesson.max_length, lesson.weights
    )
    said = teach_with(TeacherSource(root.info.name, encoder, root.tokenizer), rows, recipe, report)
    return said.score, mixed_golds([said], [1.0])


def _plan(source: TeacherSource, lesson: TextLesson, recipe: Recipe, rows: int) -> TrainPlan:
    recipe = teacher_recipe(recipe, lesson.task)
    plan = plan_training(recipe, lesson.task, rows, weights=lesson.weights)
    if not source.deep:
        return plan
    steps = max(1, -(-rows // DEEP_BATCH))
    epochs = min(plan.epochs, max(DEEP_EPOCHS, -(-100 // steps)))
    return replace(plan, batch=DEEP_BATCH, epochs=epochs, patience=2)


def _likelihoods(task: TaskKind, merged: Sequence[Tensor]) -> list[Tensor]:
    """Outputs that can be averaged between teachers: logits of one label become log-probabilities."""
    one_label = isinstance(task, Classification)
    return [(output.float().log_softmax(-1) if one_label else output.float()) for output in merged]
