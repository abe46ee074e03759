"""Recognises spans as annotation tools and libraries write them, and reads them from one record.

| form | a record has |
|---|---|
| Label Studio, JSON | `data` with the text, `annotations` with results of the type labels |
| Label Studio, JSON-MIN | the text, and a list of objects with `start`, `end`, `labels` |
| doccano | `label`, `labels` or `entities`: lists `[start, end, label]`, or objects with `start_offset` |
| Prodigy | `spans`: objects with `start`, `end`, `label` |
| doccano, intents | `entities` as doccano's, and `cats`: a list of labels |
| spaCy | `entities`: lists `[start, end, label]`; or `ents`: objects with `start`, `end`, `label` |
| spaCy, groups of spans | `spans`: an object that holds such a list of objects for each group |
| GLiNER | `tokenized_text`, and `ner`: lists `[first word, last word, label]` |

Other names of fields are taken too, if the values have the form of spans.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hmi.training.data.columns import SYNONYMS

STARTS = ("start", "start_offset", "start_char", "begin")
ENDS = ("end", "end_offset", "end_char")
LABELS = ("label", "labels", "type", "entity_group", "entity_type", "entity", "category")
"""The keys of a span's fields, the likeliest first."""
FIELDS = ("spans", "entities", "ents", "label", "labels", "annotations")
"""The fields that hold spans in most files. They are looked at before others."""
WORDS, WORD_SPANS = "tokenized_text", "ner"
TASK, RESULTS, CANCELLED = "data", "annotations", "was_cancelled"
NOT_ANNOTATED = "without an annotation"
"""Label Studio's JSON-MIN and CSV have such tasks too, with an `annotation_id` that is null or empty."""


class NoText(ValueError):
    """Raised for a record of which no field, or none of several, is surely the text."""


@dataclass(frozen=True)
class Given:
    """A span as its file gives it: offsets in the file's units, and the span's text if it has one."""

    start: int
    end: int
    label: str
    text: str | None = None


@dataclass(frozen=True)
class GivenText:
    """A text, or its words, with spans. `ends_at_last`: `end` is the last unit, not the one after it."""

    text: str | list[str]
    spans: list[Given]
    several: int = 1
    """The number of annotations, of which the first is read."""
    left_out: str = ""
    """Why the text is not a row."""


@dataclass(frozen=True)
class Form:
    """How records hold spans."""

    name: str
    """The form in words."""
    field: str
    """The column of the spans."""
    read: Callable[[Mapping[str, Any]], GivenText]
    """Reads a record. Raises ValueError."""
    code_points: bool = False
    """Whether offsets surely count code points, since the tool is written in Python. Label Studio and doccano
    have counted these or UTF-16 units, in one version or another."""
    of_words: bool = False
    """Whether offsets count words."""


def form_of(records: Iterable[Mapping[str, Any]], text_column: str | None = None) -> Form | None:
    """The form of a file's first records; None if they hold no spans. text_column: the field of the text, if
    the user names it."""
    found = [record for record in records if record]
    if any(map(_has_words, found)):
        return Form("words with spans, as GLiNER reads them", WORD_SPANS, _of_words, of_words=True)
    if any(map(_has_results, found)):
        return Form("spans in Label Studio's JSON", RESULTS, partial(_of_task, text_column=text_column))
    # Where a document has entities, they count, not its groups of other spans.
    for held in (decoded, _group):
        for name in dict.fromkeys((*FIELDS, *(name for record in found for name in record))):
            first = next((spans for r in found if is_spans(spans := held(r.get(name)))), None)
            if first is not None:
                return _named(name, first[0], found, text_column)
    return None


def text_form(
    form: Form | None, records: Sequence[Mapping[str, Any]], text_column: str | None = None
) -> Form | None:
    """The form of the texts alone, of a file whose spans have `form`; None if its records have no texts."""
    found = form
    if found is None and any(isinstance(record.get(TASK), dict) for record in records):
        found = Form("texts in Label Studio's JSON", RESULTS, partial(_of_task, text_column=text_column))
    if found is None:
        if not any(_text_fields(record, text_column) for record in records):
            return None
        found = Form("texts", "", lambda record: GivenText(str(record[text_field(record, text_column)]), []))
    whole = found.read
    return replace(found, read=lambda record: replace(whole(record), spans=[], several=1, left_out=""))


def decoded(value: Any) -> Any:
    """A value; of a CSV cell that holds spans as JSON, as Label Studio writes them, the spans."""
    if value == "" or not isinstance(value, str) or not value.startswith('[{"'):
        return [] if value in ("", "[]") else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _group(value: Any) -> Any:
    """The spans of the only group of an object such as {"sc": […]}; else the value."""
    return next(iter(value.values())) if isinstance(value, dict) and len(value) == 1 else value


def is_spans(value: Any) -> bool:
    """Return whether a value is a list of spans, and not empty."""
    return isinstance(value, list) and bool(value) and all(map(_is_span, value))


def record_of_pair(value: Any) -> Any:
    """The record of `[text, {"entities": […]}]` or `[text, {"cats": {…}}]`, items of spaCy's training data;
    other values as they are."""
    if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str):
        about = value[1]
        if isinstance(about, dict) and (
            isinstance(about.get("entities"), list) or isinstance(about.get("cats"), dict)
        ):
            return {"text": value[0], **about}
    return value


def text_field(record: Mapping[str, Any], named: str | None = None) -> str:
    """The name of the field that holds the text: the `named` one, else the likeliest. Raises ValueError,
    NoText."""
    found = _text_fields(record, named)
    if found:
        return found[0]
    if named is not None:
        raise ValueError(f"has no text in `{named}` (text_column)")
    raise NoText("has no text: name the field that holds it `text`")


def _text_fields(record: Mapping[str, Any], named: str | None) -> list[str]:
    """The names of the fields that may hold the text, the likeliest first."""
    if named is not None:
        return [named] if isinstance(record.get(named), str) else []
    folded = {name.strip().casefold(): name for name, value in record.items() if isinstance(value, str)}
    known = [folded[name] for name in ("text", *SYNONYMS["text"]) if name in folded]
    return known or ([*folded.values()] if len(folded) == 1 else [])


def _named(field: str, first: Any, records: Sequence[Mapping[str, Any]], text_column: str | None) -> Form:
    """The form of spans in a field of these records, of which `first` is one."""
    grouped = any(isinstance(record.get(field), dict) for record in records)

    def read(record: Mapping[str, Any]) -> GivenText:
        value = _group(decoded(record.get(field)))
        if value and not isinstance(value, list):
            raise ValueError(f"`{field}` is not a list of spans")
        spans = [one for span in value or [] for one in _given(span, field)]
        why = "" if spans or record.get("annotation_id", 0) not in (None, "") else NOT_ANNOTATED
        return GivenText(str(record[text_field(record, text_column)]), spans, left_out=why)

    if isinstance(first, list):
        # doccano writes intents with their slots so, too, and counts UTF-16 units in both.
        doccano = any("Comments" in record or isinstance(record.get("cats"), list) for record in records)
        spacy = field == "entities" and not doccano
        whose = "spaCy" if spacy else "doccano"
        return Form(f"spans in `{field}`, as {whose} writes them", field, read, code_points=spacy)
    if "start_offset" in first:
        return Form(f"spans in `{field}`, as doccano writes them", field, read)
    if isinstance(first.get("labels"), list):
        return Form(f"spans in `{field}`, as Label Studio's JSON-MIN has them", field, read)
    if field in ("spans", "ents"):
        whose = "Prodigy" if field == "spans" and not grouped else "spaCy"
        return Form(f"spans in `{field}`, as {whose} writes them", field, read, code_points=True)
    return Form(f"spans in `{field}`", field, read)


def _is_span(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) >= 3 and _is_whole(value[0]) and _is_whole(value[1]) and isinstance(value[2], str)
    return isinstance(value, dict) and all(_key(value, keys) for keys in (STARTS, ENDS, LABELS))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _key(value: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in value), None)


def _given(span: Any, field: str) -> list[Given]:
    """The spans that one entry names: one for each of its labels. Raises ValueError."""
    if isinstance(span, list) and len(span) >= 3:
        start, end, label, text = *span[:3], None
    elif isinstance(span, dict):
        start, end, label = (span.get(_key(span, keys) or keys[0]) for keys in (STARTS, ENDS, LABELS))
        text = span.get("text")
    else:
        raise ValueError(f"`{field}` has {str(span)[:40]!r}, which is no span: give start, end and label")
    if not _is_whole(start) or not _is_whole(end):
        raise ValueError(f"`{field}` has a span from {start!r} to {end!r}: give whole numbers")
    labels = label if isinstance(label, list) else [label]
    for name in labels:
        if _is_whole(name):
            raise ValueError(
                f"`{field}` has a span with the number {name} as label: export the labels' names (doccano: "
                "“JSONL (text label)”)"
            )
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"`{field}` has a span from {start} to {end} without a label")
    return [Given(start, end, name.strip(), text if isinstance(text, str) else None) for name in labels]


def _has_words(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get(WORDS), list) and is_spans(record.get(WORD_SPANS))


def _of_words(record: Mapping[str, Any]) -> GivenText:
    words, spans = record.get(WORDS), record.get(WORD_SPANS)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"`{WORDS}` is not a list of words")
    given = [one for span in spans or [] for one in _given(span, WORD_SPANS)]
    return GivenText(words, [Given(span.start, span.end + 1, span.label) for span in given])


def _results(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The annotations of a task of Label Studio."""
    found = record.get(RESULTS, record.get("completions"))
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _has_results(record: Mapping[str, Any]) -> bool:
    if not isinstance(record.get(TASK), dict):
        return False
    return any("labels" in value for each in _results(record) for value in _values(each))


def _values(annotation: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    results = annotation.get("result")
    values = [one.get("value") for one in results or [] if isinstance(one, dict)]
    return [value for value in values if isinstance(value, dict)]


def _of_task(record: Mapping[str, Any], text_column: str | None = None) -> GivenText:
    """Read a task of Label Studio: the first annotation, or the one that is marked as ground truth."""
    task = record.get(TASK)
    if not isinstance(task, dict):
        raise ValueError(f"`{TASK}` is not an object with the text")
    texts = [name for name, value in task.items() if isinstance(value, str)]
    text = task[texts[0] if len(texts) == 1 else text_field(task, text_column)]
    every = _results(record)
    found = [each for each in every if not each.get(CANCELLED)]
    found.sort(key=lambda each: not each.get("ground_truth"))
    spans: list[Given] = []
    for value in _values(found[0]) if found else []:
        other = next((name for name in ("hypertextlabels", "paragraphlabels") if name in value), None)
        if other:
            raise ValueError(f"has {other}, whose offsets do not count characters: export plain text")
        if "labels" in value:
            spans += _given(value, RESULTS)
    why = "" if found else "skipped by the annotator" if every else NOT_ANNOTATED
    return GivenText(text, spans, len(found), why)
