"""The tasks: their labelled sets, the number of their rows, and the split. Test rows are only scored."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.training.data.rows import Row, read_labelled_rows, read_unlabelled_file

TRAIN, DEV, TEST = 2_000, 1_000, 1_500
UNLABELLED = 12_000
WORD = re.compile(r"\w+(?:-\w+)*|[^\w\s]")
SPLIT_SEED = 20_26


@dataclass(frozen=True)
class QualityTask:
    """A labelled set.

    `length` is the number of tokens that every model reads of a text. `beside` names sets whose texts also
    serve as this set's unlabelled texts.
    """

    name: str
    kind: Task
    domain: str
    length: int = 128
    beside: tuple[str, ...] = ()


CLINC = ("clinc_auto_and_commute", "clinc_home", "clinc_utility", "clinc_credit_cards", "clinc_small_talk")
UNSEEN = (
    QualityTask("snips_intent", "classification", "dialogue", 64),
    QualityTask("sentiment_electronics", "classification", "reviews"),
    QualityTask("customer_reviews", "classification", "reviews", 64),
    QualityTask("pubmed_sections", "classification", "biomedical"),
    QualityTask("tweeteval_offensive", "classification", "posts", 64),
    QualityTask("anatem", "tagging", "biomedical"),
)
"""Sets that were named before anything was trained on them, and on which nothing is chosen."""
TASKS = (
    QualityTask("bc5cdr", "tagging", "biomedical"),
    QualityTask("bc2gm", "tagging", "biomedical"),
    QualityTask("jnlpba_devtest", "tagging", "biomedical"),
    QualityTask("scierc_ner", "tagging", "computer science", beside=("sci_cite",)),
    QualityTask("atis_slots", "tagging", "dialogue", 64),
    QualityTask("chemprot", "classification", "biomedical"),
    QualityTask("nicta_piboso", "classification", "biomedical"),
    QualityTask("sci_cite", "classification", "science"),
    QualityTask("mag_fields", "classification", "science", 64),
    QualityTask("scierc_relation", "classification", "computer science"),
    QualityTask("financial_phrasebank", "classification", "economics"),
    QualityTask("reuters_r8", "classification", "economics"),
    QualityTask("sst2", "classification", "reviews", 64),
    QualityTask("clinc_work", "classification", "dialogue", 64, CLINC),
    QualityTask("sick", "pair", "captions", 64),
    QualityTask("rte123", "pair", "news"),
    *UNSEEN,
)


@dataclass(frozen=True)
class TaskRows:
    """The rows of one task, capped, in a fixed order."""

    train: list[Row]
    dev: list[Row]
    test: list[Row]


def named(names: Sequence[str]) -> list[QualityTask]:
    """Return the tasks of these names, or all if there are none. Raises InvalidInput."""
    known = {task.name: task for task in TASKS}
    for name in names:
        if name not in known:
            raise InvalidInput(f"task {name!r} is unknown: use one of {', '.join(known)}", field="task")
    return [known[name] for name in names] if names else list(TASKS)


def load(task: QualityTask, sets: Path) -> TaskRows:
    """Read `sets/<name>/{train,dev,test}.jsonl.gz`. Without a dev file a tenth of train becomes dev.

    Raises InvalidInput if the set is missing, InvalidData if its rows do not fit the task.
    """
    folder = sets / task.name
    if not (folder / "train.jsonl.gz").is_file():
        raise InvalidInput(
            f"{folder} holds no train.jsonl.gz: name the folder of the labelled sets", field="sets"
        )
    parts = {name: _shuffled(folder / f"{name}.jsonl.gz", task) for name in ("train", "dev", "test")}
    if not parts["dev"]:
        held = len(parts["train"]) // 10
        parts["dev"], parts["train"] = parts["train"][:held], parts["train"][held:]
    return TaskRows(parts["train"][:TRAIN], parts["dev"][:DEV], parts["test"][:TEST])


def _shuffled(path: Path, task: QualityTask) -> list[Row]:
    if not path.is_file():
        return []
    rows = read_labelled_rows(path, task.kind, field=path.name)
    random.Random(SPLIT_SEED).shuffle(rows)
    return rows


def unlabelled(task: QualityTask, sets: Path, most: int) -> list[Row]:
    """Return at most `most` unlabelled texts: training rows beyond TRAIN, then rows of the sets in `beside`.

    Raises as `load`.
    """
    found = [row.text for row in _shuffled(sets / task.name / "train.jsonl.gz", task)[TRAIN:]]
    for name in task.beside:
        path = sets / name / "train.jsonl.gz"
        other = read_unlabelled_file(path, "classification", paired=False, field=path.name).rows
        random.Random(SPLIT_SEED).shuffle(other)
        found += [WORD.findall(str(row.text)) if task.kind == "tagging" else row.text for row in other]
    return [Row(text, "") for text in found[:most]]
