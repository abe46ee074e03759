"""Three tasks for models that write, made of labelled sets: their prompts, completions and rows.

They were fixed before anything was trained on them. Nothing is chosen on their test rows.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.cases.quality.cell_queue import small
from bench.cases.quality.tasks import TaskRows, load, named
from hmi.errors import InvalidInput
from hmi.training.data.golds import Completion
from hmi.training.data.rows import Row

ROWS, TEST = 450, 200
"""A tenant's labelled rows, of which the service holds some out; rows that only score."""


@dataclass(frozen=True)
class WritingTask:
    """A task. Its rows are those of `source` (see `bench.cases.quality.tasks`) with at most `words` words."""

    name: str
    source: str
    words: int
    before: str
    after: str
    """A prompt is `before`, then the text, then `after`."""

    def row(self, row: Row) -> Row:
        """The prompt of a labelled or tagged row, and what is to be written after it."""
        if isinstance(row.text, list):
            assert isinstance(row.label, tuple)
            text, gold = " ".join(row.text), slots(row.text, row.label)
        else:
            text, gold = str(row.text), str(row.label).replace("_", " ")
        return Row(f"{self.before}{text}{self.after}", Completion(f" {gold}"))


TASKS = (
    WritingTask("intents", "clinc_work", 30, "Text: ", "\nIntent:"),
    WritingTask("sections", "pubmed_sections", 30, "Sentence: ", "\nSection:"),
    WritingTask("slots", "atis_slots", 12, "Text: ", "\nSlots:"),
)


def task_of(name: str) -> WritingTask:
    """The task of this name. Raises InvalidInput."""
    for task in TASKS:
        if task.name == name:
            return task
    raise InvalidInput(
        f"task {name!r} is unknown: use one of {', '.join(task.name for task in TASKS)}", field="cell"
    )


def rows_of(task: WritingTask, sets: Path, count: int, draw: int = 0) -> TaskRows:
    """The rows of a tenant that has `count` labelled rows: train, dev (held out of the labelled rows), test.

    draw: 0 for the first rows, another number for other rows. Raises as `load`.
    """
    [source] = named([task.source])
    found = load(source, sets)
    found = small(replace(found, train=_short(task, found.train)), count, draw)
    test = _short(task, found.test)[:TEST]
    return TaskRows(*([task.row(row) for row in part] for part in (found.train, found.dev, test)))


def _short(task: WritingTask, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if _words(row) <= task.words]


def _words(row: Row) -> int:
    return len(row.text if isinstance(row.text, list) else str(row.text).split())


def slots(words: Sequence[str], tags: Sequence[str]) -> str:
    """The spans of a tagged text as a JSON object, by kind in the order in which kinds appear.

    A kind with several spans has a list of them.
    """
    found: dict[str, list[list[str]]] = {}
    for word, tag in zip(words, tags, strict=True):
        mark, _, kind = tag.partition("-")
        if mark == "B":
            found.setdefault(kind, []).append([word])
        elif mark == "I" and kind in found:
            found[kind][-1].append(word)
    spans = {kind: [" ".join(span) for span in several] for kind, several in found.items()}
    return json.dumps({kind: several if several[1:] else several[0] for kind, several in spans.items()})
