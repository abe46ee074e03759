"""Texts of a file that a model is asked about, whatever else the file has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.errors import InvalidData
from hmi.training.data.columns import SYNONYMS, second_text
from hmi.training.data.records import TableRecord, TextTable
from hmi.training.data.span_forms import TASK, WORDS, form_of
from hmi.training.data.tables import FIRST_RECORDS, file_lines, looks_like_csv, read_table
from hmi.training.data.text_files import TextFile, Upload

_NAMES = ("text", *SYNONYMS["text"])


@dataclass(frozen=True)
class BatchText:
    """A text of a file, or a pair of texts, with the record that it comes from; "" of a row without one."""

    text: str | tuple[str, str]
    line: int
    record: Mapping[str, Any] = field(default_factory=dict)
    """The fields of a row, or of a task's `data`."""
    task: Mapping[str, Any] = field(default_factory=dict)
    """The whole task of Label Studio, if the row is one."""
    place: str = ""
    """Where the row is, for messages."""


def read_batch(
    source: Upload, field: str = "batch", text_column: str | None = None, encoding: str | None = None
) -> Iterator[BatchText]:
    """Yield the texts of a file: rows in JSON or CSV with a text, tasks of Label Studio, or plain text,
    one text a line, of which blank lines are skipped.

    text_column: the field of the text, if its name does not tell. Raises InvalidData, which names the line,
    for what cannot be read, and for a file of rows in which no field is surely the text.
    """
    file = TextFile(source, field, encoding=encoding)
    if file.empty:
        raise InvalidData(f"{field} is empty: give texts", field=field)
    wanted = {name.strip().casefold() for name in ((text_column,) if text_column else _NAMES)}

    def fits(names: Sequence[str]) -> bool:
        return any(name.strip().casefold() in wanted for name in names) or second_text(names) is not None

    head = list(file_lines(file, FIRST_RECORDS))
    is_table = bool(looks_like_csv(head, fits)) or bool(head and head[0].strip().casefold() in wanted)
    if not (is_table or text_column or file.beginning().startswith(("{", "["))):
        lines = enumerate(file.lines(), 1)
        return (
            BatchText(line.strip(), number, place=f"line {number}") for number, line in lines if line.strip()
        )
    return _of_table(read_table(file, fits, conll="no"), field, text_column)


def _of_table(table: TextTable, field: str, text_column: str | None) -> Iterator[BatchText]:
    head = list(itertools.islice(table.records, FIRST_RECORDS))
    values = [record.values for record in head if not record.problem]
    pair = None if text_column else second_text(table.columns)
    form = form_of(values)
    name = WORDS if form is not None and form.of_words else _text_name(map(_data, values), text_column)
    for record in itertools.chain(head, table.records):
        wrong = record.problem
        if not wrong and pair is None and name is None:
            shown = ", ".join(f"`{each}`" for each in _data(record.values))
            wrong = (
                f"has no text in its fields ({shown}): give the name of the one that holds it (--text-column)"
            )
        if wrong:
            raise InvalidData(f"{record.place} of {field} {wrong}", field=field, line=record.line)
        yield _read(record, pair or (name or "",))


def _data(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The fields of a row; those of its `data` if it is a task of Label Studio."""
    task = values.get(TASK)
    return task if isinstance(task, dict) else values


def _text_name(rows: Iterable[Mapping[str, Any]], text_column: str | None) -> str | None:
    """The field that holds the texts of these rows: the one that is named so, one that usually does, or the
    only one with texts; None if that does not tell. It is one of the file, since a row may lack its text and
    have others, such as an id."""
    found = [item for row in rows for item in row.items()]
    held = {name for name, value in found if isinstance(value, str)}
    folded = {name.strip().casefold(): name for name, value in found if value is None or name in held}
    wanted = [name.strip().casefold() for name in ((text_column,) if text_column else _NAMES)]
    known = [folded[name] for name in wanted if name in folded]
    return next(iter(known or (held if len(held) == 1 and text_column is None else ())), None)


def _read(record: TableRecord, names: Sequence[str]) -> BatchText:
    """The text of a record, or its pair of texts; a pair of which one is missing is no text."""
    row = _data(record.values)
    texts = [" ".join(map(str, t)) if isinstance(t := row.get(name), list) else t for name in names]
    whole = [text for text in texts if isinstance(text, str) and text.strip()]
    text = "" if len(whole) < len(names) else whole[0] if len(names) == 1 else (whole[0], whole[1])
    task = record.values if row is not record.values else {}
    return BatchText(text, record.line, row, task, record.place)
