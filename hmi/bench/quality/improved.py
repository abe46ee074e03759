"""The columns of a second version: what the job `improve` makes of a tenant's rows, without any option.

A column trains the first version, as the service does, then a second one on a pool of texts that teachers
answered, and publishes the second only if dev says so (`hmi.training.choosing`). Test is scored once for each
version. Other columns leave out parts of the pool or a teacher, and one trains a dedicated copy on the same
texts, which tells what of a gain comes from them.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from hmi.bench.quality.arms import DEDICATED, Arm, hbert
from hmi.bench.quality.cells import Problem, Report, Run, problem, tested, train_once
from hmi.bench.quality.models import Encoders
from hmi.bench.quality.runs import Runs, RunSpec
from hmi.bench.quality.setting import CORPUS_OF, GENERAL
from hmi.bench.quality.tasks import QualityTask, TaskRows
from hmi.model.source import find_source, load_encoder
from hmi.model.tasks import TaskKind
from hmi.model.tokenizer import Tokenizer
from hmi.training.choosing import Version, compare
from hmi.training.data.passages import sample_corpus
from hmi.training.data.rows import Row
from hmi.training.defaults import default_lr, default_module
from hmi.training.improving import Pool, PoolPlan, make_pool, teacher_from
from hmi.training.objectives import learn_task
from hmi.training.recipe import Recipe
from hmi.training.said import Said, mixed_golds, store_said, stored_said, weigh
from hmi.training.splits import merged_outputs
from hmi.training.teacher import TAGGING_TEACHER_LR, TEACHER_LR
from hmi.training.teachers import TeacherSource, TextLesson

OWN = "own"
"""The name of the root's source among teachers."""


@dataclass(frozen=True)
class Improved:
    """A column: the parts of the pool and the teachers that it has. None: all teachers."""

    name: str
    parts: tuple[str, ...] = ("corpus", "copies")
    teachers: tuple[str, ...] | None = None
    dedicated: bool = False
    """Whether a dedicated copy is trained on the same rows, instead of a tenant's module."""

    @property
    def chooses(self) -> bool:
        """Return whether this column is what the service does: it chooses between two versions."""
        return self.name == "by_default"


def columns(larger: Sequence[str]) -> list[Improved]:
    """Return the columns, given the sources beside the root's own."""
    found = [
        Improved("by_default"),
        Improved("copies_only", ("copies",)),
        Improved("corpus_only", ("corpus",)),
        Improved("own_teacher", teachers=(OWN,)),
    ]
    if larger:
        found.append(Improved("larger_teacher", teachers=tuple(larger)))
    return [*found, Improved("dedicated_taught", dedicated=True)]


@dataclass
class Lesson:
    """One task's rows, pool and teachers, each made when it is first needed. Teachers' answers are kept."""

    task: QualityTask
    rows: TaskRows
    models: Encoders
    corpora: Path
    larger: tuple[str, ...]
    kept: Path
    report: Report
    plan: PoolPlan = field(default_factory=PoolPlan)

    @property
    def paired(self) -> bool:
        return isinstance(self.rows.train[0].text, tuple)

    @cached_property
    def kind(self) -> TaskKind:
        return learn_task(self.task.kind, [row.label for row in self.rows.train], paired=self.paired)

    @cached_property
    def pool(self) -> Pool:
        """The pool of the service, less texts that are test rows."""
        words = self.models.root.tokenizer, self.models.source.embeddings.word.weight
        passages = sample_of(self.corpora, CORPUS_OF.get(self.task.domain, GENERAL))
        found = make_pool(self.rows.train, self.rows.dev, [], passages, words, self.plan, 0)
        return found.without(self.rows.test)

    @cached_property
    def said(self) -> dict[str, Said]:
        """Each teacher's answers to the whole pool. A task has one teacher from each source, of seed 0."""
        lesson = TextLesson(self.kind, self.rows.train, self.rows.dev, self.pool.texts, self.task.length)
        return {name: self._said(name, lesson) for name in (OWN, *self.larger)}

    def _said(self, name: str, lesson: TextLesson) -> Said:
        texts = json.dumps([row.text for row in (*lesson.train, *lesson.dev, *lesson.texts)])
        digest = hashlib.sha256(texts.encode()).hexdigest()[:12]
        path = self.kept / f"{self.task.name}-{Path(name).name}-{digest}.safetensors"
        found = stored_said(path, self.kind)
        if found is None:
            found = teacher_from(self._source(name), lesson, Recipe(), self._teaching)
            path.parent.mkdir(parents=True, exist_ok=True)
            store_said(path, found)
        return found

    def _source(self, name: str) -> TeacherSource:
        if name == OWN:
            return TeacherSource(OWN, self.models.source, self.models.root.tokenizer)
        folder = find_source(name).folder
        return TeacherSource(name, load_encoder(folder), Tokenizer(folder / "tokenizer.json"))

    def _teaching(self, phase: str, step: int, total: int, loss: float | None) -> None:
        self.report(f"{self.task.name}, {phase}", step, total)

    def taught(self, column: Improved) -> tuple[list[Row], dict[str, Any]]:
        """The texts of a column with the mixture's answers, and figures about them."""
        said = [of for name, of in self.said.items() if column.teachers is None or name in column.teachers]
        weights, score = weigh(said, self.rows.train, self.rows.dev)
        texts, at = self.pool.of(column.parts), set(column.parts)
        which = [i for i, part in enumerate(self.pool.origin) if part in at]
        golds = mixed_golds([replace(one, texts=[one.texts[i] for i in which]) for one in said], weights)
        about = {
            "texts": {part: self.pool.origin.count(part) for part in column.parts},
            "teachers": {
                one.name: {"dev": round(one.score, 4), "weight": weight, "cpu_s": round(one.cpu_s, 1)}
                for one, weight in zip(said, weights, strict=True)
            },
            "mixture": round(score, 4),
        }
        return [Row(text.text, gold) for text, gold in zip(texts, golds, strict=True)], about


def sample_of(corpora: Path, name: str) -> list[str]:
    """The sample that a build keeps of this corpus."""
    with gzip.open(corpora / f"{name}.txt.gz", "rt", encoding="utf-8") as lines:
        return sample_corpus(lines)


def fill(
    lesson: Lesson, column: Improved, about: RunSpec, seeds: int, test: bool, kept: Runs
) -> Iterator[tuple[RunSpec, Any]]:
    """Do the unfinished runs of a column, one for each seed, and yield each as it is stored.

    The rate is the service's default, so it is not searched for.
    """
    arm = DEDICATED if column.dedicated else hbert(default_module(paired=lesson.paired))
    made: dict[str, Any] = {}
    for seed in range(seeds):
        spec = {
            "task": lesson.task.name,
            **about,
            "lr": 0.0,
            "seed": seed,
            **({"test": True} if test else {}),
        }
        if kept.get(spec) is not None:
            continue
        if not made:
            texts, figures = lesson.taught(column)
            rows = replace(lesson.rows, train=[*lesson.rows.train, *texts])
            made = {"second": problem(lesson.task, rows, arm, lesson.models), "figures": figures}
            if column.chooses:
                made["first"] = problem(lesson.task, lesson.rows, arm, lesson.models)
        second = _trained(lesson, made["second"], arm, seed, test)
        result = {**second.figures, **made["figures"]}
        if column.chooses:
            result = _chosen(lesson, _trained(lesson, made["first"], arm, seed, test), second, result)
        kept.put(spec, result)
        yield spec, result


@dataclass(frozen=True)
class _Trained:
    figures: dict[str, Any]
    version: Version


def _trained(lesson: Lesson, p: Problem, arm: Arm, seed: int, test: bool) -> _Trained:
    """Train a version, and score it on test if that is wanted."""
    rows = len(p.examples["train"])
    if arm is DEDICATED:
        rate = TAGGING_TEACHER_LR if p.kind.name == "tagging" else TEACHER_LR
    else:
        assert arm.module is not None
        rate = default_lr(p.kind, arm.module, rows)
    run: Run = train_once(p, arm, lesson.models, rate, seed, lesson.report)
    figures = {**run.result, "rate": rate}
    figures |= {"test": tested(p, run)} if test else {}
    run.trainer.load(run.artefact)
    read = run.trainer.reading(p.kind)
    outputs: Sequence[Tensor] = run.trainer.predict(p.examples["dev"])
    return _Trained(figures, (read, merged_outputs(read, p.splits["dev"], outputs)))


def _chosen(lesson: Lesson, first: _Trained, second: _Trained, about: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of the version that the rule chooses, beside those of both."""
    found = compare([row.label for row in lesson.rows.dev], first.version, second.version, 0)
    published = second if found.better else first
    return {
        **about,
        **{key: published.figures[key] for key in ("dev", "test") if key in published.figures},
        "first": first.figures,
        "second": second.figures,
        "sure": found.sure,
        "dev_rows": found.rows,
        "test_rows": len(lesson.rows.test),
        "published": 2 if found.better else 1,
    }
