"""A teacher's labels for unlabelled texts or changed copies of rows, made as by the service's job."""

from __future__ import annotations

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from bench.cases.quality.cells import RECIPE_VERSION, split_of
from bench.cases.quality.lesson import TUNING
from bench.cases.quality.models import Encoders, source_of
from bench.cases.quality.tasks import QualityTask, TaskRows
from hmi.model.files import write_json
from hmi.training.data.rows import Row
from hmi.training.fit.reports import PhaseReport
from hmi.training.plans.recipe import Recipe
from hmi.training.second.teacher import Lesson, gold_from_json, gold_to_json, lesson_texts, usable
from hmi.training.second.teachers import teach
from hmi.training.tasks.objectives import learn_task


def with_texts(
    task: QualityTask,
    rows: TaskRows,
    unlabelled: list[Row],
    recipe: Recipe,
    models: Encoders,
    kept: Path,
    report: PhaseReport,
) -> TaskRows:
    """Return the rows with taught texts among the training rows: unlabelled texts and the recipe's variants.

    A task has one teacher, of seed 0. The folder `kept` stores its labels.
    """
    kind = learn_task(
        task.kind, [row.label for row in rows.train], paired=isinstance(rows.train[0].text, tuple)
    )
    train, dev = (split_of(part, models, task.length) for part in (rows.train, rows.dev))
    lesson = Lesson(kind, train, dev, unlabelled, task.length)
    texts = usable(lesson_texts(lesson, recipe, models.source, models.root), rows.test, 0)
    source = source_of(models.root)
    digest = hashlib.sha256(json.dumps([row.text for row in texts]).encode()).hexdigest()[:12]
    path = kept / f"{task.name}-{source}-{RECIPE_VERSION}-{TUNING}-{len(rows.train)}-{digest}.json"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        score, said = teach(
            copy.deepcopy(models.source), models.root, replace(lesson, texts=texts), recipe, report
        )
        write_json(path, {"dev": score, "said": [gold_to_json(gold) for gold in said]})
    said = json.loads(path.read_text())["said"]
    answered = [Row(text.text, gold_from_json(gold)) for text, gold in zip(texts, said, strict=True)]
    return replace(rows, train=[*rows.train, *answered])
