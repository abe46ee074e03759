"""What Label Studio's exports have in common: tasks, their annotations, and which of these count.

Its JSON has an object for each task, with all annotations. JSON-MIN, CSV and TSV have a row for each
annotation, with the task's data and the controls as columns.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from hmi.training.data.meaning.columns import SYNONYMS, second_text

Values = Mapping[str, Any]
TASK, ANNOTATIONS, PREDICTIONS = "data", "annotations", "predictions"
ID, ANNOTATION_ID = "id", "annotation_id"
META = frozenset(
    {ID, ANNOTATION_ID, "annotator", "lead_time", "created_at", "updated_at", "agreement", "inner_id"}
)
"""Columns of JSON-MIN and CSV that are neither data nor answers."""
NOT_CHARACTERS = ("hypertextlabels", "paragraphlabels")
"""Kinds of spans whose offsets do not count the characters of a text."""
NOT_ANNOTATED = "without an annotation"
"""JSON-MIN and CSV have such tasks too, with an `annotation_id` that is null or empty."""
SKIPPED = "skipped by the annotator"


def data_of(record: Values, named: Sequence[str] = ()) -> dict[str, Any] | None:
    """The data of a task; None for other records, such as a row with its text beside an object `data`. named:
    the fields of the text, if the user names them."""
    data = record.get(TASK)
    texts = {name.strip().casefold() for name in named or ("text", *SYNONYMS["text"])}
    own = any(name.strip().casefold() in texts for name in record)
    is_row = own or (not named and second_text(record) is not None)
    return data if isinstance(data, dict) and not is_row else None


def annotations_of(task: Values) -> list[Values] | None:
    """The annotations of a task, skipped ones too; None if it has no list of them."""
    found = task.get(ANNOTATIONS, task.get("completions"))
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else None


def given_of(task: Values) -> list[Values]:
    """The annotations of a task that were not skipped, those that are marked as the ground truth first."""
    every = annotations_of(task) or []
    given = [each for each in every if not (each.get("was_cancelled") or each.get("skipped"))]
    return sorted(given, key=lambda each: not each.get("ground_truth"))


def counting(given: Sequence[Values]) -> list[Values]:
    """Of annotations that were not skipped those that count: the ground truth, else all."""
    return [each for each in given if each.get("ground_truth")] or list(given)


def no_answer_reason(task: Values) -> str:
    """Why a task has no annotation that counts; "" if it has one."""
    return "" if given_of(task) else SKIPPED if annotations_of(task) else NOT_ANNOTATED


def results_of(annotation: Values) -> Iterator[tuple[str, Values]]:
    """The values of an annotation, each with the name of its control."""
    results = annotation.get("result")
    for each in results if isinstance(results, list) else []:
        value = each.get("value") if isinstance(each, dict) else None
        if isinstance(value, dict):
            yield str(each.get("from_name", "")), value


def is_least(columns: Sequence[str]) -> bool:
    """Whether these are columns of JSON-MIN or CSV."""
    return ANNOTATION_ID in columns and bool({"lead_time", "annotator"} & set(columns))


def task_of(row: Values, *data: Hashable) -> Hashable | None:
    """Which task an annotated row of JSON-MIN or CSV is of, by its id and data; None of other rows, such as
    those of a user's own table, whose ids may be anything."""
    if not is_least([*row]) or row[ANNOTATION_ID] in (None, "") or row.get(ID) in (None, ""):
        return None
    return str(row[ID]), *data


def decoded(value: Any) -> Any:
    """A value; of a CSV cell that holds spans as JSON, as Label Studio writes them, the spans."""
    if value == "" or not isinstance(value, str) or not value.startswith('[{"'):
        return [] if value in ("", "[]") else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def object_of(value: Any) -> Mapping[str, Any]:
    """A value that is an object, or text of JSON that is one, as cells of Label Studio's CSV are; else {}."""
    if isinstance(value, str) and value.startswith('{"choices"'):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def why_unread(records: Sequence[Values], *, fitting: bool) -> str:
    """Why none of these first records of an export is a row: nothing is annotated, or all of it in a way that
    is not read. "" for other records. fitting: whether the columns are those of rows."""
    tasks = [] if fitting else [each for each in records if data_of(each) is not None]
    tasks = [each for each in tasks if {ANNOTATIONS, PREDICTIONS, "completions"} & set(each)]
    if tasks:
        given = [annotation for task in tasks for annotation in given_of(task)]
        kinds = {kind for annotation in given for kind in _kinds(annotation)}
        if not given:
            return _not_annotated(len(tasks), predicted=any(task.get(PREDICTIONS) for task in tasks))
        return _unread_kinds_hint(kinds) if kinds and not kinds & {"labels", "choices"} else ""
    rows = [each for each in records if is_least([*each])]
    if rows and not fitting and all(each[ANNOTATION_ID] in (None, "") for each in rows):
        return _not_annotated(len(rows), predicted=False)
    columns = [decoded(value) for row in rows for value in row.values()]
    entries = [entry for each in columns if isinstance(each, list) for entry in each]
    kinds = {
        kind for kind in NOT_CHARACTERS for entry in entries if isinstance(entry, dict) and kind in entry
    }
    return _unread_kinds_hint(kinds) if kinds else ""


def _not_annotated(count: int, *, predicted: bool) -> str:
    whole = f"it holds tasks of Label Studio, and none of the {count} that were looked at is annotated"
    if predicted:
        return f"{whole}: there are predictions alone. Submit them there as annotations, and export again"
    return (
        f"{whole}: annotate them there, and export again. A model that exists predicts labels to correct: "
        "hmi infer TENANT.MODEL --batch FILE --form label-studio"
    )


def _unread_kinds_hint(kinds: set[str]) -> str:
    """What to do with annotations of kinds that are not read."""
    named = ", ".join(f"`{kind}`" for kind in sorted(kinds))
    cure = "label a plain text there (<Text> with <Labels> or <Choices>), and export again"
    if kinds & set(NOT_CHARACTERS):
        return (
            f"it holds tasks of Label Studio whose spans are in pages or dialogues ({named}): their offsets "
            f"do not count the characters of a text. To train on them, {cure}"
        )
    return f"it holds tasks of Label Studio, and their annotations ({named}) are no labels of texts: {cure}"


def _kinds(annotation: Values) -> Iterator[str]:
    results = annotation.get("result")
    for each in results if isinstance(results, list) else []:
        if isinstance(each, dict) and isinstance(each.get("value"), dict):
            known = ("labels", "choices", *NOT_CHARACTERS)
            named = next((kind for kind in known if kind in each["value"]), None)
            yield named or str(each.get("type", "others"))
