"""A teacher for a tenant's module: a whole copy of the root's source is trained on the tenant's
rows, labels the tenant's unlabelled texts, and is deleted. The module is trained on the rows and
the teacher's labels (distillation on unlabelled text: Hinton et al., 2015; Chen et al., 2020). For
tasks with one label a text these are probabilities, else answers.

With few rows, frozen layers learn less than a whole copy does from the same rows; the teacher gives
them more rows.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hmi.model.encoder import Encoder
from hmi.model.root import Root
from hmi.model.tasks import TaskKind
from hmi.model.tasks.base import Answer
from hmi.model.tasks.sequence import Classification
from hmi.training.augmentation import similar_words, variants
from hmi.training.backbones import EncoderBackbone, Examples
from hmi.training.data.rows import Row
from hmi.training.early_stopping import train_to_best
from hmi.training.golds import Gold, Odds
from hmi.training.plan import plan_training
from hmi.training.recipe import HELD_OUT, Recipe
from hmi.training.reports import PhaseReport
from hmi.training.splits import Split, encoded_split, judge, merged_outputs, task_targets
from hmi.training.trainer import Trainer

MOST_TEXTS = 20_000
"""The most unlabelled texts that are used; of more, this many are drawn."""
TEACHER_LR, TAGGING_TEACHER_LR = 6e-5, 1.2e-4
"""A whole copy's best rates on dev (docs/benchmarks/2026-11-quality.md)."""

MOST_ODDS, MOST_SAID = 100, 10
"""With more labels than MOST_ODDS a teacher gives its best label only; else the MOST_SAID likeliest ones."""
AT_ONCE = 256
"""Texts between two reports."""


@dataclass(frozen=True)
class Lesson:
    """A teacher's training rows, and the texts that it labels. weights: the classes' weights in the loss."""

    task: TaskKind
    train: Split
    dev: Split
    texts: list[Row]
    max_length: int
    weights: tuple[float, ...] | None = None


def teach(
    encoder: Encoder, root: Root, lesson: Lesson, recipe: Recipe, report: PhaseReport
) -> tuple[float, list[Gold]]:
    """Fine-tune a whole copy of `encoder` on the lesson's rows.

    Returns its score on dev and its label for each text. Raises InvalidData (diverged).
    """
    task, dev = lesson.task, lesson.dev
    targets = task_targets(task, lesson.train)
    plan = plan_training(teacher_recipe(recipe, task), task, len(targets), weights=lesson.weights)
    trainer = Trainer(EncoderBackbone(encoder), root.dim, plan, encoder_examples(lesson.train, targets))
    held_out = encoder_examples(dev, [[]] * len(dev.encoded))
    best = train_to_best(
        trainer,
        lambda: judge(trainer.reading(task), dev, trainer.predict(held_out)),
        lambda step, total, loss: report("training the teacher", step, total, loss),
        choosy=len(dev.rows) >= recipe.held_out.enough,
    ).kept
    trainer.load(best.artefact)
    read, said = trainer.reading(task), []
    odds = isinstance(task, Classification) and len(task.labels) <= MOST_ODDS
    for at in range(0, len(lesson.texts), AT_ONCE):
        some = lesson.texts[at : at + AT_ONCE]
        split = encoded_split(some, root.tokenizer, lesson.max_length, windows=task.rules.windows)
        outputs = trainer.predict(encoder_examples(split, [[]] * len(split.encoded)))
        said += [gold_of(read.answer(merged, scores=odds)) for merged in merged_outputs(read, split, outputs)]
        report("labelling texts", len(said), len(lesson.texts), None)
    return best.score, said


def teacher_recipe(recipe: Recipe, task: TaskKind) -> Recipe:
    """The recipe of a model's teacher: a whole copy, with transitions where the model has them."""
    rate = TAGGING_TEACHER_LR if task.name == "tagging" else TEACHER_LR
    return replace(recipe.plain(rate), transitions=recipe.transitions)


def lesson_texts(lesson: Lesson, recipe: Recipe, encoder: Encoder, root: Root) -> list[Row]:
    """What the teacher labels: the lesson's texts, and as far as there is room the changed copies
    of its rows that the recipe asks for."""
    told = [*lesson.train.rows, *lesson.dev.rows]
    texts = usable(lesson.texts, told, recipe.seed)
    if not recipe.variants:
        return texts
    similar = similar_words(lesson.train.rows, root.tokenizer, encoder.embeddings.word.weight)
    copies = variants(lesson.train.rows, recipe.variants, similar, recipe.seed, MOST_TEXTS - len(texts))
    return [*texts, *usable(copies, [*told, *texts], recipe.seed)]


def usable(texts: Sequence[Row], told: Sequence[Row], seed: int) -> list[Row]:
    """Each text once, without texts that are also labelled rows: a held-out row's label must not be
    learnt from a teacher that was chosen on it. At most MOST_TEXTS, drawn by `seed`."""
    known = {_key(row) for row in told}
    left = list({_key(row): row for row in texts if _key(row) not in known}.values())
    return left if len(left) <= MOST_TEXTS else random.Random(seed).sample(left, MOST_TEXTS)


def unlearnt_score(lesson: Lesson) -> float:
    """The score that a teacher must beat on dev: for one label a row the commonest label's share,
    else 0. Any score passes if dev cannot tell (few rows, one label, classes with different weights)."""
    if len(lesson.dev.rows) < HELD_OUT.enough:
        return -math.inf
    labels = Counter(row.label for row in lesson.dev.rows if isinstance(row.label, str))
    if len(labels) == 1 or lesson.weights is not None:
        return -math.inf
    return max(labels.values()) / labels.total() if labels else 0.0


def encoder_examples(split: Split, targets: Sequence[Sequence[float]]) -> Examples:
    """Token ids, for a backbone that is a whole encoder."""
    encoded = split.encoded

    def ids(rows: Sequence[int]) -> list[Tensor]:
        return [torch.tensor(encoded[i].ids) for i in rows]

    return Examples([len(e) for e in encoded], [e.types for e in encoded], ids, targets)


def gold_of(answer: Answer) -> Gold:
    """An answer as the right answer of a row; where it has the scores of all labels, them."""
    if answer.tags is not None:
        return tuple(answer.tags)
    if answer.labels is not None:
        return tuple(label for label, _ in answer.labels)
    if answer.value is not None:
        return answer.value
    if answer.scores is not None:
        likely = dict(Counter(answer.scores).most_common(MOST_SAID))
        total = sum(likely.values())
        return Odds(tuple((label, round(p / total, 5)) for label, p in likely.items()))
    assert answer.label is not None
    return answer.label


def said_as_json(gold: Gold) -> Any:
    """A gold as JSON, which `gold_from` reads."""
    return dict(gold.each) if isinstance(gold, Odds) else gold


def gold_from(said: Any) -> Gold:
    """An answer from JSON."""
    if isinstance(said, dict):
        return Odds(tuple(said.items()))
    return tuple(said) if isinstance(said, list) else said


def _key(row: Row) -> Any:
    return tuple(row.text) if isinstance(row.text, list) else row.text
