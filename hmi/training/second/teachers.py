"""Several teachers for one tenant: each is tuned from another source, and dev decides how much each says.

A small source is tuned whole. Of a deep one only the upper layers are tuned, and the states that enter them
are computed once for each text (docs/design/0024-better-by-itself.md). A source has its own tokenizer, so
teachers meet only in their outputs for whole texts and words: log-probabilities of labels or of each word's
tags, or values.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hmi.model.network.encoder import Encoder
from hmi.model.sources.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tasks.sequence import Classification
from hmi.model.text.batching import READ_TOKENS, Encoded, in_parts, pad_ids
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.golds import Gold
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import Backbone, EncoderBackbone, Examples, UpperBackbone
from hmi.training.fit.early_stopping import train_to_best
from hmi.training.fit.plan import TrainPlan, plan_training
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import PhaseReport
from hmi.training.fit.row_cache import RowCache
from hmi.training.fit.trainer import Trainer
from hmi.training.plans.recipe import Recipe
from hmi.training.second.teacher import Lesson, encoder_examples, teacher_recipe
from hmi.training.second.teacher_outputs import TeacherOutputs, mixed_golds
from hmi.training.tasks.splits import Split, encoded_split, judge, merged_outputs, task_targets

TUNED = 6
"""The most layers of a source that are tuned: the last ones."""
KEPT_BYTES = 128 << 20
"""The most bytes of a deep source's states that are kept for training rows, and half as many for held-out
rows. In 16 bits these are the states of 87,000 tokens of 768 numbers."""
DEEP_BATCH = 32
"""Rows of a step of a deep source. Its steps cost much beside the rows: each moves all of its weights."""
DEEP_EPOCHS, DEEP_STEPS = 5, 100
"""A deep source is tuned for this many epochs, since its best one is early, or for more if they would have
fewer steps."""
TIMED_TEXTS = 16
"""The most texts that are read to time a source."""
TAGGED_ROWS = 800
"""A teacher is trained on at least this many tagged rows between two scores on dev. Of fewer rows it takes
several epochs together as one. Few rows would make too few steps."""
REPORT_EVERY = 256
"""Texts labelled between two progress reports."""


@dataclass(frozen=True)
class TeacherSource:
    """A model that teachers are tuned from, in fp32, with its own tokenizer."""

    name: str
    encoder: Encoder
    tokenizer: Tokenizer
    spare: bool = False
    """Whether a teacher may tune the encoder itself, which spares the memory of a copy."""

    @property
    def frozen(self) -> int:
        """The number of layers that are not tuned, the first ones."""
        return max(0, len(self.encoder.layers) - TUNED)

    @property
    def deep(self) -> bool:
        """Return whether layers are frozen. If not, the embeddings are tuned, too."""
        return self.frozen > 0

    def backbone(self) -> Backbone:
        """Return the layers to tune: a copy unless the encoder is spare. They read what `examples` gives."""
        if not self.deep:
            return EncoderBackbone(self.encoder, copied=not self.spare)
        upper = self.encoder.layers[self.frozen :]
        return UpperBackbone(upper, self.encoder.shape.heads, copied=not self.spare)

    def examples(
        self, encoded: Sequence[Encoded], targets: Sequence[Sequence[float]], *, keep: int = 0
    ) -> Examples:
        """Tokenised texts as `backbone` reads them: token ids or, of a deep source, states [T_i, dim].

        These are the states after the frozen layers. keep: the most bytes of them that are kept for later
        epochs.
        """
        if not self.deep:
            return encoder_examples(encoded, targets)

        @torch.no_grad()
        def states(rows: Sequence[int]) -> list[Tensor]:
            ids, types = pad_ids([encoded[i].ids for i in rows]), pad_ids([encoded[i].types for i in rows])
            mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(encoded[i]) for i in rows])[:, None]
            found = self.encoder(ids, mask, types, upto=self.frozen)
            return [found[at, : len(encoded[i])].half() for at, i in enumerate(rows)]

        features = RowCache(states, lambda one: one.nbytes, keep) if keep else states
        return Examples([len(e) for e in encoded], [e.types for e in encoded], features, targets)


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


def teach_with(
    source: TeacherSource, lesson: TextLesson, recipe: Recipe, report: PhaseReport
) -> TeacherOutputs:
    """Tune a teacher on the lesson's rows and let it answer dev and the texts.

    Raises InvalidData (diverged).
    """
    begun, task = time.process_time(), lesson.task

    def split(rows: list[Row]) -> Split:
        return encoded_split(rows, source.tokenizer, lesson.max_length, windows=task.rules.windows)

    train, dev = split(lesson.train), split(lesson.dev)
    targets = task_targets(task, train)
    plan, together = _plan(source, lesson, recipe, len(targets))
    trainer = Trainer(
        source.backbone(),
        source.encoder.shape.dim,
        plan,
        source.examples(train.encoded, targets, keep=KEPT_BYTES),
    )
    held_out = source.examples(dev.encoded, [[]] * len(dev.encoded), keep=KEPT_BYTES // 2)
    best = train_to_best(
        trainer,
        lambda: judge(trainer.reading(task), dev, trainer.predict(held_out)),
        lambda step, total, loss: report("training a teacher", step, total, loss),
        keep_best=len(dev.rows) >= recipe.held_out.enough,
        every=together,
    ).kept
    trainer.load(best.artefact)
    read = trainer.reading(task)
    answers = _likelihoods(read, merged_outputs(read, dev, trainer.predict(held_out)))
    texts: list[Tensor] = []
    for at in range(0, len(lesson.texts), REPORT_EVERY):
        some = split(lesson.texts[at : at + REPORT_EVERY])
        outputs = trainer.predict(source.examples(some.encoded, [[]] * len(some.encoded)))
        texts += _likelihoods(read, merged_outputs(read, some, outputs))
        report("labelling texts", len(texts), len(lesson.texts), None)
    return TeacherOutputs(source.name, read, answers, texts, best.score, time.process_time() - begun)


def expected_s(source: TeacherSource, lesson: TextLesson, recipe: Recipe) -> float:
    """The CPU seconds that a deep source takes at most to be tuned and to answer the texts, by a measurement.

    It reads some texts of middling length to find out, since machines differ: without bf16 a teacher takes
    several times as long. A training step costs a pass forward and two backward through the tuned layers.
    """

    def encoded(rows: list[Row]) -> list[Encoded]:
        windows = lesson.task.rules.windows
        return encoded_split(rows, source.tokenizer, lesson.max_length, windows=windows).encoded

    train, dev, texts = (encoded(rows) for rows in (lesson.train, lesson.dev, lesson.texts))
    by_length = sorted([*train, *texts], key=len)
    middle = max(0, len(by_length) - TIMED_TEXTS) // 2
    near = by_length[middle : middle + TIMED_TEXTS]
    timed = [near[i] for i in next(in_parts(range(len(near)), [len(one) for one in near], READ_TOKENS))]
    ids, took = pad_ids([one.ids for one in timed]), 0.0
    for _ in range(2):  # the first pass warms up
        begun = time.process_time()
        with torch.inference_mode(), arithmetic(bf16=True):
            source.encoder(ids, torch.ones_like(ids, dtype=torch.bool))
        took = time.process_time() - begun
    plan, together = _plan(source, lesson, recipe, max(1, len(train)))
    frozen = source.frozen / len(source.encoder.layers)
    judged = plan.epochs / together + 1
    passes = (
        (train, frozen * _reads(source, train, KEPT_BYTES, plan.epochs) + 3 * (1 - frozen) * plan.epochs),
        (dev, frozen * _reads(source, dev, KEPT_BYTES // 2, judged) + (1 - frozen) * judged),
        (texts, 1.0),
    )
    return took / ids.numel() * sum(times * sum(map(len, part)) for part, times in passes)


def _reads(source: TeacherSource, rows: Sequence[Encoded], kept: int, times: float) -> float:
    """How often a row goes through the frozen layers on average: again and again where its states are not
    kept."""
    tokens = sum(map(len, rows))
    beyond = max(0.0, 1 - kept / (2 * source.encoder.shape.dim) / max(1, tokens))
    return 1 + (times - 1) * beyond


def teach(
    encoder: Encoder, root: Root, lesson: Lesson, recipe: Recipe, report: PhaseReport
) -> tuple[float, list[Gold]]:
    """Tune the root's source itself, not a copy, and let it answer the lesson's texts.

    Returns its score on dev and its answer to each text. Raises InvalidData (diverged).
    """
    rows = TextLesson(
        lesson.task, lesson.train.rows, lesson.dev.rows, lesson.texts, lesson.max_length, lesson.weights
    )
    said = teach_with(
        TeacherSource(root.info.name, encoder, root.tokenizer, spare=True), rows, recipe, report
    )
    return said.score, mixed_golds([said], [1.0])


def _plan(source: TeacherSource, lesson: TextLesson, recipe: Recipe, rows: int) -> tuple[TrainPlan, int]:
    """The plan of a teacher for this many rows, and the number of epochs between two scores on dev."""
    recipe, together = teacher_recipe(recipe, lesson.task), 1
    if lesson.task.name == "tagging":
        together = -(-TAGGED_ROWS // min(rows, TAGGED_ROWS))
    plan = plan_training(recipe, lesson.task, together * rows, weights=lesson.weights)
    if source.deep:
        steps = -(-together * rows // DEEP_BATCH)
        epochs = min(plan.epochs, max(DEEP_EPOCHS, -(-DEEP_STEPS // steps)))
        plan = replace(plan, batch=DEEP_BATCH, epochs=epochs, patience=2)
    return replace(plan, epochs=together * plan.epochs, patience=together * plan.patience), together


def _likelihoods(task: TaskKind, merged: Sequence[Tensor]) -> list[Tensor]:
    """Outputs that can be averaged between teachers: logits of one label become log-probabilities."""
    one_label = isinstance(task, Classification)
    return [(output.float().log_softmax(-1) if one_label else output.float()) for output in merged]
