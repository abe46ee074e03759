"""The texts that a second version is trained on, and the teachers that answer them.

Why this recipe: docs/design/0024-better-by-itself.md.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.rows import Row
from hmi.training.fit.reports import PhaseReport
from hmi.training.plans.recipe import Recipe
from hmi.training.second.augmentation import similar_words, variants
from hmi.training.second.probing import can_probe, probe_with
from hmi.training.second.teacher import usable
from hmi.training.second.teacher_outputs import TeacherOutputs
from hmi.training.second.teachers import TeacherSource, TextLesson, teach_with

FEW, FEW_PAIRS = 400, 60
"""With fewer training rows a teacher is a probe, if each row has one label. It learns more from them. A probe
reads the texts of a pair apart from each other, so for pairs it takes fewer rows to tune a teacher."""


@dataclass(frozen=True)
class PoolPlan:
    """The greatest number of texts of each part of a pool. A part of 0 texts is left out."""

    corpus: int
    """Texts of the domain's sample that are near the rows."""
    copies: int
    """Changed copies of each row."""
    given: int = 12_000
    """The tenant's own unlabelled texts."""


def plan_of(rows: int, copies: int = 0) -> PoolPlan:
    """The plan for this many training rows. Few rows get fewer texts, and more copies of each row.

    copies: the fewest copies of each row, if the tenant wants more than the plan has.
    """
    corpus = min(CORPUS_TEXTS, max(FEW_TEXTS, TEXTS_OF_A_ROW * rows))
    return PoolPlan(corpus, max(copies, COPIES, min(MAX_COPIES, FEW_TEXTS // rows)))


CORPUS_TEXTS, TEXTS_OF_A_ROW = 6_000, 10
COPIES, MAX_COPIES = 3, 20
FEW_TEXTS = 1_500
EPOCHS = 8
"""A second version is trained for at most this many epochs, however large its pool is. Soft answers to many
texts have more to teach in further epochs than rows have."""


@dataclass(frozen=True)
class UnlabelledPool:
    """Unlabelled texts, and the part that each comes from: given, corpus or copies."""

    texts: list[Row]
    origin: list[str]

    def without(self, rows: Sequence[Row]) -> UnlabelledPool:
        """Return the pool without the texts of these rows."""
        known = {str(row.text) for row in rows}
        left = [pair for pair in zip(self.texts, self.origin, strict=True) if str(pair[0].text) not in known]
        return UnlabelledPool([text for text, _ in left], [part for _, part in left])


def make_pool(
    train: Sequence[Row],
    dev: Sequence[Row],
    given: Sequence[Row],
    near: Callable[[int], Sequence[Row]],
    words: tuple[Tokenizer, Tensor],
    plan: PoolPlan,
    seed: int,
) -> UnlabelledPool:
    """Collect a pool: the tenant's unlabelled texts, texts of the domain's sample, changed copies of rows.

    near: a function of a number. It draws at most that many texts of the domain's sample, those near the rows
    (`hmi.training.second.pool.draw_pool`).
    words: a tokenizer, and the vectors of its tokens [vocab, dim], by which similar words are found. No text
    is twice in the pool, and none is a training or held-out row.
    """
    labelled = [*train, *dev]
    found: list[Row] = []
    origin: list[str] = []

    def add(name: str, texts: Sequence[Row], most: int) -> None:
        fresh = usable(texts, [*labelled, *found], seed)
        if len(fresh) > most:  # not the first ones: a file may be sorted
            fresh = random.Random(seed).sample(fresh, most)
        found.extend(fresh)
        origin.extend([name] * len(fresh))

    add("given", given, plan.given)
    add("corpus", near(plan.corpus), plan.corpus)
    most = plan.copies * len(train)
    if most:
        add("copies", variants(train, plan.copies, similar_words(train, *words), seed, most), most)
    return UnlabelledPool(found, origin)


def is_probe(lesson: TextLesson, rows: int) -> bool:
    """Return whether a tenant's teachers are probes. rows: as in `teacher_from`."""
    return rows < (FEW_PAIRS if lesson.task.paired else FEW) and can_probe(lesson)


def hears_larger(task: TaskKind, rows: int) -> bool:
    """Return whether larger sources teach, beside the root's own. Few tagged texts are too few to tune them.

    rows: as in `teacher_from`.
    """
    return task.name != "tagging" or rows >= FEW


def teacher_from(
    source: TeacherSource, lesson: TextLesson, recipe: Recipe, rows: int, report: PhaseReport
) -> TeacherOutputs:
    """Make a teacher: a probe if the tenant has few rows, else a tuned copy of the source.

    rows: the number of all training rows of the tenant. A lesson of a fold has fewer, but all teachers of a
    tenant are of one kind. Raises InvalidData (diverged).
    """
    if is_probe(lesson, rows):
        return probe_with(source, lesson, recipe.seed, report)
    return teach_with(source, lesson, recipe, report)
