"""Applies a `Reading` to a table: columns under the names of a row's fields, names for integer labels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hmi.core import Task
from hmi.training.data.meaning.columns import NEEDED, likeliest, listed, read_columns
from hmi.training.data.reading import Reading
from hmi.training.data.records import TableRecord, TextTable

ANSWERS: Mapping[str, str] = {
    "multilabel": "labels",
    "regression": "value",
    "tagging": "tags",
    "generation": "completion",
}
"""The field that holds a task's answer; of other tasks `label`."""
TEXTS = ("text", "prompt")
"""The fields that may be made of several columns."""
TRUE, FALSE = frozenset({"1", "1.0", "true"}), frozenset({"0", "0.0", "false", ""})


@dataclass(frozen=True)
class Naming:
    """Which columns of a table a `Reading` names."""

    columns: tuple[str, ...]
    """The columns once the named ones have the names of their fields. Several texts become one column. A
    column that has such a name and was not named is dropped."""
    named: Mapping[str, str]
    """The named columns with their fields."""
    reading: Reading
    problem: str = ""
    """Why the table does not have the columns that are named, or ""."""

    @classmethod
    def of(cls, columns: Sequence[str], reading: Reading, task: Task) -> Naming:
        named, problem = _columns_to_fields(columns, reading, task)
        if not named:
            return cls(tuple(columns), {}, reading, problem)
        fields = set(named.values())
        others = [name for name in columns if name not in named and name not in fields]
        return cls(tuple(dict.fromkeys([*named.values(), *others])), named, reading, problem)

    def applied(self, table: TextTable) -> TextTable:
        """The table with `columns`; its form tells what they were."""
        if not self.named:
            return table
        fields = {field: [n for n in self.named if self.named[n] == field] for field in self.named.values()}
        told = [f"{field} from {listed(names)}" for field, names in fields.items() if names != [field]]
        records = map(self._record, table.records)
        return replace(table, form=", ".join([table.form, *told]), columns=self.columns, records=records)

    def _record(self, record: TableRecord) -> TableRecord:
        try:
            return record if record.problem else replace(record, values=self._values(record.values))
        except ValueError as error:
            return replace(record, values={}, problem=str(error))

    def _values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """A record's values under the new names. Raises ValueError if a label's column holds neither 1 nor
        0."""
        row = {name: values[name] for name in self.columns if name in values}
        for name, field in self.named.items():
            if field == "labels" and self.reading.labels_columns:
                row["labels"] = [c for c, f in self.named.items() if f == "labels" and _is_on(values, c)]
            elif field not in TEXTS:
                row[field] = values.get(name)
        for field in TEXTS:
            texts = [values.get(name) for name, named in self.named.items() if named == field]
            if len(texts) == 1:
                row[field] = texts[0]
            elif texts:
                row[field] = "\n".join(text for text in texts if isinstance(text, str) and text.strip())
        return row


def task_as_named(columns: Sequence[str], reading: Reading) -> Task | None:
    """The task whose rows have these columns under the names that the reading gives them; None if there is
    none."""
    tasks: Iterable[Task] = NEEDED
    if reading.labels_columns:
        tasks = ("multilabel",)
    elif reading.label_column:  # a single label, where it might be several, or a value
        tasks = ("tagging", "pair", "classification", "multilabel", "regression")
    fitting = []
    for task in tasks:
        naming = Naming.of(columns, reading, task)
        if not naming.problem and not read_columns(naming.columns, task, asked=False).problem:
            fitting.append(task)
    named = reading.label_column or reading.labels_columns
    return next(iter(fitting), None) if named else likeliest(fitting, columns)


def _columns_to_fields(columns: Sequence[str], reading: Reading, task: Task) -> tuple[dict[str, str], str]:
    """The columns that a reading names with their fields, and why it does not fit, or ""."""
    named: dict[str, str] = {}
    text = "prompt" if task == "generation" else "text"
    wanted = [
        *(("text_column", name, text) for name in reading.text_column or ()),
        ("text_pair_column", reading.text_pair_column, "text_pair"),
        ("label_column", reading.label_column, ANSWERS.get(task, "label")),
        *(("labels_columns", name, "labels") for name in reading.labels_columns or ()),
    ]
    for option, name, field in wanted:
        if name is None:
            continue
        found = _column(columns, name)
        if found is None:
            have = listed(columns) or "none"
            return {}, f"there is no column `{name}` ({option}): the columns are {have}"
        if found in named:
            return {}, f"the column `{found}` is named twice, as {named[found]} and as {field}: name it once"
        named[found] = field
    if reading.labels_columns and task != "multilabel":
        return (
            {},
            f"labels_columns are of the task multilabel, not {task}: give --task multilabel, or label_column",
        )
    if reading.labels_columns and reading.label_column:
        return {}, "both label_column and labels_columns are given: give one of them"
    return named, ""


def named_labels(value: Any, names: Sequence[str]) -> Any:
    """A label, or a list of labels or tags, with names for integers. Raises ValueError for one without a
    name."""
    if isinstance(value, list):
        return [named_labels(one, names) for one in value]
    known = dict(_numbered(names))
    if isinstance(value, bool) or value is None or value == "":
        return value
    if isinstance(value, str) and value.strip() in known.values():
        return value
    try:
        number = int(value) if not isinstance(value, float) or value.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        number = None
    if number in known:
        return known[number]
    if number == -1:
        raise ValueError("the label is -1, by which datasets mean that there is none: leave such rows out")
    span = f"{min(known)} to {max(known)}"
    cure = "give each name with its number, such as 1=World" if number == len(names) else "name it"
    raise ValueError(
        f"the label {str(value)[:40]!r} has no name: there are names for {span} (labels): {cure}"
    )


def _numbered(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    pairs = [name.partition("=") for name in names]
    if all(number.strip().lstrip("-").isdecimal() and name for number, _, name in pairs):
        yield from ((int(number), name.strip()) for number, _, name in pairs)
    else:
        yield from enumerate(names)


def _column(columns: Sequence[str], name: str) -> str | None:
    """The column of this name, or the only one that differs in case and spaces around it; None if there is
    none."""
    if name in columns:
        return name
    alike = [column for column in columns if column.strip().casefold() == name.strip().casefold()]
    return alike[0] if len(alike) == 1 else None


def _is_on(values: Mapping[str, Any], column: str) -> bool:
    value = values.get(column)
    said = "" if value is None else str(value).strip().casefold()
    if said not in TRUE and said not in FALSE:
        raise ValueError(f"`{column}` is {str(value)[:40]!r}: a label's column (labels_columns) holds 1 or 0")
    return said in TRUE
