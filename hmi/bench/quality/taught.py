"""A task's unlabelled texts with a teacher's answers, as the service's training job makes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from hmi.bench.quality.cells import RECIPE
from hmi.bench.quality.models import Models
from hmi.bench.quality.tasks import QualityTask, Rows, unlabelled
from hmi.jobs.held_out import Split
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.rows import Row
from hmi.jobs.teaching import Lesson, Report, gold_from, said_as_json, taught, usable
from hmi.model.files import write_json
from hmi.model.tasks import learn_task


def with_texts(
    task: QualityTask, rows: Rows, sets: Path, most: int, models: Models, kept: Path, report: Report
) -> Rows:
    """The rows with at most so many taught texts among the training rows. One teacher a task, of seed 0; what it said
    is kept in the folder `kept`."""
    texts = usable(unlabelled(task, sets, most), [*rows.train, *rows.dev, *rows.test], 0)
    source = models.root.info.source["sha256"][:12]
    path = kept / f"{task.name}-{source}-{RECIPE}-{len(rows.train)}-{most}.json"
    if not path.exists():
        kept.mkdir(parents=True, exist_ok=True)
        score, said = taught(models.source, models.root, _lesson(task, rows, texts, models), FineTuneOptions(), report)
        write_json(path, {"dev": score, "said": [said_as_json(gold) for gold in said]})
    said = json.loads(path.read_text())["said"]
    return replace(
        rows, train=[*rows.train, *(Row(t.text, gold_from(answer)) for t, answer in zip(texts, said, strict=True))]
    )


def _lesson(task: QualityTask, rows: Rows, texts: list[Row], models: Models) -> Lesson:
    kind = learn_task(task.kind, [row.label for row in rows.train], paired=isinstance(rows.train[0].text, tuple))

    def split(part: list[Row]) -> Split:
        return Split(part, models.root.tokenizer.encode([row.text for row in part], task.length))

    return Lesson(kind, split(rows.train), split(rows.dev), texts, task.length)
