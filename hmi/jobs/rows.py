"""Training rows: JSONL or CSV to checked rows of one task. Every error names the row and what to change."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmi.core import Task
from hmi.errors import HmiError, InvalidData
from hmi.jobs.corpus import read_documents
from hmi.model.tasks import KINDS, Gold, checked_labels
from hmi.model.tokenizer import Text

MAX_ROW_CHARACTERS = 1_000_000
MIN_ROWS = 4
MAX_VALUE = 1e9
"""Of a regression's value, either way: beyond it the values' spread loses its digits."""


@dataclass(frozen=True)
class Row:
    """One example: its text (or pair, or words) and its right answer: a label, a value, one tag a word, or labels.
    The answer of an unlabelled one is "", and is not looked at."""

    text: Text
    label: Gold


def read_rows(path: Path, task: Task, field: str = "data") -> list[Row]:
    """Read and check all rows of `path`; raises InvalidData with the first bad rows' numbers."""
    rows = _checked(path, lambda raw: _row(raw, task), KINDS[task].example, field)
    if len(rows) < MIN_ROWS:
        raise InvalidData(f"{field} has {len(rows)} rows: give at least {MIN_ROWS}", field=field)
    if task == "regression":
        _refuse_mixed(rows, field)
    return rows


def read_texts(path: Path, task: Task, *, paired: bool, field: str = "unlabelled") -> list[Row]:
    """Rows of the same form whose answers, if they have any, are not looked at. Raises InvalidData."""
    tagging = task == "tagging"
    example = '{"tokens": ["…"]}' if tagging else '{"text": "…", "text_pair": "…"}' if paired else '{"text": "…"}'
    rows = _checked(path, lambda raw: Row(_input(raw, tagging=tagging, paired=paired), ""), example, field)
    if not rows:
        raise InvalidData(f"{field} has no rows: give JSONL rows such as {example}, or CSV with a header", field=field)
    return rows


def _checked(path: Path, made: Callable[[dict[str, Any]], Row], example: str, field: str) -> list[Row]:
    if path.stat().st_size == 0:
        raise InvalidData(f"{field} is empty: give JSONL rows such as {example}", field=field)
    rows: list[Row] = []
    problems: list[str] = []
    for number, raw in _records(path, field):
        try:
            rows.append(made(raw))
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        shown = "; ".join(problems[:5])
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InvalidData(
            f"{len(problems)} of {len(rows) + len(problems)} rows of {field} are not usable: {shown}{more}. "
            f"Each row needs the form {example}",
            field=field,
        )
    return rows


def labels_of(rows: list[Row], field: str = "data") -> tuple[str, ...]:
    """The sorted labels (or tags); raises InvalidData for one class only or too many."""
    return tuple(sorted(checked_labels((row.label for row in rows), field)))


def _records(path: Path, field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    lines = read_documents(path)
    first = next(lines, None)
    if first is None:
        raise InvalidData(f"{field} holds only blank lines", field=field)
    if first.startswith("{"):
        yield from _json_records(first, lines, field)
    else:
        text = "\n".join([first, *lines])
        for number, record in enumerate(csv.DictReader(io.StringIO(text)), 2):
            yield number, {k: v for k, v in record.items() if k is not None}


def _json_records(first: str, lines: Iterator[str], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        for number, line in enumerate(_chain(first, lines), 1):
            record = json.loads(line)
            if not isinstance(record, dict):
                raise InvalidData(f"row {number} of {field} is not a JSON object", field=field)
            yield number, record
    except HmiError:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidData(f"row {number} of {field} is not JSON ({error}): write one object a line", field=field) from (
            error
        )


def _chain(first: str, rest: Iterator[str]) -> Iterator[str]:
    yield first
    yield from rest


def _row(raw: dict[str, Any], task: Task) -> Row:
    if task == "tagging":
        return _tagging_row(raw)
    if task == "multilabel":
        return Row(_text(raw, "text"), _labels(raw))
    if task == "regression":
        return Row(_input(raw, tagging=False, paired=raw.get("text_pair") is not None), _value(raw))
    label = _label(raw.get("label"), "`label`")
    return Row(_input(raw, tagging=False, paired=task == "pair"), label)


def _label(value: Any, name: str) -> str:
    if value is None or value == "":
        raise ValueError(f"{name} is missing")
    if not isinstance(value, (str, int)) or isinstance(value, bool):
        raise ValueError(f"{name} is a {type(value).__name__}, not a string or an integer")
    return _writable(str(value), name)


def _writable(text: str, name: str) -> str:
    r"""The text; raises ValueError where half a surrogate pair (\\ud800 in JSON) makes it no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has half a surrogate pair at character {error.start + 1}") from error
    return text


def _labels(raw: dict[str, Any]) -> tuple[str, ...]:
    labels = raw.get("labels")
    if not isinstance(labels, list):
        what = "is missing" if labels is None else f"is a {type(labels).__name__}"
        raise ValueError(f"`labels` {what}: give a list, [] where none applies")
    return tuple(dict.fromkeys(_label(label, "one of `labels`") for label in labels))


def _value(raw: dict[str, Any]) -> float:
    value = raw.get("value")
    if value is None or value == "":
        raise ValueError("`value` is missing")
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # CSV has its numbers as text
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number) or abs(number) > MAX_VALUE:
        raise ValueError(f"`value` is {str(value)[:40]!r}, not a number between ±{MAX_VALUE:g}")
    return number


def _refuse_mixed(rows: list[Row], field: str) -> None:
    paired = [isinstance(row.text, tuple) for row in rows]
    if len(set(paired)) > 1:
        lone = paired.index(not paired[0]) + 1
        raise InvalidData(
            f"row {lone} of {field} {'lacks' if paired[0] else 'has'} a `text_pair`, unlike row 1: "
            "give it in every row or in none",
            field=field,
        )


def _input(raw: dict[str, Any], *, tagging: bool, paired: bool) -> Text:
    """What a row is about, without its answer."""
    if tagging:
        return _words(raw, "tokens")
    return (_text(raw, "text"), _text(raw, "text_pair")) if paired else _text(raw, "text")


def _tagging_row(raw: dict[str, Any]) -> Row:
    tokens, tags = _words(raw, "tokens"), _words(raw, "tags")
    if len(tokens) != len(tags):
        raise ValueError(f"{len(tokens)} tokens but {len(tags)} tags")
    return Row(tokens, tuple(tags))


def _words(raw: dict[str, Any], name: str) -> list[str]:
    words = raw.get(name)
    if not isinstance(words, list) or not words or not all(isinstance(v, str) and v.strip() for v in words):
        raise ValueError(f"`{name}` is not a list of non-empty strings")
    characters = sum(map(len, words))
    if characters > MAX_ROW_CHARACTERS:
        raise ValueError(f"`{name}` have {characters} characters, more than {MAX_ROW_CHARACTERS}")
    _writable("".join(words), f"`{name}`")
    return words


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{name}` is missing or empty")
    if len(value) > MAX_ROW_CHARACTERS:
        raise ValueError(f"`{name}` has {len(value)} characters, more than {MAX_ROW_CHARACTERS}")
    return _writable(value, f"`{name}`")
