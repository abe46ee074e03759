"""The columns of a second version: what the job `improve` makes of a tenant's rows, without any option.

A column trains the first version, as the service does, then a second one on a pool of texts that teachers
answered, and publishes the second only if the rows say so (`hmi.training.second.choosing`). Test is scored
once for each version. Other columns leave out parts of the pool or a teacher, and one trains a dedicated copy
on the same texts, which tells what of a gain comes from them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from bench.cases.quality.arms import DEDICATED, Column, hbert
from bench.cases.quality.cells import Problem, problem, train_once
from bench.cases.quality.lesson import OWN, TaskLesson
from bench.cases.quality.tasks import TaskRows
from hmi.core import ModuleSpec
from hmi.training.data.rows import Row
from hmi.training.fit.plan import plan_training
from hmi.training.plans.defaults import default_module
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.second.choosing import Version, compare, cross_validated, least_rows, rule_of
from hmi.training.second.probing import probe_with
from hmi.training.second.second_version import EPOCHS
from hmi.training.second.teacher import TAGGING_TEACHER_LR, TEACHER_LR
from hmi.training.second.teachers import TextLesson
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import objective_of
from hmi.training.tasks.row_keys import hold_out
from hmi.training.tasks.splits import merged_outputs

Learner = Literal["module", "dedicated", "contrasted", "frozen"]
"""The thing that is trained.

`module` is a tenant's module, and `dedicated` a dedicated copy. The other two are a logistic regression on
embeddings of the root's source. `contrasted` tunes the source on the rows before, in the manner of SetFit;
`frozen` does not.
"""
BY_DEPTH = "by_depth"
"""The column of a service that has a root without lower layers: a third version computes all layers."""
POOL = ("corpus", "copies")
"""The parts of the pool of a tenant that gives no unlabelled texts."""


@dataclass(frozen=True)
class Improved:
    """A column: the parts of the pool and the teachers that it has. None: all teachers."""

    name: str
    parts: tuple[str, ...] = POOL
    teachers: tuple[str, ...] | None = None
    learner: Learner = "module"

    @property
    def chooses(self) -> bool:
        """Return whether this column is what the service does: it chooses between versions."""
        return self.name in ("by_default", BY_DEPTH)


def columns(larger: Sequence[str], *, few: bool) -> list[Improved]:
    """Return the columns, given the sources beside the root's own.

    few: whether a tenant has few rows. Then the columns include what others would train on the same rows,
    with the same ones held out. (`bench quality --rows` gives as many held-out rows as training rows.)
    """
    plain: list[Learner] = ["contrasted", "frozen"]
    beside = [
        Improved("dedicated_plain", (), learner="dedicated"),
        *(Improved(name, (), learner=name) for name in plain),
    ]
    return [
        Improved("by_default"),
        Improved("copies_only", ("copies",)),
        Improved("corpus_only", ("corpus",)),
        Improved("own_teacher", teachers=(OWN,)),
        *([Improved("larger_teacher", teachers=tuple(larger))] if larger else []),
        Improved("dedicated_taught", learner="dedicated"),
        *(beside if few else [Improved(BY_DEPTH)]),
    ]


def result_of(lesson: TaskLesson, column: Improved, seed: int, test: bool) -> dict[str, Any]:
    """Train a column once. The rate is the service's default, so it is not searched for.

    test: whether test is scored.
    """
    if column.learner in ("contrasted", "frozen"):
        return _probed(lesson, column.learner, seed, test)
    arm = DEDICATED if column.learner == "dedicated" else hbert(default_module(paired=lesson.paired))
    texts, figures = lesson.taught(column.teachers, column.parts, test=test) if column.parts else ([], {})
    second = _trained(lesson, replace(arm, epochs=EPOCHS) if texts else arm, texts, seed, test)
    result = {**figures, **second.figures}
    if column.chooses:
        first = _trained(lesson, arm, [], seed, test)
        result |= _chosen(lesson, arm, first, second, seed)
        if column.name == BY_DEPTH:
            result |= _deeper(lesson, texts, second if result["published"] == 2 else first, seed, test)
    return result


def _deeper(
    lesson: TaskLesson, texts: Sequence[Row], winner: _Trained, seed: int, test: bool
) -> dict[str, Any]:
    """The figures of the version that computes all layers, and of the one that is published beside it: it
    must be better with confidence."""
    full = lesson.models.full
    assert full is not None, "`prepare` has imported a root without lower layers"
    arm = replace(hbert(ModuleSpec()), epochs=EPOCHS)
    deep = _trained(replace(lesson, models=full), arm, texts, seed, test)
    found = compare([row.label for row in lesson.rows.dev], winner.dev, deep.dev, 0)
    figures = {"deep": deep.figures, "deep_sure": found.sure, "deep_gain": round(found.gain, 4)}
    if found.better and found.rows >= HELD_OUT.enough:
        figures |= {**deep.scores, "published": 3}
    return figures


@dataclass(frozen=True)
class _Trained:
    """A trained version: its figures, and what it answers to dev and test."""

    figures: dict[str, Any]
    dev: Version
    test: Version

    @property
    def scores(self) -> dict[str, float]:
        return {name: self.figures[name] for name in ("dev", "test") if name in self.figures}


def _trained(lesson: TaskLesson, arm: Column, texts: Sequence[Row], seed: int, test: bool) -> _Trained:
    """Train on the rows and these texts. `test`: whether to score test."""
    rows = lesson.rows
    p = problem(lesson.task, replace(rows, train=[*rows.train, *texts]), arm, lesson.models)
    run = train_once(p, arm, lesson.models, _rate(p, arm), seed, lesson.report)
    run.trainer.load(run.artefact)
    read = run.trainer.reading(p.kind)
    answers = {
        part: (read, merged_outputs(read, p.splits[part], run.trainer.predict(p.examples[part])))
        for part in ("dev", "test")
    }
    figures = {**run.result, "rate": run.lr}
    if test:
        golds = [row.label for row in rows.test]
        figures["test"] = headline(objective_of(read).score(golds, answers["test"][1]))
    return _Trained(figures, answers["dev"], answers["test"])


def _probed(lesson: TaskLesson, learner: Learner, seed: int, test: bool) -> dict[str, Any]:
    """The figures of a logistic regression. For test it learns from the held-out rows too."""
    rows, begun = lesson.rows, time.process_time()

    def score(train: list[Row], asked: list[Row]) -> float:
        own = TextLesson(lesson.kind, train, [], asked, lesson.task.length)
        said = probe_with(lesson.source(OWN), own, seed, lesson.teaching, contrast=learner == "contrasted")
        return headline(objective_of(said.task).score([row.label for row in asked], said.texts))

    figures: dict[str, Any] = {"dev": score(rows.train, rows.dev)}
    if test:
        figures["test"] = score([*rows.train, *rows.dev], rows.test)
    return {**figures, "cpu_s": round(time.process_time() - begun, 1)}


def _rate(p: Problem, arm: Column) -> float:
    """The service's learning rate for these rows."""
    if arm.module is None:
        return TAGGING_TEACHER_LR if p.kind.name == "tagging" else TEACHER_LR
    recipe = replace(arm.recipe(0.0, 0), lr=None)
    return plan_training(recipe, p.kind, len(p.examples["train"])).lr


def _chosen(lesson: TaskLesson, arm: Column, first: _Trained, second: _Trained, seed: int) -> dict[str, Any]:
    """The figures of the version that the rule chooses, beside those of both."""
    rows = lesson.rows
    everything = [*rows.train, *rows.dev]
    rule = rule_of(lesson.kind, len(everything), len(rows.dev))
    if rule == "by_folds":
        found = cross_validated(everything, partial(_fold, lesson, arm, seed), 0)
    else:
        found = compare([row.label for row in rows.dev], first.dev, second.dev, 0)
    passes = found.passes(rule) and len(everything) >= least_rows(rule)
    published = second if passes else first
    return {
        **published.scores,
        "first": first.figures,
        "second": second.figures,
        "sure": found.sure,
        "by_score": found.by_score,
        "by_likelihood": found.by_likelihood,
        "gain": round(found.gain, 4),
        "decided_by": found.rows,
        "test_rows": len(rows.test),
        "rule": rule,
        "published": 2 if passes else 1,
    }


def _fold(
    lesson: TaskLesson, arm: Column, seed: int, train: list[Row], held: list[Row]
) -> tuple[Version, Version]:
    """Train both versions on a part of the rows, as the service would, and let them answer the rest."""
    own, dev = hold_out(train, HELD_OUT)
    part = replace(lesson, rows=TaskRows(own, dev, held), count=lesson.all_rows)
    texts, _ = part.taught(None, POOL, test=False)
    taught = replace(arm, epochs=EPOCHS)
    return _trained(part, arm, [], seed, False).test, _trained(part, taught, texts, seed, False).test
