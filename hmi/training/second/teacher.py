"""A teacher for a tenant's module (distillation on unlabelled text: Hinton et al., 2015; Chen et al., 2020).

The teacher is a copy of the root's source, tuned in its last layers (`teachers.TUNED`). It
is trained on the tenant's rows, labels the tenant's unlabelled texts, and is deleted. The module is then
trained on the rows and the teacher's labels: soft labels in tasks with one label a text, tags with
probabilities where it is in doubt, else answers.

From few rows a module in frozen layers learns less than a whole copy does. The teacher's labels
give it more rows.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hmi.model.network.encoder import Encoder
from hmi.model.sources.root import Root
from hmi.model.tags.tag_schemes import in_labels
from hmi.model.tags.tagging import Floats
from hmi.model.tasks import TaskKind
from hmi.model.tasks.base import InputAnswer
from hmi.model.tasks.words import Tagging
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold, SoftLabel, SoftTags
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import Examples
from hmi.training.plans.recipe import HELD_OUT, Recipe
from hmi.training.second.augmentation import similar_words, variants
from hmi.training.tasks.splits import Split

MAX_TEXTS = 20_000
"""The teacher labels at most this many texts. Of more, a random sample is labelled."""
TEACHER_LR, TAGGING_TEACHER_LR = 6e-5, 1.2e-4
"""The best learning rates of a whole copy on dev (docs/benchmarks/2026-11-quality.md)."""

MAX_SOFT_LABELS = 100
"""With more labels than this, the teacher gives only its best label."""
TOP_LABELS, TOP_TAGS = 10, 4
"""A soft label has at most this many labels, and a soft tag this many tags, the likeliest ones."""
SURE_TAG = 0.98
"""A tag that is at least this probable is the only one of its word."""


@dataclass(frozen=True)
class Lesson:
    """A teacher's training rows, and the texts that it labels. weights: the weights of the classes
    in the loss."""

    task: TaskKind
    train: Split
    dev: Split
    texts: list[Row]
    max_length: int
    weights: tuple[float, ...] | None = None


def teacher_recipe(recipe: Recipe, task: TaskKind) -> Recipe:
    """The recipe of a model's teacher: a plain copy of the source, with transitions if the model has them."""
    rate = TAGGING_TEACHER_LR if task.name == "tagging" else TEACHER_LR
    return replace(recipe.plain(rate), transitions=recipe.transitions)


def lesson_texts(lesson: Lesson, recipe: Recipe, encoder: Encoder, root: Root) -> list[Row]:
    """The texts that the teacher labels: the lesson's texts, then changed copies of its rows,
    `recipe.variants` of each, as far as the limit allows."""
    labelled = [*lesson.train.rows, *lesson.dev.rows]
    texts = usable(lesson.texts, labelled, recipe.seed)
    if not recipe.variants:
        return texts
    similar = similar_words(lesson.train.rows, root.tokenizer, encoder.embeddings.word.weight)
    copies = variants(lesson.train.rows, recipe.variants, similar, recipe.seed, MAX_TEXTS - len(texts))
    return [*texts, *usable(copies, [*labelled, *texts], recipe.seed)]


def usable(texts: Sequence[Row], labelled: Sequence[Row], seed: int) -> list[Row]:
    """Drop repeated texts and texts that are also labelled rows. At most MAX_TEXTS, drawn by `seed`.

    A held-out row among the texts would leak its label, since the teacher's best epoch was chosen on it.
    """
    known = {_key(row) for row in labelled}
    left = list({_key(row): row for row in texts if _key(row) not in known}.values())
    return left if len(left) <= MAX_TEXTS else random.Random(seed).sample(left, MAX_TEXTS)


def unlearnt_score(lesson: Lesson) -> float:
    """The score that a teacher must beat on dev: with one label a row, the commonest label's share; else 0.

    It is -inf, so that every teacher passes, if dev has few rows or one label, or classes are weighted.
    """
    if len(lesson.dev.rows) < HELD_OUT.enough:
        return -math.inf
    labels = Counter(row.label for row in lesson.dev.rows if isinstance(row.label, str))
    if len(labels) == 1 or lesson.weights is not None:
        return -math.inf
    return max(labels.values()) / labels.total() if labels else 0.0


def encoder_examples(encoded: Sequence[Encoded], targets: Sequence[Sequence[float]]) -> Examples:
    """Examples whose features are token ids, for a backbone that is a whole encoder."""

    def ids(rows: Sequence[int]) -> list[Tensor]:
        return [torch.tensor(encoded[i].ids) for i in rows]

    return Examples([len(e) for e in encoded], [e.types for e in encoded], ids, targets)


def gold_of(answer: InputAnswer) -> Gold:
    """Convert an answer to the right answer of a row. An answer with the scores of all labels
    becomes a soft label."""
    if answer.tags is not None:
        return tuple(answer.tags)
    if answer.labels is not None:
        return tuple(label for label, _ in answer.labels)
    if answer.value is not None:
        return answer.value
    if answer.scores is not None:
        likely = dict(Counter(answer.scores).most_common(TOP_LABELS))
        total = sum(likely.values())
        return SoftLabel(tuple((label, round(p / total, 5)) for label, p in likely.items()))
    assert answer.label is not None
    return answer.label


def soft_tags(task: Tagging, merged: Tensor) -> Gold:
    """A teacher's tags of a text, with probabilities where the teacher is in doubt.

    merged: the teachers' outputs [words, labels], or a weighted mean of several, which need not add up to
    one. Words that they did not see have the tag of the task's answer.
    """
    scaled = merged.log_softmax(-1)
    given, found = task.answer(scaled).tags or [], task.decoded(scaled)
    words: list[str | tuple[tuple[str, float], ...]] = [*in_labels(given, task.rules.scheme)]
    for word, path, sure in zip(found.words.tolist(), found.path.tolist(), found.marginals, strict=True):
        words[word] = task.labels[path] if sure[path] >= SURE_TAG else _soft_tag(task.labels, path, sure)
    return tuple(given) if all(isinstance(word, str) for word in words) else SoftTags(tuple(words))


def _soft_tag(labels: Sequence[str], path: int, sure: Floats) -> tuple[tuple[str, float], ...]:
    others = [tag for tag in np.argsort(-sure)[:TOP_TAGS].tolist() if tag != path][: TOP_TAGS - 1]
    total = float(sure[[path, *others]].sum())
    shares = [(labels[tag], round(float(sure[tag]) / total, 4)) for tag in (path, *others)]
    return tuple((tag, share) for i, (tag, share) in enumerate(shares) if share > 0 or i == 0)


def gold_to_json(gold: Gold) -> Any:
    """A right answer as JSON. The inverse of `gold_from_json`."""
    if isinstance(gold, SoftTags):
        return {"words": gold.words}
    return dict(gold.each) if isinstance(gold, SoftLabel) else gold


def gold_from_json(stored: Any) -> Gold:
    """A right answer from JSON."""
    if isinstance(stored, dict) and isinstance(stored.get("words"), list | tuple):
        words = (word if isinstance(word, str) else tuple(map(tuple, word)) for word in stored["words"])
        return SoftTags(tuple(words))
    if isinstance(stored, dict):
        return SoftLabel(tuple(stored.items()))
    return tuple(stored) if isinstance(stored, list) else stored


def _key(row: Row) -> Any:
    return tuple(row.text) if isinstance(row.text, list) else row.text
