"""Reads a user's table into checked rows of one task. Every error names the line and the cure."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.training.data.columns import EXAMPLES, LISTS, NEEDED, Columns, listed, read_columns, second_text
from hmi.training.data.fields import MAX_ROW_CHARACTERS as MAX_ROW_CHARACTERS
from hmi.training.data.fields import answer_of, input_of
from hmi.training.data.spans import Reading, tagged_table
from hmi.training.data.tables import FIRST_RECORDS, TableRecord, TextTable, kind_of, read_table
from hmi.training.data.tag_notes import tag_notes, tags_said
from hmi.training.data.text_files import TextFile, Upload
from hmi.training.golds import Gold

if TYPE_CHECKING:
    from hmi.model.tokenizer import Text

MIN_ROWS = 4
SHOWN = 5
"""An error quotes at most this many bad rows."""
MAX_FIRST_ROWS = 40_000
"""A check of a file's beginning reads at most this many rows."""
NO_LABELS = frozenset({"nan", "null", "none", "n/a", "na", "#n/a"})
"""What programs write for a missing value."""


@dataclass(frozen=True)
class Row:
    """One example: its text (or pair, or words) and its right answer: a label, a value, one tag for
    each word, or a set of labels. In an unlabelled row the answer is "" and is ignored."""

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
    """The patterns by which texts were split into words (hmi.model.splitting); None if the rows are words, or
    need none."""


def read_labelled_rows(source: Upload, task: Task, field: str = "data") -> list[Row]:
    """Read all rows of a file. Raises InvalidData, which names the lines of the first bad rows."""
    return read_labelled_file(source, task, field).rows


def read_unlabelled_rows(source: Upload, task: Task, *, paired: bool, field: str = "unlabelled") -> list[Row]:
    """Read rows and ignore their answers, if they have any. Raises InvalidData."""
    return read_unlabelled_file(source, task, paired=paired, field=field).rows


def read_labelled_file(
    source: Upload,
    task: Task,
    field: str = "data",
    *,
    skip: int = 0,
    first: int | None = None,
    patterns: tuple[str, ...] | None = None,
) -> RowFile:
    """Read the rows of a file, or of about its `first` bytes. Up to `skip` bad ones are left out.

    patterns: how texts with spans are split into words; None: as the spans need it. Raises InvalidData (its
    details name field and line), TooLarge.
    """
    found = parse_rows(source, task, field, first=first, patterns=patterns)
    refuse_bad_rows(found, task, field, skip)
    if found.whole and len(found.rows) < MIN_ROWS:
        what = f"{len(found.rows)} rows" if found.rows else "no rows"
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
    patterns: tuple[str, ...] | None = None,
) -> RowFile:
    """Like `read_labelled_file`, for rows whose answers are ignored. For tagging they may be texts."""
    found = parse_rows(source, task, field, answers=False, paired=paired, first=first, patterns=patterns)
    refuse_bad_rows(found, task, field, skip)
    if not found.rows and found.whole:
        raise InvalidData(f"{field} has no rows: give rows such as {_example(task, paired)}", field=field)
    return found


def refuse_bad_rows(found: RowFile, task: Task, field: str, skip: int) -> None:
    """Raise InvalidData if more than `skip` rows are bad."""
    bad = found.left_out
    if len(bad) <= skip:
        return
    shown = "; ".join(problem.message for problem in bad[:SHOWN])
    more = f"; and {len(bad) - SHOWN} more" if len(bad) > SHOWN else ""
    limit = f", more than the {skip} that may be left out" if skip else ""
    few = len(bad) <= len(found.rows)
    leave = (
        "; up to N bad ones are left out with --skip-bad-rows N (over HTTP options.skip_bad_rows)"
        if few
        else ""
    )
    raise InvalidData(
        f"{len(bad)} of {len(found.rows) + len(bad)} rows of {field} are not usable{limit}: "
        f"{shown}{more}. It was read as {found.read}. Each row needs the form {EXAMPLES[task]}{leave}",
        field=field,
        line=bad[0].line,
    )


def parse_rows(
    source: Upload,
    task: Task,
    field: str,
    *,
    answers: bool = True,
    paired: bool | None = None,
    first: int | None = None,
    patterns: tuple[str, ...] | None = None,
) -> RowFile:
    """Parse a file into good and bad rows. Raises InvalidData if its form or its columns do not
    fit the task."""
    file = TextFile(source, field, first=first)
    if file.empty:
        raise InvalidData(f"{field} is empty: give rows such as {_example(task, paired)}", field=field)

    def columns_of(names: Sequence[str]) -> Columns:
        return read_columns(names, task, answers=answers, paired=paired)

    def fits(names: Sequence[str]) -> bool:
        return not columns_of(names).problem

    table = read_table(file, fits, conll="likely" if task == "tagging" else "no")
    texts = task == "tagging" and not answers
    table, spans = tagged_table(table, fits, texts=texts, patterns=patterns)
    columns = columns_of(table.columns)
    head = list(itertools.islice(table.records, FIRST_RECORDS))
    problem = columns.problem + _headless(table, columns.problem, task, answers=answers)
    problem = problem or _wrong_form(table, columns.names, head, task, paired=paired)
    if problem:
        raise InvalidData(f"{field} was read as {table.form}, {file.encoding}: {problem}", field=field)
    read = _described(table, file.encoding, columns.names)
    found = RowFile([], read, whole=True)
    whole = True
    for record in itertools.chain(head, table.records):
        if first is not None and len(found.rows) + len(found.left_out) >= MAX_FIRST_ROWS:
            whole = False
            break
        try:
            if record.problem:
                raise ValueError(record.problem)
            raw = {ours: record.values.get(given) for given, ours in columns.names.items()}
            raw.setdefault("text_pair", record.values.get("text_pair"))
            answer = answer_of(raw, task) if answers else ""
            found.rows.append(Row(input_of(raw, task, paired=paired), answer))
            found.lines.append(record.line)
        except ValueError as error:
            found.left_out.append(BadRow(record.line, f"{record.place}: {error}"))
    done = RowFile(
        found.rows, read, found.left_out, label_notes(found.rows), whole and file.whole, found.lines
    )
    return _marked(done, spans) if task == "tagging" else done


def _marked(found: RowFile, spans: Reading | None) -> RowFile:
    """The file with what its tags mark, and with what became of its spans."""
    tags = [row.label for row in found.rows if isinstance(row.label, tuple)]
    said = "; ".join(filter(None, (found.read, tags_said(tags))))
    notes = [*found.notes, *tag_notes(tags), *(() if spans is None else spans.notes())]
    return replace(found, read=said, notes=notes, patterns=None if spans is None else spans.patterns)


def label_counts(rows: list[Row]) -> Counter[str]:
    """How often each label or tag occurs; empty for values."""
    counts: Counter[str] = Counter()
    for row in rows:
        if isinstance(row.label, str | tuple):
            counts.update([row.label] if isinstance(row.label, str) else row.label)
    return counts


def label_notes(rows: list[Row]) -> list[str]:
    """Remarks on labels that may be spellings of one label, and on labels that look like missing values."""
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
    return [
        *notes,
        *(
            f"`{label}` was read as a label ({counts[label]} rows): check that no label is missing there"
            for label in missing
        ),
    ]


def _example(task: Task, paired: bool | None) -> str:
    """An example row; without its answer unless `paired` is None."""
    if paired is None:
        return EXAMPLES[task]
    return (
        '{"tokens": ["…"]}'
        if task == "tagging"
        else '{"text": "…", "text_pair": "…"}'
        if paired
        else '{"text": "…"}'
    )


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


def _headless(table: TextTable, problem: str, task: Task, *, answers: bool) -> str:
    """A further hint if the first line of a CSV file does not look like a header."""
    names = ",".join(NEEDED[task])
    if not problem or not table.form.startswith("CSV") or any(name in LISTS for name in NEEDED[task]):
        return ""
    if not answers:
        return f". If this is plain text, give JSON, one object a line: {_example(task, task == 'pair')}"
    if len(table.columns) == 1:
        return f". If this is plain text, it has no labels: rows are lines of cells below the header {names}"
    return f". If the first line is a row already, write the header {names} above it"


def _wrong_form(
    table: TextTable, names: Mapping[str, str], head: list[TableRecord], task: Task, *, paired: bool | None
) -> str:
    """Why rows with these columns would be misread; "" if they would not."""
    pair = second_text(table.columns)
    single = task in ("classification", "multilabel") and not paired
    if pair and single and any(str(record.values.get(pair[1]) or "").strip() for record in head):
        cure = "join the two texts" if task == "multilabel" else 'give --task pair (over HTTP "task": "pair")'
        return (
            f"it has two texts a row, {listed(pair)}, and the task {task} reads one: {cure}, or remove "
            f"the column `{pair[1]}`"
        )
    if table.form.startswith("CSV"):
        lists = [given for given, ours in names.items() if ours in LISTS]
        if lists:
            also = (
                ", or CoNLL (a token and its tag a line, a blank line between texts)"
                if task == "tagging"
                else ""
            )
            cure = f"give JSON, one object a line: {EXAMPLES[task]}{also}"
            return f"a CSV cell cannot hold a list, and {listed(lists)} must be lists: {cure}"
    columns = {ours: given for given, ours in names.items()}
    if head and isinstance(head[0].values.get(columns.get("text", "")), list | dict):
        what = kind_of(head[0].values[columns["text"]])
        return (
            f"`{columns['text']}` is {what} of all texts: give one object a row (pandas: "
            "orient='records', lines=True)"
        )
    return ""


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
