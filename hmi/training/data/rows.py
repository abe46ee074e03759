"""Reads a user's table into checked rows of one task. Every error names the line and the cure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.sizes import counted
from hmi.training.data.golds import Gold
from hmi.training.data.meaning.columns import CHAT, EXAMPLES, Columns, listed, read_columns
from hmi.training.data.meaning.conflicts import conflicts_of
from hmi.training.data.meaning.fields import MAX_ROW_CHARACTERS as MAX_ROW_CHARACTERS
from hmi.training.data.meaning.fields import answer_of, input_of, written_of
from hmi.training.data.meaning.misfits import (
    choice_note,
    example,
    headless,
    not_read,
    number_note,
    several_choices,
    wrong_form,
)
from hmi.training.data.meaning.naming import Naming, named_labels
from hmi.training.data.meaning.tag_notes import tag_notes, tags_said
from hmi.training.data.reading import AS_IT_IS, Reading
from hmi.training.data.records import TableRecord, TextTable
from hmi.training.data.tables import FIRST_RECORDS, read_table
from hmi.training.data.text_files import TextFile, Upload
from hmi.training.data.tools.decisions import FIELD as DECISION
from hmi.training.data.tools.decisions import Decisions, labels_of_rejected
from hmi.training.data.tools.export_rows import NO_LABEL
from hmi.training.data.tools.label_studio import why_unread
from hmi.training.data.tools.spans import Spans

if TYPE_CHECKING:
    from hmi.model.text.tokenizer import Text

MIN_ROWS = 4
SHOWN = 5
"""An error quotes at most this many bad rows."""
MAX_FIRST_ROWS = 40_000
"""A check of a file's beginning reads at most this many rows."""
NO_LABELS = frozenset({"nan", "null", "none", "n/a", "na", "#n/a"})
"""What programs write for a missing value."""


@dataclass(frozen=True)
class Row:
    """One example: its text (or pair, or words, or prompt) and its right answer: a label, a value, one tag
    for each word, a set of labels, or what is to be written. In an unlabelled row the answer is "" and is
    ignored."""

    text: Text
    label: Gold


@dataclass(frozen=True)
class BadRow:
    """The line of a row that is not usable, and the reason."""

    line: int
    message: str


@dataclass(frozen=True)
class RowFile:
    """The rows of a file."""

    rows: list[Row]
    read: str
    """The format that the file was read as, in words."""
    left_out: list[BadRow] = field(default_factory=list)
    """Bad rows, which were skipped."""
    notes: list[str] = field(default_factory=list)
    """Remarks for the user."""
    whole: bool = True
    """Whether the whole file was read."""
    lines: list[int] = field(default_factory=list)
    """The line of each row in `rows`."""
    patterns: tuple[str, ...] | None = None
    """The patterns by which texts were split into words (hmi.model.text.splitting); None if the rows are
    words, or need none."""


def read_labelled_rows(source: Upload, task: Task, field: str = "data") -> list[Row]:
    """Read all rows of a file. Raises InvalidData, which names the lines of the first bad rows."""
    return read_labelled_file(source, task, field).rows


def read_labelled_file(
    source: Upload,
    task: Task,
    field: str = "data",
    *,
    skip: int = 0,
    first: int | None = None,
    reading: Reading = AS_IT_IS,
    patterns: tuple[str, ...] | None = None,
) -> RowFile:
    """Read the rows of a file, or of about its `first` bytes. Up to `skip` bad ones are left out.

    patterns: how texts with spans are split into words; None: as the spans need it. Raises InvalidData (its
    details name field and line), TooLarge.
    """
    found = parse_rows(source, task, field, first=first, reading=reading, patterns=patterns)
    refuse_bad_rows(found, task, field, skip)
    if found.whole and len(found.rows) < MIN_ROWS:
        what = counted(len(found.rows), "row") if found.rows else "no rows"
        raise InvalidData(
            f"{field} has {what}: give at least {MIN_ROWS} (it was read as {found.read})", field=field
        )
    if task == "regression":
        _refuse_mixed(found, field)
    return found


def read_unlabelled_file(
    source: Upload,
    task: Task,
    *,
    paired: bool,
    field: str = "unlabelled",
    skip: int = 0,
    first: int | None = None,
    reading: Reading = AS_IT_IS,
    patterns: tuple[str, ...] | None = None,
) -> RowFile:
    """Like `read_labelled_file`, for rows whose answers are ignored. For tagging they may be texts."""
    found = parse_rows(
        source, task, field, answers=False, paired=paired, first=first, reading=reading, patterns=patterns
    )
    refuse_bad_rows(found, task, field, skip)
    if not found.rows and found.whole:
        raise InvalidData(f"{field} has no rows: give rows such as {example(task, paired)}", field=field)
    return found


def refuse_bad_rows(found: RowFile, task: Task, field: str, skip: int) -> None:
    """Raise InvalidData if more than `skip` rows are bad."""
    bad = found.left_out
    if len(bad) <= skip:
        return
    reasons = reasons_of(bad)
    shown = "; ".join(reasons[:SHOWN])
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    limit = f", more than the {skip} that may be left out" if skip else ""
    few, are = len(bad) <= len(found.rows), "is" if len(bad) == 1 else "are"
    leave = (
        "; up to N bad ones are left out with --skip-bad-rows N (over HTTP options.skip_bad_rows)"
        if few
        else ""
    )
    raise InvalidData(
        f"{len(bad)} of {counted(len(found.rows) + len(bad), 'row')} of {field} {are} not usable{limit}: "
        f"{shown}{more}. It was read as {found.read}. Each row needs the form {EXAMPLES[task]}{leave}",
        field=field,
        line=bad[0].line,
    )


def reasons_of(bad: Sequence[BadRow]) -> list[str]:
    """Why rows are bad: each reason once, with the first places where it holds."""
    places: dict[str, list[str]] = defaultdict(list)
    for row in bad:
        place, _, reason = row.message.partition(": ")
        places[reason].append(place)
    said = []
    for reason, (first, *others) in places.items():
        more = f" and {len(others) - SHOWN:,} more" if len(others) > SHOWN else ""
        too = f" ({', '.join(others[:SHOWN])}{more}, too)" if others else ""
        said.append(f"{first}: {reason}{too}")
    return said


def parse_rows(
    source: Upload,
    task: Task,
    field: str,
    *,
    answers: bool = True,
    paired: bool | None = None,
    first: int | None = None,
    reading: Reading = AS_IT_IS,
    patterns: tuple[str, ...] | None = None,
) -> RowFile:
    """Parse a file into good and bad rows. Raises InvalidData if its form or its columns do not
    fit the task."""
    file = TextFile(source, field, first=first, encoding=reading.encoding)
    if file.empty:
        raise InvalidData(f"{field} is empty: give rows such as {example(task, paired)}", field=field)

    spans = Spans.of(reading, texts=task == "tagging" and not answers, patterns=patterns)

    def as_named(names: Sequence[str]) -> Naming:
        rest = spans.rest(reading)
        return Naming.of(names, rest if answers else rest.of_texts(names), task)

    def columns_of(names: Sequence[str]) -> Columns:
        naming = as_named(names)
        if naming.problem:
            return Columns({}, naming.problem)
        return read_columns(naming.columns, task, answers=answers, paired=paired)

    table = read_table(
        file,
        lambda names: not columns_of(names).problem,
        conll="likely" if task == "tagging" else "no",
        header=reading.header,
        spans=spans,
    )
    columns = columns_of(table.columns)
    naming = as_named(table.columns)
    table = naming.applied(table)
    head = list(itertools.islice(table.records, FIRST_RECORDS))
    if task == "generation" and head and all(record.chat for record in head):
        columns = Columns(CHAT)  # a chat needs no column, and one without an answer is told of by its line
    problem = spans.problem or _problem(table, naming, columns, head, task, answers=answers, paired=paired)
    if problem:
        raise InvalidData(f"{field} was read as {table.form}, {file.encoding}: {problem}", field=field)
    values = [record.values for record in head]
    decisions = Decisions(values, task, given=answers and DECISION not in columns.names)
    used = {**columns.names, **({DECISION: "annotator's decision"} if decisions.given else {})}
    reader = _Reader(task, columns.names, decisions, reading.labels, answers=answers, paired=paired)
    whole = True
    for record in itertools.chain(head, table.records):
        if first is not None and len(reader.rows) + len(reader.bad) >= MAX_FIRST_ROWS:
            whole = False
            break
        reader.read(record)
    read = reader.found(_described(table, file.encoding, used), whole=whole and file.whole)
    chosen = "" if reading.label_column else choice_note(table.choices, columns.names)
    told = [*table.notes(), *spans.notes()] if answers else []
    read = replace(read, notes=[*filter(None, [file.remark, chosen]), *read.notes, *told])
    return replace(_marked(read), patterns=spans.patterns) if task == "tagging" else read


def _problem(
    table: TextTable,
    naming: Naming,
    columns: Columns,
    head: list[TableRecord],
    task: Task,
    *,
    answers: bool,
    paired: bool | None,
) -> str:
    """Why a table does not give rows of the task; "" if it does."""
    fitting = not (naming.problem or columns.problem)
    unread = why_unread([record.values for record in head], fitting=fitting) if answers else ""
    if unread:
        return unread
    if answers and 0 < len(head) < FIRST_RECORDS and all(record.left_out == NO_LABEL for record in head):
        return "no row has a label: label some there, and export again"
    if columns.problem and len(table.choices) > 1 and answers and not naming.reading.label_column:
        return f"it {several_choices(table.choices)}"
    if naming.problem:
        return naming.problem
    if columns.problem:
        hint = headless(table, columns.problem, task, answers=answers)
        return not_read(table.columns, head) or f"{columns.problem}{hint}"
    return wrong_form(table, columns.names, head, task, paired=paired)


def _marked(found: RowFile) -> RowFile:
    """The file with what its tags mark."""
    tags = [row.label for row in found.rows if isinstance(row.label, tuple)]
    return replace(found, read=found.read + tags_said(tags), notes=[*found.notes, *tag_notes(tags)])


class _Reader:
    """Reads records one by one into rows and bad rows."""

    def __init__(
        self,
        task: Task,
        names: Mapping[str, str],
        decisions: Decisions,
        labels: Sequence[str] | None,
        *,
        answers: bool,
        paired: bool | None,
    ) -> None:
        self.rows: list[Row] = []
        self.bad: list[BadRow] = []
        self._task, self._names, self._answers, self._paired = task, names, answers, paired
        self._decisions, self._labels = decisions, labels
        self._lines: list[int] = []
        self._rejected: list[int] = []
        self._left_out: Counter[str] = Counter()

    def read(self, record: TableRecord) -> None:
        try:
            if record.problem:
                raise ValueError(record.problem)
            decision = self._decisions.read(record.values)
            if decision == "out":
                return
            if record.left_out and self._answers:
                self._left_out[record.left_out] += 1
                return
            self.rows.append(self._row(record))
            self._lines.append(record.line)
            if decision == "rejected":
                self._rejected.append(len(self.rows) - 1)
        except ValueError as error:
            self.bad.append(BadRow(record.line, f"{record.place}: {error}"))

    def _row(self, record: TableRecord) -> Row:
        values = record.values
        raw = {ours: values.get(given) for given, ours in self._names.items()}
        if self._task == "generation":
            return Row(*written_of(raw, record.chat, record.at))
        raw.setdefault("text_pair", values.get("text_pair"))
        if not self._answers:
            return Row(input_of(raw, self._task, paired=self._paired), "")
        if self._labels:
            raw |= {n: named_labels(raw[n], self._labels) for n in ("label", "labels", "tags") if n in raw}
        return Row(input_of(raw, self._task, paired=self._paired), answer_of(raw, self._task))

    def found(self, read: str, *, whole: bool) -> RowFile:
        """All rows, the rejected ones with their right labels, and remarks."""
        labels = labels_of_rejected([row.label for row in self.rows], self._rejected)
        kept = [i for i in range(len(self.rows)) if labels.get(i, "") is not None]
        rows = [replace(self.rows[i], label=labels.get(i) or self.rows[i].label) for i in kept]
        left_out = [
            f"{counted(count, 'record is', 'records are')} left out: {why}"
            for why, count in self._left_out.items()
        ]
        notes = [*self._decisions.notes(labels), *left_out, *label_notes(rows)]
        return RowFile(rows, read, self.bad, notes, whole, [self._lines[i] for i in kept])


def label_counts(rows: list[Row]) -> Counter[str]:
    """How often each label or tag occurs; empty for values."""
    counts: Counter[str] = Counter()
    for row in rows:
        if isinstance(row.label, str | tuple):
            counts.update([row.label] if isinstance(row.label, str) else row.label)
    return counts


def label_notes(rows: list[Row]) -> list[str]:
    """Remarks on labels that may be spellings of one label, on labels that look like missing values, and on
    texts with several labels."""
    counts = label_counts(rows)
    alike: dict[str, list[str]] = defaultdict(list)
    for label in counts:
        alike[label.casefold().removesuffix(".0")].append(label)
    notes = [
        f"the labels {listed(sorted(same))} count as different: write them alike if they mean the same"
        for same in alike.values()
        if len(same) > 1
    ]
    missing = [label for label in counts if label.casefold() in NO_LABELS]
    numbers = number_note(counts)
    conflicts = conflicts_of((row.text, row.label) for row in rows).remark()
    return [
        *filter(None, [conflicts, numbers]),
        *notes,
        *(
            f"`{label}` was read as a label ({counted(counts[label], 'row')}): check that no label is "
            "missing there"
            for label in missing
        ),
    ]


def _described(table: TextTable, encoding: str, names: Mapping[str, str]) -> str:
    """The format of a table in words: its form, the field that each column is read as, the
    columns not used."""
    renamed = [f"`{given}` is the {ours}" for given, ours in names.items() if given != ours]
    unused = [name for name in table.columns if name not in names and name.strip()]
    parts = [
        f"columns {listed(table.columns)}",
        *renamed,
        *([f"not used: {listed(unused)}"] if unused else []),
    ]
    return f"{table.form}, {encoding}; {'; '.join(parts)}"


def _refuse_mixed(found: RowFile, field: str) -> None:
    paired = [isinstance(row.text, tuple) for row in found.rows]
    if len(set(paired)) > 1:
        lone = paired.index(not paired[0])
        raise InvalidData(
            f"line {found.lines[lone]} of {field} {'lacks' if paired[0] else 'has'} a `text_pair`, "
            "unlike the first row: give it in every row or in none",
            field=field,
            line=found.lines[lone],
        )
