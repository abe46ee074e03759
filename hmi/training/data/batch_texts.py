"""Texts of a file that a model is asked about, whatever else the file has."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.errors import InvalidData
from hmi.training.data.columns import SYNONYMS, second_text
from hmi.training.data.label_studio import TASK
from hmi.training.data.records import Fits, TableRecord, TextTable
from hmi.training.data.span_forms import Form, form_of, text_field, text_form
from hmi.training.data.tables import FIRST_RECORDS, file_lines, looks_like_csv, read_table
from hmi.training.data.text_files import TextFile, Upload

_NAMES = frozenset(("text", *SYNONYMS["text"]))


@dataclass(frozen=True)
class BatchText:
    """A text of a file, or a pair of texts, with the record that it comes from."""

    text: str | tuple[str, str]
    line: int
    record: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a row, or of a task of Label Studio."""
    place: str = ""
    """The row's place in its file, in words."""


def read_batch(source: Upload, field: str = "batch", text_columns: Sequence[str] = ()) -> Iterator[BatchText]:
    """Yield the texts of a file: rows in JSON or CSV with a text, tasks of Label Studio, or plain text,
    one text a line. Blank lines are skipped.

    text_columns: the fields of the text, if they are named; several texts become one, as in a training.
    Raises InvalidData, which names the line of a row without a text.
    """
    file = TextFile(source, field)
    if file.empty:
        raise InvalidData(f"{field} is empty: give texts", field=field)
    plain = not file.beginning().startswith(("{", "["))
    fits: Fits = set(text_columns).issubset if text_columns else _has_text
    if plain and not text_columns and not _is_table(list(file_lines(file, FIRST_RECORDS))):
        lines = enumerate(file.lines(), 1)
        return (BatchText(line.strip(), number) for number, line in lines if line.strip())
    return _of_table(read_table(file, fits, conll="no"), field, text_columns)


def _has_text(names: Sequence[str]) -> bool:
    return any(name.strip().casefold() in _NAMES for name in names) or second_text(names) is not None


def _is_table(lines: Sequence[str]) -> bool:
    return bool(looks_like_csv(lines, _has_text)) or bool(lines and lines[0].strip().casefold() in _NAMES)


def _of_table(table: TextTable, field: str, text_columns: Sequence[str]) -> Iterator[BatchText]:
    head = list(itertools.islice(table.records, FIRST_RECORDS))
    values = [record.values for record in head]
    pair = None if text_columns else second_text(table.columns)
    named = text_columns[0] if text_columns else None
    form = text_form(form_of(values, named), values, named)
    for record in itertools.chain(head, table.records):
        try:
            if record.problem:
                raise ValueError(record.problem)
            if pair:
                yield _pair(record, pair)
            else:
                yield _text(record, form, text_columns)
        except ValueError as error:
            raise InvalidData(f"{record.place} of {field} {error}", field=field, line=record.line) from error


def _pair(record: TableRecord, names: tuple[str, str]) -> BatchText:
    texts = [record.values.get(name) for name in names]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise ValueError(f"lacks a text: give `{names[0]}` and `{names[1]}`")
    return BatchText((str(texts[0]), str(texts[1])), record.line, record.values, record.place)


def _text(record: TableRecord, form: Form | None, text_columns: Sequence[str]) -> BatchText:
    task = record.values.get(TASK)
    fields = task if isinstance(task, dict) else record.values
    if len(text_columns) > 1:
        texts = [str(fields[text_field(fields, name)]) for name in text_columns]
        text: str | list[str] = "\n".join(each for each in texts if each.strip())
    elif form is None:
        text = str(fields[text_field(fields, *text_columns)])
    else:
        text = form.read(record.values).text
    whole = " ".join(text) if isinstance(text, list) else text
    if not whole.strip():
        raise ValueError("has an empty text: leave the row out")
    return BatchText(whole, record.line, fields, record.place)
