"""Guesses how to read a table whose columns have unknown names, or none: which column is the text, and which
the label."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.training.data.meaning.columns import NEEDED
from hmi.training.data.reading import Reading
from hmi.training.data.records import TextTable
from hmi.training.data.tables import looks_like_csv, read_table
from hmi.training.data.text_files import TextFile, Upload

LEAST_ROWS = 4
GUESSED_RECORDS = 5_000
"""A guess reads at most this many records."""
SORTED_ROWS, OTHER = 20, "\0"
"""With at least this many rows, one label alone is enough to see that they are rows. `OTHER` stands for
another label."""
TEXT_CHARACTERS = 12
"""A column of texts has at least this many characters a row, on average, and a space in most rows."""
LABEL_CHARACTERS = 40
"""A label has at most this many characters."""
FLAGS = frozenset({"0", "1", "0.0", "1.0", "true", "false"})


@dataclass(frozen=True)
class Guess:
    """How a file of rows may be meant."""

    task: Task
    reading: Reading

    def as_pair(self) -> Guess:
        """The same with two texts as a pair; itself if there are not two."""
        texts = self.reading.text_column or ()
        if self.task != "classification" or len(texts) != 2:
            return self
        first, second = texts
        named = {"text_column": (first,), "text_pair_column": second}
        return Guess("pair", self.reading.model_copy(update=named))


def guess_reading(source: Upload, first: int) -> Guess | None:
    """Guess from the beginning of a file, about `first` bytes, or return None. Raises as `read_table`."""
    for header in (False, True):
        file = TextFile(source, "the file", first=first)
        table = read_table(file, lambda _: False, conll="no", header=header)
        if not header and not table.form.startswith("CSV"):
            continue
        columns, records = _columns(table)
        if records >= LEAST_ROWS and (header or _first_is_a_row(columns)):
            return _guess(columns, header=header)
    return None


def lacks_header(lines: Sequence[str]) -> bool:
    """Whether these lines are CSV without a header: rows of a text and a label that recurs."""
    lines = [line for line in lines if line.strip()]
    if len(lines) < LEAST_ROWS or looks_like_csv(lines, lambda _: False):
        return False
    file = TextFile("\n".join(lines).encode(errors="replace"), "the file", encoding="utf-8")
    try:
        table = read_table(file, lambda _: False, conll="no", header=False)
        columns, records = _columns(table)
    except InvalidData:  # lone quotes, as in running text
        return False
    later = [str(value) for values in list(columns.values())[1:] for value in values]
    # In running text a space follows a comma; between cells hardly ever.
    if (
        not table.form.startswith("CSV")
        or records + sum(str(v).count("\n") for vs in columns.values() for v in vs) < len(lines)
        or not later
        or 2 * sum(cell.startswith(" ") for cell in later) > len(later)
    ):
        return False
    if records >= SORTED_ROWS:  # rows that are sorted by their labels begin with one alone
        columns = {n: [*values, OTHER] if _is_one_label(values) else values for n, values in columns.items()}
    return _first_is_a_row(columns) and _guess(columns, header=False) is not None


def _columns(table: TextTable) -> tuple[dict[str, list[Any]], int]:
    """The values of each column in a table's first records, and how many these are."""
    records = [r for r in itertools.islice(table.records, GUESSED_RECORDS) if not r.problem]
    return {name: [record.values.get(name) for record in records] for name in table.columns}, len(records)


def _first_is_a_row(columns: dict[str, list[Any]]) -> bool:
    """Whether the first row of a table has a label that recurs, so that it is no header."""
    labels = [values for values in columns.values() if _are_labels(values) or _are_flags(values)]
    return any(values[0] in values[1:] for values in labels)


def _is_one_label(values: Sequence[Any]) -> bool:
    return len(set(values)) == 1 and 0 < len(str(values[0]).strip()) <= LABEL_CHARACTERS


def _guess(columns: dict[str, list[Any]], *, header: bool) -> Guess | None:
    flags = [name for name, values in columns.items() if _are_flags(values)]
    texts = [name for name, values in columns.items() if _are_texts(values)]
    labels = [name for name, values in columns.items() if _are_labels(values) and name not in texts]
    if not texts or (header and len(texts) > 1 and {"text", "label"} & set(columns)):
        return None
    named: dict[str, Any] = {} if texts == ["text"] else {"text_column": tuple(texts)}
    if len(flags) > 1 and set(labels) <= set(flags):
        return Guess("multilabel", Reading(**named, labels_columns=tuple(flags), header=header))
    if len(labels) != 1 or set(NEEDED["classification"]) <= set(columns):
        return None
    named |= {} if labels == ["label"] else {"label_column": labels[0]}
    return Guess("classification", Reading(**named, header=header))


def _are_texts(values: Sequence[Any]) -> bool:
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    if len(texts) < len(values) * 0.8:
        return False
    spaced = sum(" " in text.strip() for text in texts)
    return spaced > len(texts) / 2 and sum(map(len, texts)) >= TEXT_CHARACTERS * len(texts)


def _are_labels(values: Sequence[Any]) -> bool:
    """Whether the values are few, short, and recur."""
    if not all(
        isinstance(value, str | int) and 0 < len(str(value).strip()) <= LABEL_CHARACTERS for value in values
    ):
        return False
    different = len(set(map(str, values)))
    return 2 <= different <= max(2, len(values) // 2)


def _are_flags(values: Sequence[Any]) -> bool:
    return all(str(value).strip().casefold() in FLAGS for value in values)
