"""Training rows: JSONL or CSV to checked rows of one task. Every error names the row and what to change."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hmi.core import Task
from hmi.errors import HmiError, InvalidData
from hmi.jobs.corpus import read_documents
from hmi.model.tokenizer import Text

MAX_LABELS = 1_000
MAX_ROW_CHARACTERS = 1_000_000
MIN_ROWS = 4


@dataclass(frozen=True)
class Row:
    """One example: its text (or pair, or words) and its label, or one tag a word."""

    text: Text
    label: str | tuple[str, ...]


def read_rows(path: Path, task: Task, field: str = "data") -> list[Row]:
    """Read and check all rows of `path`; raises InvalidData with the first bad rows' numbers."""
    if path.stat().st_size == 0:
        raise InvalidData(f"{field} is empty: give JSONL rows such as {_EXAMPLES[task]}", field=field)
    rows: list[Row] = []
    problems: list[str] = []
    for number, raw in _records(path, field):
        try:
            rows.append(_row(raw, task))
        except ValueError as error:
            problems.append(f"row {number}: {error}")
    if problems:
        shown = "; ".join(problems[:5])
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise InvalidData(
            f"{len(problems)} of {len(rows) + len(problems)} rows of {field} are not usable: {shown}{more}. "
            f"Each row needs the form {_EXAMPLES[task]}",
            field=field,
        )
    if len(rows) < MIN_ROWS:
        raise InvalidData(f"{field} has {len(rows)} rows: give at least {MIN_ROWS}", field=field)
    return rows


def labels_of(rows: list[Row], field: str = "data") -> tuple[str, ...]:
    """The sorted labels (or tags); raises InvalidData for one class only or more than MAX_LABELS."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts.update([row.label] if isinstance(row.label, str) else row.label)
    if len(counts) < 2:
        raise InvalidData(
            f"every row of {field} has the same label {next(iter(counts))!r}: a model needs at least two classes",
            field=field,
        )
    if len(counts) > MAX_LABELS:
        raise InvalidData(
            f"{field} has {len(counts)} different labels, more than {MAX_LABELS}: "
            "check that `label` holds a class and not an id or a free text",
            field=field,
        )
    return tuple(sorted(counts))


_EXAMPLES: dict[Task, str] = {
    "classification": '{"text": "…", "label": "…"}',
    "pair": '{"text": "…", "text_pair": "…", "label": "…"}',
    "tagging": '{"tokens": ["…"], "tags": ["O"]}',
}


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
    label = raw.get("label")
    if label is None or label == "":
        raise ValueError("`label` is missing")
    if not isinstance(label, (str, int)) or isinstance(label, bool):
        raise ValueError(f"`label` is a {type(label).__name__}, not a string or an integer")
    text = _text(raw, "text")
    return Row((text, _text(raw, "text_pair")) if task == "pair" else text, str(label))


def _tagging_row(raw: dict[str, Any]) -> Row:
    tokens, tags = raw.get("tokens"), raw.get("tags")
    for name, value in (("tokens", tokens), ("tags", tags)):
        if not isinstance(value, list) or not value or not all(isinstance(v, str) and v.strip() for v in value):
            raise ValueError(f"`{name}` is not a list of non-empty strings")
    assert isinstance(tokens, list)
    assert isinstance(tags, list)
    if len(tokens) != len(tags):
        raise ValueError(f"{len(tokens)} tokens but {len(tags)} tags")
    characters = sum(map(len, tokens))
    if characters > MAX_ROW_CHARACTERS:
        raise ValueError(f"`tokens` have {characters} characters, more than {MAX_ROW_CHARACTERS}")
    return Row(tokens, tuple(tags))


def _text(raw: dict[str, Any], name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"`{name}` is missing or empty")
    if len(value) > MAX_ROW_CHARACTERS:
        raise ValueError(f"`{name}` has {len(value)} characters, more than {MAX_ROW_CHARACTERS}")
    return value
