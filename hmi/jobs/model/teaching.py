"""The teacher in a fine-tuning job. It is trained once; its labels stay in the job's folder for
a resumed run."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hmi.errors import Conflict, UnsupportedModel
from hmi.jobs.runtime.context import ForPrimary, JobContext
from hmi.model.files import write_json
from hmi.model.sources.root import Root
from hmi.model.sources.source import Source, find_source, load_encoder
from hmi.training.data.rows import Row
from hmi.training.plans.recipe import Recipe
from hmi.training.second.teacher import Lesson, gold_from_json, gold_to_json, lesson_texts, unlearnt_score
from hmi.training.second.teachers import teach


@dataclass(frozen=True)
class Taught:
    """Rows that the teacher labelled, its metrics for the held-out report, and warnings for the user."""

    rows: list[Row]
    metrics: dict[str, Any]
    warnings: list[str]


def taught_rows(ctx: JobContext, root: Root, lesson: Lesson, recipe: Recipe, folder: Path) -> Taught:
    """Train a teacher and let it label the texts. A resumed job uses the labels that `folder` keeps.

    The teacher also labels `recipe.variants` changed copies of each row. Raises Conflict (the
    source is gone, or has changed), InvalidData (training diverged).
    """
    path = folder / "teacher.json"
    if not path.exists():

        def report(phase: str, step: int, total: int, loss: float | None) -> None:
            ctx.progress(step, total, phase=phase, loss=loss)

        encoder = load_encoder(
            source_of_root(ctx, root, "unlabelled" if lesson.texts else "options.variants").folder
        )
        texts = lesson_texts(lesson, recipe, encoder, root)
        if not texts:
            remark = "every text for a teacher is also a labelled or held-out row: no teacher was trained"
            return Taught([], {}, [remark])
        score, golds = teach(encoder, root, replace(lesson, texts=texts), recipe, report)
        answers = [
            {"text": row.text, "said": gold_to_json(gold)} for row, gold in zip(texts, golds, strict=True)
        ]
        write_json(path, {"score": score, "answers": answers})
        ctx.checkpointed()
    kept = json.loads(path.read_text())
    answers = kept["answers"]
    metrics, least = {"score": kept["score"], "texts": len(answers)}, unlearnt_score(lesson)
    if kept["score"] <= least:
        remark = f"the teacher learnt nothing (held-out score {kept['score']:.3f}): its texts were left out"
        return Taught([], metrics, [remark])
    form = tuple if lesson.task.paired else lambda text: text
    rows = [Row(form(answer["text"]), gold_from_json(answer["said"])) for answer in answers]
    return Taught(rows, metrics, [])


def source_of_root(ctx: JobContext, root: Root, field: str) -> Source:
    """The source of a root. `field` is the option that needs it, for errors. Raises Conflict; ForPrimary if
    only this server may lack it."""
    try:
        return find_source_of(root, field)
    except Conflict as error:
        if not ctx.elsewhere:
            raise
        ctx.log(f"the primary goes on with this job: {error.message}")
        raise ForPrimary from error


def find_source_of(root: Root, field: str) -> Source:
    """The source of a root. Raises Conflict."""
    about = root.info.source
    try:
        found = find_source(about.get("folder", about["name"]))
    except UnsupportedModel as error:
        raise _lost_source(root, "is no longer available", field) from error
    if found.sha256 != about["sha256"]:
        raise _lost_source(root, "has changed since the import", field)
    return found


def _lost_source(root: Root, what: str, field: str) -> Conflict:
    """An error that does not name the folder, which only the operator may know."""
    cure = "leave `unlabelled` and options.variants out, or ask the operator to import the root again"
    return Conflict(f"the source of root {root.info.name} {what}: {cure}", field=field)
