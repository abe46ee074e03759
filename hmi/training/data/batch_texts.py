"""Texts of a file that a model is asked about, whatever else the file has."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hmi.errors import InvalidData
from hmi.training.data.meaning.columns import SYNONYMS, second_text
from hmi.training.data.records import TextTable
from hmi.training.data.tables import FIRST_RECORDS, file_lines, looks_like_csv, read_table
from hmi.training.data.text_files import TextFile, Upload
from hmi.training.data.tools.label_studio import data_of
from hmi.training.data.tools.span_forms import NoText, SpanForm, form_of

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
    source: Upload, field: str = "batch", text_columns: Sequence[str] = (), encoding: str | None = None
) -> Iterator[BatchText]:
    """Yield the texts of a file: rows in JSON or CSV with a text, tasks of Label Studio, or plain text,
    one text a line, of which blank lines are skipped.

    text_columns: the fields of the text, if they are named; several texts become one, as in a training.
    Raises InvalidData, which names the line, for what cannot be read, and for a file of rows in which no
    field is surely the text.
    """
    file = TextFile(source, field, encoding=encoding)
    if file.empty:
        raise InvalidData(f"{field} is empty: give texts", field=field)
    wanted = {name.strip().casefold() for name in (text_columns or _NAMES)}

    def fits(names: Sequence[str]) -> bool:
        if text_columns:
            return wanted <= {name.strip().casefold() for name in names}
        return any(name.strip().casefold() in wanted for name in names) or second_text(names) is not None

    head = list(file_lines(file, FIRST_RECORDS))
    is_table = bool(looks_like_csv(head, fits)) or bool(head and head[0].strip().casefold() in wanted)
    if not (is_table or text_columns or file.beginning().startswith(("{", "["))):
        lines = enumerate(file.lines(), 1)
        return (
            BatchText(line.strip(), number, place=f"line {number}") for number, line in lines if line.strip()
        )
    # What people answered is not asked for here, and must come out as it came in.
    return _of_table(read_table(file, fits, conll="no", answers=False), field, text_columns)


def _of_table(table: TextTable, field: str, text_columns: Sequence[str]) -> Iterator[BatchText]:
    head = list(itertools.islice(table.records, FIRST_RECORDS))
    values = [record.values for record in head if not record.problem]
    rows = [_data(each, text_columns) for each in values]
    form = None if text_columns else form_of(values)
    named = [_text_name(rows, (name,)) for name in text_columns]
    names: Sequence[str] = [name for name in named if name is not None]
    if not text_columns:
        usual = _text_name(rows, _NAMES)
        names = second_text(table.columns) or ([] if usual is None else [usual])
    for record in itertools.chain(head, table.records):
        wrong = record.problem
        if not wrong and (None in named or not (names or form)):
            fields = ", ".join(f"`{name}`" for name in _data(record.values, text_columns))
            wrong = f"has no text in its fields ({fields}): give the name of the text's (--text-column)"
        try:
            if wrong:
                raise ValueError(wrong)
            row = _data(record.values, text_columns)
            text = "\n".join(_texts(row, names)) if text_columns else _text(record.values, names, form)
        except ValueError as error:
            raise InvalidData(f"{record.place} of {field} {error}", field=field, line=record.line) from error
        task = record.values if row is not record.values else {}
        yield BatchText(text, record.line, row, task, record.place)


def _data(values: Mapping[str, Any], named: Sequence[str] = ()) -> Mapping[str, Any]:
    """The fields of a row; those of its `data` if it is a task of Label Studio."""
    task = data_of(values, named)
    return values if task is None else task


def _text_name(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> str | None:
    """The field of these rows that has the first of these names, or the only one with texts, if the names are
    the usual ones; None if that does not tell. It is one of the file, since a row may lack its text and have
    others, such as an id."""
    found = [item for row in rows for item in row.items()]
    held = {name for name, value in found if isinstance(value, str)}
    folded = {name.strip().casefold(): name for name, value in found if value is None or name in held}
    known = [folded[plain] for name in names if (plain := name.strip().casefold()) in folded]
    return next(iter(known or (held if len(held) == 1 and names is _NAMES else ())), None)


def _texts(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """The texts in these fields of a row that are not blank."""
    found = [row.get(name) for name in names]
    return [text for text in found if isinstance(text, str) and text.strip()]


def _text(record: Mapping[str, Any], names: Sequence[str], form: SpanForm | None) -> str | tuple[str, str]:
    """The text of a record, or its pair of texts; a pair of which one is missing is no text. Where there are
    spans, their form tells the text. Raises ValueError."""
    row = _data(record)
    whole = _texts(row, names)
    if len(names) == 2:
        return (whole[0], whole[1]) if len(whole) == 2 else ""
    if form is None or (names and row.get(names[0]) is None):
        return whole[0] if whole else ""
    try:
        text = form.text(record)
    except NoText:
        if any(isinstance(value, str) and value.strip() for value in row.values()):
            raise
        return ""
    joined = " ".join(text) if isinstance(text, list) else text
    return joined if joined.strip() else ""
