"""One task's rows with what a second version is trained on: the pool, and what teachers say of it."""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

from bench.cases.quality.cells import Report, reset_peak
from bench.cases.quality.models import Encoders
from bench.cases.quality.setting import CORPUS_OF, GENERAL
from bench.cases.quality.tasks import QualityTask, TaskRows
from hmi.model.sources.source import find_source, load_encoder
from hmi.model.tasks import TaskKind
from hmi.model.text.tokenizer import Tokenizer
from hmi.resident import peak_resident
from hmi.training.data.passages import sample_corpus
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import Recipe
from hmi.training.second.pool import draw_pool
from hmi.training.second.probing import can_probe
from hmi.training.second.second_version import (
    UnlabelledPool,
    hears_larger,
    is_probe,
    make_pool,
    plan_of,
    teacher_from,
)
from hmi.training.second.teacher_outputs import (
    TeacherOutputs,
    mix,
    mixed_golds,
    store_said,
    stored_said,
    weigh,
)
from hmi.training.second.teachers import TeacherSource, TextLesson
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import learn_task, objective_of

OWN = "own"
"""The name of the root's source among teachers."""
TUNING = "2"
"""A part of the name of a teacher's stored answers. Change it when teachers are tuned in another way."""


@dataclass
class TaskLesson:
    """One task's rows, pool and teachers, each made when it is first needed. Teachers' answers are kept."""

    task: QualityTask
    rows: TaskRows
    models: Encoders
    corpora: Path
    larger: tuple[str, ...]
    kept: Path
    report: Report
    count: int = 0
    """The number of all training rows of the tenant, if `rows` are a part of them; else 0."""
    peaks: dict[str, int | None] = field(default_factory=dict, init=False)
    """The peak of resident memory in bytes while a teacher was made. Those read from `kept` have none."""

    @property
    def paired(self) -> bool:
        return isinstance(self.rows.train[0].text, tuple)

    @cached_property
    def kind(self) -> TaskKind:
        return learn_task(self.task.kind, [row.label for row in self.rows.train], paired=self.paired)

    @cached_property
    def pool(self) -> UnlabelledPool:
        """The pool of the service, less texts that are test rows."""
        words = self.models.root.tokenizer, self.models.source.embeddings.word.weight
        passages = sample_of(self.corpora, CORPUS_OF.get(self.task.domain, GENERAL))
        train, dev = self.rows.train, self.rows.dev

        def near(most: int) -> list[Row]:
            return draw_pool(train, passages, most, 0, held_out=[*dev, *self.rows.test])

        found = make_pool(train, dev, [], near, words, plan_of(len(train)), 0)
        return found.without(self.rows.test)

    @cached_property
    def said(self) -> dict[str, TeacherOutputs]:
        """Each teacher's answers to the whole pool, then to the test rows. A task has one teacher from each
        source, of seed 0."""
        texts = [*self.pool.texts, *self.rows.test]
        lesson = TextLesson(self.kind, self.rows.train, self.rows.dev, texts, self.task.length)
        larger = self.larger if hears_larger(self.kind, self.all_rows) else ()
        return {name: self._said(name, lesson) for name in (OWN, *larger)}

    def _said(self, name: str, lesson: TextLesson) -> TeacherOutputs:
        path = self._path(name, lesson)
        found = stored_said(path, self.kind)
        if found is None:
            anew = reset_peak()
            found = teacher_from(self.source(name), lesson, Recipe(), self.all_rows, self.teaching)
            self.peaks[name] = peak_resident() if anew else None
            path.parent.mkdir(parents=True, exist_ok=True)
            store_said(path, found)
        return found

    def _path(self, name: str, lesson: TextLesson) -> Path:
        """The file of a teacher's answers, named by all that they depend on."""
        kind = "probe" if is_probe(lesson, self.all_rows) else "tuned"
        rows = [(row.text, row.label) for row in (*lesson.train, *lesson.dev, *lesson.texts)]
        texts = json.dumps([kind, TUNING, *rows])
        digest = hashlib.sha256(texts.encode()).hexdigest()[:12]
        return self.kept / f"{self.task.name}-{Path(name).name}-{digest}.safetensors"

    def source(self, name: str) -> TeacherSource:
        """A source of teachers, by its name."""
        if name == OWN:
            return TeacherSource(OWN, self.models.source, self.models.root.tokenizer)
        folder = find_source(name).folder
        return TeacherSource(name, load_encoder(folder), Tokenizer(folder / "tokenizer.json"))

    def teaching(self, phase: str, step: int, total: int, loss: float | None) -> None:
        """Report the progress of a teacher."""
        self.report(f"{self.task.name}, {phase}", step, total)

    @property
    def can_be_probed(self) -> bool:
        """Return whether a logistic regression can learn this task."""
        return can_probe(TextLesson(self.kind, self.rows.train, [], [], self.task.length))

    @property
    def all_rows(self) -> int:
        return self.count or len(self.rows.train)

    def taught(
        self, teachers: Collection[str] | None, parts: Sequence[str], *, test: bool
    ) -> tuple[list[Row], dict[str, Any]]:
        """The texts of some parts with the mixture's answers, and figures about them. None: all teachers.

        test: whether the teachers and their mixture are scored on test.
        """
        said = [of for name, of in self.said.items() if teachers is None or name in teachers]
        weights, score = weigh(said, self.rows.train, self.rows.dev)
        which = [i for i, part in enumerate(self.pool.origin) if part in parts]
        golds = mixed_golds([replace(one, texts=[one.texts[i] for i in which]) for one in said], weights)
        about: dict[str, Any] = {
            "texts": {part: self.pool.origin.count(part) for part in parts},
            "teachers": {
                one.name: {"score": round(one.score, 4), "weight": weight, "cpu_s": round(one.cpu_s, 1)}
                for one, weight in zip(said, weights, strict=True)
            },
            "mixture": round(score, 4),
        }
        for name in about["teachers"].keys() & self.peaks:
            about["teachers"][name]["peak_bytes"] = self.peaks[name]
        if test:
            about["mixture_test"] = self._tested(said, weights)
            for one in said:
                about["teachers"][one.name]["test"] = self._tested([one], [1.0])
        return [Row(self.pool.texts[i].text, gold) for i, gold in zip(which, golds, strict=True)], about

    def _tested(self, said: Sequence[TeacherOutputs], weights: Sequence[float]) -> float:
        """The test score of a mixture of teachers."""
        answers = [one.texts[len(self.pool.texts) :] for one in said]
        task, merged = mix(said, weights, answers)
        golds = [row.label for row in self.rows.test]
        return round(headline(objective_of(task).score(golds, merged)), 4)


@cache
def sample_of(corpora: Path, name: str) -> list[str]:
    """The sample that a build keeps of this corpus."""
    with gzip.open(corpora / f"{name}.txt.gz", "rt", encoding="utf-8") as lines:
        return sample_corpus(lines)
