"""Rows of classes from Label Studio's exports. Its answers count, whatever else its tasks brought along."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.sizes import counted
from hmi.training.data.meaning.columns import SYNONYMS, listed
from hmi.training.data.records import Fits, TableRecord
from hmi.training.data.tools.export_rows import Export, Rows, answer_field, column_names, row_with_labels
from hmi.training.data.tools.label_studio import (
    META,
    Values,
    annotations_of,
    counting,
    data_of,
    decoded,
    given_of,
    is_least,
    no_answer_reason,
    object_of,
    results_of,
    task_of,
)
from hmi.training.data.tools.span_forms import is_spans

LONGEST_CHOICE = 40
"""Characters of a label, in a file that does not tell labels from other texts."""
ANSWERS = ("label", "labels", "value")


@dataclass
class _Told:
    """What was left out of an export."""

    columns: Sequence[str] = ()
    """The columns of its tasks' data that would be taken for the answers."""
    merged: int = field(default=0)
    """The annotations that repeat another one of their task."""

    def notes(self) -> list[str]:
        told = []
        if self.columns:
            told.append(
                f"left out of the tasks' data, since the annotations are the answers: {listed(self.columns)}"
            )
        if self.merged:
            agree = counted(self.merged, "annotation agrees", "annotations agree")
            told.append(f"{agree} with all others of the same task, which is one row")
        return told


def tasks_export(head: Sequence[Values], fits: Fits) -> Export | None:
    """Tasks with all their annotations."""
    tasks = [each for each in head if data_of(each) is not None and annotations_of(each) is not None]
    found = [_choices(annotation) for task in tasks for annotation in annotations_of(task) or ()]
    controls = tuple(dict.fromkeys(name for choices in found for name in choices))
    if not controls:
        return None
    many = {name for choices in found for name, labels in choices.items() if len(labels) > 1}
    only = controls[0] if len(controls) == 1 else ""
    datas = [data_of(task) or {} for task in tasks]
    columns, told = column_names(datas), _Told()
    told.columns = [name for name in columns if _is_answer(name, synonyms=not only)]
    rest = [name for name in columns if name not in told.columns]
    texts = [name for name in rest if any(isinstance(data.get(name), str) for data in datas)]
    answer = answer_field(rest, fits, several=bool(many), control=only)
    lone = texts[0] if len(texts) == 1 and "text" not in rest and not fits((*rest, answer)) else ""
    if lone:
        rest = ["text" if name == lone else name for name in rest]
        answer = answer_field(rest, fits, several=bool(many), control=only)

    def rows(task: Values) -> Rows:
        given = data_of(task)
        if given is None:
            raise ValueError("has no `data`, unlike other tasks of Label Studio")
        data = {"text" if n == lone else n: value for n, value in given.items() if n not in told.columns}
        every = [_choices(annotation) for annotation in counting(given_of(task))]
        if all(choices == every[0] for choices in every):
            told.merged += len(every[1:])
            every = every[:1]
        for choices in every:
            if only:
                yield row_with_labels(data, answer, choices.get(only, []), several=bool(many))
            else:
                one = {
                    name: labels if name in many else labels[0] for name, labels in choices.items() if labels
                }
                yield {**data, **dict.fromkeys(controls), **one}, ""
        if not every:
            yield data, no_answer_reason(task)

    return Export("from Label Studio", rows, controls, notes=told.notes)


def _is_answer(column: str, *, synonyms: bool) -> bool:
    """Whether a column would be read as an answer. synonyms: even if none has the name of the field."""
    name = column.strip().casefold()
    return name in ANSWERS or (synonyms and any(name in SYNONYMS.get(answer, ()) for answer in ANSWERS))


def _choices(annotation: Values) -> dict[str, list[str]]:
    """The chosen labels of an annotation by its controls."""
    found: dict[str, list[str]] = {}
    for control, value in results_of(annotation):
        if isinstance(value.get("choices"), list) and "start" not in value:
            found.setdefault(control or "choice", []).extend(map(str, value["choices"]))
    return found


def least_export(head: Sequence[Values], fits: Fits) -> Export | None:
    """JSON-MIN and CSV: a row for each annotation."""
    columns = column_names(head)
    if not is_least(columns):
        return None
    spans = [name for name in columns if any(is_spans(decoded(values.get(name))) for values in head)]
    rest = [name for name in columns if name not in META and name not in spans]
    chosen = [name for name in rest if any("choices" in object_of(values.get(name)) for values in head)]
    answers = chosen or [name for name in rest if name != "text"]
    own = [
        name for name in rest if chosen and name not in chosen and _is_answer(name, synonyms=len(chosen) > 1)
    ]
    recurring = tuple(chosen or (n for n in answers if _recurs([values.get(n) for values in head])))
    told = _Told(own)
    repeated = _RepeatFilter([name for name in rest if name not in answers], answers, told)

    def row_of(values: Values, *without: str) -> dict[str, Any]:
        left_out = {*spans, *own, *without}
        return {n: _labels(v) if n in chosen else v for n, v in values.items() if n not in left_out}

    if len(answers) != 1 or len(rest) < 2:  # several controls: columns like any others
        may_be = recurring if spans or len(recurring) > 1 else ()
        if not may_be:
            return None
        return Export(
            "from Label Studio",
            lambda values: iter([(row_of(values), "")]),
            may_be,
            repeated.without,
            told.notes,
        )
    (answer,) = answers
    if spans and not chosen and not recurring:
        return None
    cells = [values.get(answer) for values in head]
    if any(isinstance(cell, list | dict) and "choices" not in object_of(cell) for cell in cells):
        return None
    named = column_names(head, answer, *spans, *own)
    into = answer_field(named, fits, several=bool(chosen), control=answer)

    def rows(values: Values) -> Rows:
        labels = _labels(values.get(answer)) or []
        yield row_with_labels(row_of(values, answer), into, labels, several=bool(chosen))

    said = f"from Label Studio, the answers in `{answer}`"
    return Export(said, rows, (answer,), repeated.without, told.notes)


def _labels(value: Any) -> list[Any] | None:
    """The labels of a cell of choices, which may be one label; None of an empty one."""
    choices = object_of(value).get("choices")
    return choices if isinstance(choices, list) else None if value in (None, "") else [value]


@dataclass
class _RepeatFilter:
    """Leaves out rows of annotators who all agree about a task. Where they do not, each counts: two of three
    are a majority."""

    data: Sequence[str]
    answers: Sequence[str]
    told: _Told

    def without(self, records: Iterator[TableRecord]) -> Iterator[TableRecord]:
        every = list(records)  # the annotations of a task need not be beside each other
        tasks: dict[Hashable, list[int]] = defaultdict(list)
        for number, record in enumerate(every):
            task = task_of(record.values, self._of(record, self.data))
            if task is not None:
                tasks[task].append(number)
        left_out = {
            number
            for numbers in tasks.values()
            if len({self._of(every[each], self.answers) for each in numbers}) == 1
            for number in numbers[1:]
        }
        self.told.merged += len(left_out)
        return (record for number, record in enumerate(every) if number not in left_out)

    @staticmethod
    def _of(record: TableRecord, names: Sequence[str]) -> str:
        return json.dumps([record.values.get(name) for name in names], sort_keys=True)


def _recurs(values: Sequence[Any]) -> bool:
    """Whether values may be choices: short texts, most of which occur more than once."""
    given = [value for value in values if value not in (None, "")]
    short = all(isinstance(value, str) and len(value) <= LONGEST_CHOICE for value in given)
    return short and 1 < len(set(given)) <= len(given) / 2
