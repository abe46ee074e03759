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

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hmi.training.data.meaning.columns import listed
from hmi.training.data.meaning.text_fields import NoText as NoText
from hmi.training.data.meaning.text_fields import text_fields, text_or_why, text_reader
from hmi.training.data.tools.label_studio import (
    ANNOTATION_ID,
    ANNOTATIONS,
    NOT_ANNOTATED,
    NOT_CHARACTERS,
    TASK,
    annotations_of,
    counting,
    data_of,
    decoded,
    given_of,
    no_answer_reason,
    results_of,
)

STARTS = ("start", "start_offset", "start_char", "begin")
ENDS = ("end", "end_offset", "end_char")
LABELS = ("label", "labels", "type", "entity_group", "entity_type", "entity", "category")
"""The keys of a span's fields, the likeliest first."""
FIELDS = ("spans", "entities", "ents", "label", "labels", "annotations")
"""The fields that hold spans in most files. They are looked at before others."""
WORDS, WORD_SPANS = "tokenized_text", "ner"
Fields = Mapping[str, Any]


@dataclass(frozen=True)
class Given:
    """A span as its file gives it: offsets in the file's units, and the span's text if it has one."""

    start: int
    end: int
    label: str
    text: str | None = None


@dataclass(frozen=True)
class GivenText:
    """A text, or its words, with spans."""

    text: str | list[str]
    spans: list[Given]
    several: int = 1
    """The number of annotations, of which one is read."""
    truth: bool = False
    """Whether the one that is read is marked as the ground truth."""
    left_out: str = ""
    """Why the text is not a row."""


@dataclass(frozen=True)
class SpanForm:
    """How records hold spans."""

    name: str
    """The form in words."""
    fields: tuple[str, ...]
    """The columns of the spans."""
    read: Callable[[Fields], GivenText]
    """Reads a record. Raises ValueError."""
    text: Callable[[Fields], str | list[str]]
    """Reads the text of a record alone, or its words, whatever is wrong with its spans. Raises ValueError."""
    code_points: bool = False
    """Whether offsets surely count code points, since the tool is written in Python. Label Studio and doccano
    have counted these or UTF-16 units, in one version or another."""
    of_words: bool = False
    """Whether offsets count words."""
    controls: tuple[str, ...] = ()
    """The controls of Label Studio whose spans are read together, if there are several."""
    unread: tuple[str, ...] = ()
    """Other columns that hold spans."""


def form_of(
    records: Iterable[Fields], text_column: str | None = None, label_column: str | None = None
) -> SpanForm | None:
    """The form of a file's first records; None if they hold no spans. text_column, label_column: the field of
    the text, and the field or control of the spans, if the user names them."""
    found = [record for record in records if record]
    named = text_column, label_column
    if any(map(_has_words, found)) and label_column in (None, WORD_SPANS):
        return SpanForm(
            "words with spans, as GLiNER reads them", (WORD_SPANS,), _of_words, _words, of_words=True
        )
    controls = tuple(dict.fromkeys(control for record in found for control in _controls(record)))
    if controls and label_column in (None, *controls):
        return _tasks(found, controls, *named)
    # Where a document has entities, they count, not its groups of other spans.
    held: dict[str, Any] = {}
    for as_spans in (decoded, _group):
        for name in dict.fromkeys((*FIELDS, *(name for record in found for name in record))):
            first = next((spans for r in found if is_spans(spans := as_spans(r.get(name)))), None)
            if first is not None:
                held.setdefault(name, first[0])
    if label_column is not None:
        held = {name: first for name, first in held.items() if name == label_column}
    return _form_of_fields(held, found, *named) if held else None


def text_form(
    form: SpanForm | None, records: Sequence[Fields], text_column: str | None = None
) -> SpanForm | None:
    """The form of the texts alone, of a file whose spans have `form`; None if its records have no texts."""
    if form is not None:
        return replace(form, read=partial(_without_spans, form.text))
    datas = [data for record in records if (data := data_of(record)) is not None]
    if datas:
        text: Callable[[Fields], str] = partial(_text_of_task, text=text_reader(datas, text_column))
        return SpanForm("texts in Label Studio's JSON", (ANNOTATIONS,), partial(_without_spans, text), text)
    if not any(text_fields(record, text_column) for record in records):
        return None
    text = text_reader(records, text_column)
    return SpanForm("texts", (), partial(_without_spans, text), text)


def _without_spans(text: Callable[[Fields], str | list[str]], record: Fields) -> GivenText:
    return GivenText(text(record), [])


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


def _holder(rows: Iterable[tuple[Fields, Iterable[Any]]]) -> str | None:
    """The field that holds the spans' own texts at their offsets in most rows; None if spans have none, or if
    several fields do. rows: each with its spans."""
    counts: Counter[str] = Counter()
    for fields, spans in rows:
        own = [each for each in spans if isinstance(each, dict) and isinstance(each.get("text"), str)]
        counts.update(
            name
            for name, value in fields.items()
            if own and isinstance(value, str) and all(_is_at(value, each) for each in own)
        )
    (name, most), (_, next_) = (*counts.most_common(2), ("", 0), ("", 0))[:2]
    return name if most > next_ else None


def _is_at(text: str, span: Fields) -> bool:
    """Whether a span's own text is at its offsets, in code points or UTF-16 units."""
    start, end = (span.get(_key(span, keys) or keys[0]) for keys in (STARTS, ENDS))
    if not isinstance(start, int) or not isinstance(end, int) or not 0 <= start <= end:
        return False
    units = text.encode("utf-16-le", "surrogatepass")[2 * start : 2 * end].decode("utf-16-le", "replace")
    return str(span["text"]).split() in (text[start:end].split(), units.split())


def _form_of_fields(
    held: Mapping[str, Any], records: Sequence[Fields], text_column: str | None, label_column: str | None
) -> SpanForm:
    """The form of spans in fields of these records, each with one of its spans. Of several fields the first
    is read, but Label Studio's controls are read together."""
    field, first = next(iter(held.items()))
    least = [name for name, span in held.items() if isinstance(span, dict) and _are_labels(span)]
    fields = tuple(least) if field in least else (field,)
    grouped = any(isinstance(record.get(field), dict) for record in records)
    likely = _holder((record, _entries(record, fields)) for record in records)
    together = field in least and label_column is None
    text = text_reader(records, text_column, likely)

    def read(record: Fields) -> GivenText:
        later = [name for name in record if together and name not in fields and _is_control(record[name])]
        names = (*fields, *later)
        spans = [
            one for name in names for span in _listed(record, name) for one in _spans_of_entry(span, name)
        ]
        why = "" if spans or record.get(ANNOTATION_ID, 0) not in (None, "") else NOT_ANNOTATED
        return GivenText(text_or_why(text, record, why), spans, left_out=why)

    unread = tuple(name for name in held if name not in fields)
    found = SpanForm(f"spans in {listed(fields)}", fields, read, text, unread=unread)
    if field in least:
        controls = fields if len(fields) > 1 else ()
        return replace(found, name=f"{found.name}, as Label Studio's JSON-MIN has them", controls=controls)
    if isinstance(first, list):
        # doccano writes intents with their slots so, too, and counts UTF-16 units in both.
        doccano = any("Comments" in record or isinstance(record.get("cats"), list) for record in records)
        spacy = field == "entities" and not doccano
        whose = "spaCy" if spacy else "doccano"
        return replace(found, name=f"{found.name}, as {whose} writes them", code_points=spacy)
    if "start_offset" in first:
        return replace(found, name=f"{found.name}, as doccano writes them")
    if field in ("spans", "ents"):
        whose = "Prodigy" if field == "spans" and not grouped else "spaCy"
        return replace(found, name=f"{found.name}, as {whose} writes them", code_points=True)
    return found


def _are_labels(span: Fields) -> bool:
    return isinstance(span.get("labels"), list) and "start_offset" not in span


def _is_control(value: Any) -> bool:
    """Whether a column of a later row is a control of Label Studio with spans."""
    spans = decoded(value)
    return is_spans(spans) and isinstance(spans[0], dict) and _are_labels(spans[0])


def _listed(record: Fields, field: str) -> list[Any]:
    """The entries of a field of spans. Raises ValueError."""
    value = _group(decoded(record.get(field)))
    if value and not isinstance(value, list):
        raise ValueError(f"`{field}` is not a list of spans")
    return value or []


def _entries(record: Fields, fields: Sequence[str]) -> list[Any]:
    """The entries of fields of spans, of those that are lists."""
    values = [_group(decoded(record.get(field))) for field in fields]
    return [each for value in values if isinstance(value, list) for each in value]


def _is_span(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) >= 3 and _is_whole(value[0]) and _is_whole(value[1]) and isinstance(value[2], str)
    return isinstance(value, dict) and all(_key(value, keys) for keys in (STARTS, ENDS, LABELS))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _key(value: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((name for name in names if name in value), None)


def _spans_of_entry(span: Any, field: str) -> list[Given]:
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


def _words(record: Fields) -> list[str]:
    words = record.get(WORDS)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"`{WORDS}` is not a list of words")
    return words


def _of_words(record: Fields) -> GivenText:
    words = _words(record)
    given = [one for span in record.get(WORD_SPANS) or [] for one in _spans_of_entry(span, WORD_SPANS)]
    return GivenText(words, [Given(span.start, span.end + 1, span.label) for span in given])


def _controls(record: Fields) -> list[str]:
    """The controls of the spans of a task of Label Studio."""
    if data_of(record) is None:
        return []
    results = [each for one in annotations_of(record) or () for each in results_of(one)]
    return [control for control, value in results if "labels" in value]


def _tasks(
    records: Sequence[Fields], controls: tuple[str, ...], text_column: str | None, label_column: str | None
) -> SpanForm:
    """The form of Label Studio's tasks. The spans of all controls are read, unless one is named."""
    read = controls if label_column is None else (label_column,)
    tasks = [(record, data) for record in records if (data := data_of(record)) is not None]
    likely = _holder(
        (data, [value for _, value in results_of(one)]) for task, data in tasks for one in given_of(task)[:1]
    )
    text = text_reader([data for _, data in tasks], text_column, likely)
    return SpanForm(
        "spans in Label Studio's JSON",
        (ANNOTATIONS,),
        partial(_of_task, text=text, only=label_column),
        partial(_text_of_task, text=text),
        controls=read if len(read) > 1 else (),
    )


def _text_of_task(record: Fields, text: Callable[[Fields], str]) -> str:
    task = data_of(record)
    if task is None:
        raise ValueError(f"`{TASK}` is not an object with the text")
    return text_or_why(text, task, no_answer_reason(record))


def _of_task(record: Fields, text: Callable[[Fields], str], only: str | None) -> GivenText:
    """Read a task of Label Studio: the first annotation, or the one that is marked as ground truth.

    text: reads the text. only: the control whose spans are read, from the first annotation that has it, since
    annotators may each use another one; None: those of all.
    """
    whole = _text_of_task(record, text)
    found = given_of(record)
    may_be = counting(found)
    wanted = (
        one for one in may_be if only and any(only == name and "labels" in v for name, v in results_of(one))
    )
    one = next(wanted, may_be[0] if may_be else {})
    spans: list[Given] = []
    for control, value in results_of(one):
        other = next((name for name in NOT_CHARACTERS if name in value), None)
        if other:
            raise ValueError(f"has {other}, whose offsets do not count characters: export plain text")
        if "labels" in value and only in (None, control):
            spans += _spans_of_entry(value, ANNOTATIONS)
    return GivenText(whole, spans, len(found), bool(one.get("ground_truth")), no_answer_reason(record))
