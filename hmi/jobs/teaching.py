"""A teacher for a tenant's module: a whole copy of the root's source is trained on the tenant's rows, labels the
tenant's unlabelled texts, and is deleted. The module is trained on the rows and the teacher's labels (distillation on
unlabelled text: Hinton et al., 2015; Chen et al., 2020). For tasks with one label a text these are probabilities, else
answers.

With few rows, frozen layers learn less than a whole copy does from the same rows; the teacher gives them more rows.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hmi.core import Task
from hmi.errors import Conflict, UnsupportedModel
from hmi.jobs.options import FineTuneOptions
from hmi.jobs.runtime.context import JobContext
from hmi.model.encoder import Encoder
from hmi.model.files import write_json
from hmi.model.golds import Gold, Odds
from hmi.model.root import Root
from hmi.model.scoring import headline
from hmi.model.source import find_source, load_encoder
from hmi.model.tasks import TaskKind
from hmi.model.tasks.base import Answer
from hmi.model.tasks.sequence import Classification
from hmi.training.augmentation import similar_words, variants
from hmi.training.backbones import EncoderBody, Examples
from hmi.training.data.rows import Row
from hmi.training.defaults import choose_epochs
from hmi.training.splits import FEW_DEV, Split, encoded_split, judge, merged_outputs, task_targets
from hmi.training.trainer import Trainer, TrainPlan, train_to_best
from hmi.training.transitions import learns_transitions

MOST_TEXTS = 20_000
"""The most unlabelled texts that are used; of more, this many are drawn."""
LR: dict[Task, float] = {"tagging": 1.2e-4}
USUAL_LR = 6e-5
"""A whole copy's best rate on dev (docs/benchmarks/2026-11-quality.md)."""

Report = Callable[[str, int, int, float | None], None]
"""(phase, step, of, loss)."""
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


@dataclass(frozen=True)
class Taught:
    """Rows whose right answers are the teacher's; what the held-out report says of it, and what a user should know."""

    rows: list[Row]
    metrics: dict[str, Any]
    warnings: list[str]


def taught_rows(ctx: JobContext, root: Root, lesson: Lesson, options: FineTuneOptions) -> Taught:
    """Train a teacher and let it label the texts; a resumed job uses the stored labels.

    options.variants: how many changed copies of each row are labelled too. Raises Conflict (the source is gone, or has
    changed), InvalidData (diverged).
    """
    path = ctx.folder / "teacher.json"
    if not path.exists():

        def report(phase: str, step: int, total: int, loss: float | None) -> None:
            ctx.progress(step, total, phase=phase, loss=loss)

        encoder = load_encoder(_source(root, "unlabelled" if lesson.texts else "options.variants"))
        texts = lesson_texts(lesson, options, encoder, root)
        if not texts:
            remark = "every text for a teacher is a labelled or held-out row, too: no teacher was trained"
            return Taught([], {}, [remark])
        score, said = taught(encoder, root, replace(lesson, texts=texts), options, report)
        answers = [{"text": row.text, "said": said_as_json(gold)} for row, gold in zip(texts, said, strict=True)]
        write_json(path, {"score": score, "answers": answers})
        ctx.checkpointed()
    kept = json.loads(path.read_text())
    answers = kept["answers"]
    metrics, least = {"score": kept["score"], "texts": len(answers)}, unlearnt_score(lesson)
    if kept["score"] <= least:
        remark = f"the teacher learnt nothing (held-out score {kept['score']:.3f}): its texts were left out"
        return Taught([], metrics, [remark])
    form = tuple if lesson.task.paired else lambda text: text
    rows = [Row(form(answer["text"]), gold_from(answer["said"])) for answer in answers]
    return Taught(rows, metrics, [])


def taught(
    encoder: Encoder, root: Root, lesson: Lesson, options: FineTuneOptions, report: Report
) -> tuple[float, list[Gold]]:
    """Fine-tune a whole copy of `encoder` on the lesson's rows.

    Returns its score on dev and its label for each text. Raises InvalidData (diverged).
    """
    task, dev = lesson.task, lesson.dev
    targets = task_targets(task, lesson.train)
    plan = TrainPlan(
        task.name, task.outputs, LR.get(task.name, USUAL_LR), choose_epochs(len(targets), options.batch),
        options.batch, options.seed, options.dropout, paired=task.paired, weights=lesson.weights, bf16=True,
        transitions=learns_transitions(task.name, task.outputs, lesson.weights, options.transitions),
    )  # fmt: skip
    trainer = Trainer(EncoderBody(encoder), root.dim, plan, encoder_examples(lesson.train, targets))
    held_out = encoder_examples(dev, [[]] * len(dev.encoded))
    best = train_to_best(
        trainer,
        lambda: headline(judge(trainer.reading(task), dev, trainer.predict(held_out))),
        lambda step, total, loss: report("training the teacher", step, total, loss),
        choosy=len(dev.rows) >= FEW_DEV,
    )
    trainer.load(best.state)
    read, said = trainer.reading(task), []
    odds = isinstance(task, Classification) and len(task.labels) <= MOST_ODDS
    for at in range(0, len(lesson.texts), AT_ONCE):
        some = lesson.texts[at : at + AT_ONCE]
        split = encoded_split(some, root.tokenizer, lesson.max_length, windows=task.rules.windows)
        outputs = trainer.predict(encoder_examples(split, [[]] * len(split.encoded)))
        said += [gold_of(read.answer(merged, scores=odds)) for merged in merged_outputs(read, split, outputs)]
        report("labelling texts", len(said), len(lesson.texts), None)
    return best.score, said


def lesson_texts(lesson: Lesson, options: FineTuneOptions, encoder: Encoder, root: Root) -> list[Row]:
    """What the teacher labels: the lesson's texts, and as far as there is room the changed copies of its rows that the
    options ask for."""
    told = [*lesson.train.rows, *lesson.dev.rows]
    texts = usable(lesson.texts, told, options.seed)
    if not options.variants:
        return texts
    similar = similar_words(lesson.train.rows, root.tokenizer, encoder.embeddings.word.weight)
    copies = variants(lesson.train.rows, options.variants, similar, options.seed, MOST_TEXTS - len(texts))
    return [*texts, *usable(copies, [*told, *texts], options.seed)]


def usable(texts: Sequence[Row], told: Sequence[Row], seed: int) -> list[Row]:
    """Each text once, without texts that are also labelled rows: a held-out row's label must not be learnt from a
    teacher that was chosen on it. At most MOST_TEXTS, drawn by `seed`."""
    known = {_key(row) for row in told}
    left = list({_key(row): row for row in texts if _key(row) not in known}.values())
    return left if len(left) <= MOST_TEXTS else random.Random(seed).sample(left, MOST_TEXTS)


def unlearnt_score(lesson: Lesson) -> float:
    """The score that a teacher must beat on dev: for one label a row the commonest label's share, else 0. Any score
    passes if dev cannot tell (few rows, one label, classes with different weights)."""
    if len(lesson.dev.rows) < FEW_DEV:
        return -math.inf
    labels = Counter(row.label for row in lesson.dev.rows if isinstance(row.label, str))
    if len(labels) == 1 or lesson.weights is not None:
        return -math.inf
    return max(labels.values()) / labels.total() if labels else 0.0


def encoder_examples(split: Split, targets: Sequence[Sequence[float]]) -> Examples:
    """Token ids, for a body that is a whole encoder."""
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


def _source(root: Root, field: str) -> Path:
    """The folder of the root's source. field: the option that needs it, for errors."""
    about = root.info.source
    try:
        found = find_source(about.get("folder", about["name"]))
    except UnsupportedModel as error:
        raise _gone(root, "is no longer available", field) from error
    if found.sha256 != about["sha256"]:
        raise _gone(root, "has changed since the import", field)
    return found.folder


def _gone(root: Root, what: str, field: str) -> Conflict:
    """The error does not name the folder, which only the operator may know."""
    cure = "leave `unlabelled` and options.variants out, or ask the operator to import the root again"
    return Conflict(f"the source of root {root.info.name} {what}: {cure}", field=field)


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
