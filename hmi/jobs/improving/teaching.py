"""The teachers of the job `improve`: they are tuned one after the other, and answer a pool of texts.

Pool and answers stay in a folder of the job, so that a resumed attempt trains no teacher again.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hmi.errors import InvalidData, UnsupportedModel
from hmi.jobs.improving.ledger import Ledger
from hmi.jobs.improving.sources import sources_of
from hmi.jobs.model.teaching import Taught
from hmi.jobs.plot.samples import draw_texts
from hmi.jobs.runtime.context import JobContext
from hmi.model.files import write_json
from hmi.model.memory import give_back_memory
from hmi.model.sources.root import Root
from hmi.model.sources.source import Source, load_encoder
from hmi.model.text.tokenizer import Tokenizer
from hmi.training.data.rows import Row
from hmi.training.fit.early_stopping import StopTraining
from hmi.training.fit.reports import PhaseReport
from hmi.training.plans.recipe import Recipe
from hmi.training.second.second_version import (
    UnlabelledPool,
    hears_larger,
    is_probe,
    make_pool,
    plan_of,
    teacher_from,
)
from hmi.training.second.teacher import Lesson, unlearnt_score
from hmi.training.second.teacher_outputs import TeacherOutputs, mixed_golds, store_said, stored_said, weigh
from hmi.training.second.teachers import TeacherSource, TextLesson, expected_s
from plot_store import VersionInfo


@dataclass(frozen=True)
class Trial:
    """The parts of a job that all of its trainings share."""

    ctx: JobContext
    root: Root
    plot: VersionInfo
    ledger: Ledger
    rows: int
    """The number of all training rows. A fold has fewer, but is taught in the same way."""


def taught_by_several(trial: Trial, lesson: Lesson, recipe: Recipe, folder: Path) -> Taught:
    """Let all teachers that the budget allows answer the pool. There are no rows if there is nothing to learn
    from them.

    `lesson.texts` are the tenant's unlabelled texts. Raises Conflict (the root's source is gone), InvalidData
    (diverged), StopTraining (the budget ended before the first teacher had answered).
    """
    folder.mkdir(exist_ok=True)
    sources = sources_of(trial.ctx, trial.root, larger=hears_larger(lesson.task, trial.rows))
    pool = _pool(trial, lesson, sources[0][1], recipe, folder / "pool.json")
    if not pool.texts:
        return Taught([], {}, ["every text for a teacher is also a labelled or held-out row"])
    texts = TextLesson(
        lesson.task, lesson.train.rows, lesson.dev.rows, pool.texts, lesson.max_length, lesson.weights
    )
    said = list(_answers(trial, sources, texts, recipe, folder))
    weights, score = weigh(said, texts.train, texts.dev)
    metrics: dict[str, Any] = {
        "score": round(score, 4),
        "texts": len(pool.texts),
        "pool": {part: pool.origin.count(part) for part in dict.fromkeys(pool.origin)},
        "teachers": [
            {"name": one.name, "score": round(one.score, 4), "weight": weight, "cpu_s": round(one.cpu_s, 1)}
            for one, weight in zip(said, weights, strict=True)
        ],
    }
    if score <= unlearnt_score(lesson):
        return Taught([], metrics, [f"the teachers learnt nothing (held-out score {score:.3f})"])
    golds = mixed_golds(said, weights)
    return Taught([Row(row.text, gold) for row, gold in zip(pool.texts, golds, strict=True)], metrics, [])


def _answers(
    trial: Trial, sources: Sequence[tuple[str, Source]], lesson: TextLesson, recipe: Recipe, folder: Path
) -> Iterator[TeacherOutputs]:
    """Yield what each teacher says. When the budget or its share ends, those that have answered must do."""
    ctx, ledger = trial.ctx, trial.ledger
    for i, (name, source) in enumerate(sources):
        if name in ledger.left_out:
            continue

        def report(phase: str, step: int, total: int, loss: float | None, larger: bool = i > 0) -> None:
            ctx.progress(step, total, phase=phase, loss=loss)
            if larger and ledger.share_left_s <= 0:
                raise StopTraining

        path = folder / f"said-{i}-{source.sha256[:12]}.safetensors"
        found = stored_said(path, lesson.task)
        if found is None:
            try:
                found = _answered(trial, name, source, lesson, recipe, report, larger=i > 0)
            except (StopTraining, InvalidData, UnsupportedModel) as error:
                if i == 0:
                    raise
                spent = isinstance(error, StopTraining)
                ctx.log(f"{name} is left out: {'its part of the budget is spent' if spent else error}")
                ledger.leave_out(name)
                continue
            store_said(path, found)
            ctx.checkpointed()
        yield found


def _answered(
    trial: Trial,
    name: str,
    source: Source,
    lesson: TextLesson,
    recipe: Recipe,
    report: PhaseReport,
    *,
    larger: bool,
) -> TeacherOutputs:
    """Tune one teacher and let it answer. Raises StopTraining (it would not fit), InvalidData (diverged),
    UnsupportedModel."""
    give_back_memory()  # of the pool, or of the teacher before
    tokenizer = Tokenizer(source.folder / "tokenizer.json")
    teacher = TeacherSource(name, load_encoder(source.folder), tokenizer, spare=True)
    mine = replace(lesson, max_length=min(lesson.max_length, teacher.encoder.shape.positions))
    if larger and teacher.deep and not is_probe(mine, trial.rows):
        _must_fit(trial.ctx, teacher, mine, recipe, trial.ledger.share_left_s)
    return teacher_from(teacher, mine, recipe, trial.rows, report)


def _must_fit(
    ctx: JobContext, teacher: TeacherSource, lesson: TextLesson, recipe: Recipe, left_s: float
) -> None:
    """Raise StopTraining if a teacher would take longer than is left, before it takes any of that."""
    if left_s < math.inf and (needs_s := expected_s(teacher, lesson, recipe)) > left_s:
        ctx.log(f"{teacher.name} needs up to {needs_s:.0f} CPU seconds, and {max(0, left_s):.0f} are left")
        raise StopTraining


def _pool(trial: Trial, lesson: Lesson, source: Source, recipe: Recipe, path: Path) -> UnlabelledPool:
    if path.exists():
        kept = json.loads(path.read_text(encoding="utf-8"))
        form = tuple if lesson.task.paired else lambda text: text
        return UnlabelledPool([Row(form(text), "") for text in kept["texts"]], kept["origin"])
    train, dev, seed = lesson.train.rows, lesson.dev.rows, recipe.seed

    def near(most: int) -> list[Row]:
        return draw_texts(trial.ctx, trial.plot, train, dev, most, seed)

    words = trial.root.tokenizer, load_encoder(source.folder).embeddings.word.weight
    pool = make_pool(train, dev, lesson.texts, near, words, plan_of(len(train), recipe.variants), seed)
    write_json(path, {"texts": [row.text for row in pool.texts], "origin": pool.origin})
    trial.ctx.checkpointed()
    return pool
