"""Checks of a file before a job starts: its format, its rows and labels, and its errors.

Only the beginning of a large file is read, so that a check takes less than a second. The job checks
the rest. Nothing here needs torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, get_args

from hmi.core import Task
from hmi.errors import HmiError, InvalidData
from hmi.model.tags.entities import groups_of
from hmi.model.tags.tag_schemes import OUTSIDE, Scheme, in_labels, scheme_of
from hmi.sizes import counted
from hmi.training.data.corpus import count_documents, open_corpus
from hmi.training.data.golds import Completion, checked_labels
from hmi.training.data.long_texts import Limit, long_note
from hmi.training.data.meaning.columns import SYNONYMS, task_of_columns
from hmi.training.data.meaning.guessing import guess_reading
from hmi.training.data.meaning.misfits import several_choices
from hmi.training.data.meaning.naming import task_as_named
from hmi.training.data.reading import AS_IT_IS, Reading
from hmi.training.data.rows import (
    MIN_ROWS,
    BadRow,
    Row,
    RowFile,
    label_counts,
    parse_rows,
    read_labelled_file,
    read_unlabelled_file,
    refuse_bad_rows,
)
from hmi.training.data.tables import FIRST_RECORDS, read_table
from hmi.training.data.text_files import TextFile, Upload
from hmi.training.data.tools.label_studio import data_of
from hmi.training.data.tools.spans import Spans
from hmi.training.plans.recipe import LongTexts, Recipe
from hmi.training.tasks.row_keys import hold_out

CHECKED_BYTES = 4 << 20
"""A check reads at most this many bytes of a file, counted after decompression."""
NO_OPTIONS: Mapping[str, Any] = {}
SAMPLE = 3
"""A check shows this many of the rows that it has read."""
SHOWN_COLUMNS = 100
"""A check names at most this many columns."""
SAMPLE_CHARACTERS, SAMPLE_WORDS = 400, 60
"""A sample's text is cut to this many characters, and its list of words to this many words."""


@dataclass(frozen=True)
class Checked:
    """The result of a check."""

    kind: str
    """rows | corpus"""
    task: Task | None
    read: str | None
    """The format that the file was read as; None if it could not be read."""
    count: int
    """Usable rows, or documents."""
    whole: bool
    """Whether the whole file was read."""
    labels: dict[str, int] = field(default_factory=dict)
    problems: list[BadRow] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    sample: list[dict[str, Any]] = field(default_factory=list)
    """The first usable rows, as JSON rows of the task, with long texts cut."""
    error: str | None = None
    """Why every job would refuse the file, or None."""
    guess: dict[str, Any] = field(default_factory=dict)
    """Options by which a refused file could be read as rows of `task`; empty if there is no guess."""
    entities: dict[str, int] | None = None
    """How often each type of entity occurs; None if no tags mark entities."""
    sample_entities: list[list[dict[str, Any]]] = field(default_factory=list)
    """The entities of each row of the sample, as `label`, `start_word` and `end_word`, the index after
    its last word; empty if no tags mark entities."""
    text_columns: list[str] = field(default_factory=list)
    """The columns of a refused file that may be its text, where their names do not tell."""


def checked_files(
    task: Task, files: Mapping[str, Upload], skip: int = 0, reading: Reading = AS_IT_IS
) -> dict[str, RowFile]:
    """Read the beginnings of a job's files and return their rows by field.

    Raises InvalidData, with field and line in its details, if the job would refuse a file for what its first
    CHECKED_BYTES hold.
    """
    found: dict[str, RowFile] = {}
    if task == "embedding":
        return found
    for name in ("data", "dev"):
        if name in files:
            rows = found[name] = read_labelled_file(
                files[name], task, name, skip=skip, first=CHECKED_BYTES, reading=reading
            )
            if name == "data" and rows.whole:
                _refuse_unlearnable(rows, task, own_dev="dev" not in files)
    if "unlabelled" in files:
        paired = any(isinstance(row.text, tuple) for rows in found.values() for row in rows.rows[:1])
        found["unlabelled"] = read_unlabelled_file(
            files["unlabelled"], task, paired=paired, skip=skip, first=CHECKED_BYTES, reading=reading
        )
    return found


def checked_texts(
    task: Task, files: Mapping[str, Upload], *, paired: bool, skip: int = 0, reading: Reading = AS_IT_IS
) -> dict[str, RowFile]:
    """As `checked_files`, for files whose answers are ignored."""
    return {
        name: read_unlabelled_file(
            file, task, paired=paired, field=name, skip=skip, first=CHECKED_BYTES, reading=reading
        )
        for name, file in files.items()
    }


def too_long(found: RowFile, task: Task, options: Mapping[str, Any] = NO_OPTIONS) -> list[str]:
    """A remark if texts are longer than what a model reads of a text. options: of the job."""
    length, long_texts = options.get("max_length"), options.get("long_texts")
    recipe = replace(
        Recipe(),
        max_length=length if isinstance(length, int) else Recipe.max_length,
        long_texts=long_texts if long_texts in get_args(LongTexts) else None,
    )
    if task == "generation":
        return []  # only the root's tokenizer tells, and such rows are left out, not cut
    return [*filter(None, [long_note([row.text for row in found.rows], Limit.of(task, recipe))])]


def checked_corpus(corpus: Upload, field: str = "corpus", encoding: str | None = None) -> str:
    """Check a corpus, or a root's text, and return the format that it was read as, with a remark if it looks
    like rows. Raises as `checked_files`."""
    found = open_corpus(corpus, first=CHECKED_BYTES, field=field, encoding=encoding)
    count_documents(found, field)
    return ". ".join(filter(None, (found.read, found.remark)))


def check_text(text: Upload, field: str, encoding: str | None) -> None:
    """Check that a file is text as a corpus has it, if only one document. Raises InvalidData."""
    open_corpus(text, first=CHECKED_BYTES, field=field, encoding=encoding)


def inspect_file(
    source: Upload, task: Task | None, skip: int = 0, *, corpus: bool = False, reading: Reading = AS_IT_IS
) -> Checked:
    """Check `source` as a corpus, as rows of `task`, or, with neither given, as what its columns
    suggest. Raises InvalidInput if it cannot be read."""
    if corpus:
        return _checked_corpus(source, reading.encoding)
    found = _inspected(source, task, skip, reading)
    if found.error is None or found.kind == "corpus" or not found.guess.get("header", True):
        return found  # without a header there are no names to choose from
    if found.task == "generation" and found.read is not None:
        return found
    columns = _text_columns(source, reading)
    return replace(found, text_columns=columns if len(columns) > 1 or found.read is None else [])


def _inspected(source: Upload, task: Task | None, skip: int, reading: Reading) -> Checked:
    try:
        wanted = task or task_of_file(source, reading=reading)
    except InvalidData as error:
        return _failed_check("rows", None, error)
    if wanted is None and reading == AS_IT_IS:
        found_text = _checked_corpus(source)
        if found_text.read is not None and not found_text.notes:
            return found_text
    # A table with unknown columns: the error names the expected ones.
    found = _checked_rows(source, wanted or "classification", skip, reading)
    if found.read is not None or reading != AS_IT_IS:
        return found
    return _with_guess(found, source, task, skip)


def _checked_rows(source: Upload, task: Task, skip: int, reading: Reading) -> Checked:
    try:
        found = parse_rows(source, task, "the file", first=CHECKED_BYTES, reading=reading)
    except InvalidData as error:
        return _failed_check("rows", task, error)
    why = None
    try:
        refuse_bad_rows(found, task, "the file", skip)
        if found.whole and len(found.rows) < MIN_ROWS:
            rows = counted(len(found.rows), "row") if found.rows else "no rows"
            raise InvalidData(f"the file has {rows}: give at least {MIN_ROWS}")
        if found.whole:
            _refuse_unlearnable(found, task, own_dev=True, field="the file")
    except HmiError as error:
        why = error.message
    labels = dict(label_counts(found.rows).most_common())
    tagged = [row.label for row in found.rows if task == "tagging" and isinstance(row.label, tuple)]
    scheme = scheme_of(tagged)
    marked = tagged and scheme != "free"
    types = Counter(e["label"] for tags in tagged for e in _entities(tags, scheme)) if marked else None
    return Checked(
        "rows",
        task,
        found.read,
        len(found.rows),
        found.whole,
        labels,
        found.left_out,
        [*found.notes, *too_long(found, task)],
        [_row_sample(row, task) for row in found.rows[:SAMPLE]],
        why,
        entities=None if types is None else dict(types.most_common()),
        sample_entities=[_entities(tags[:SAMPLE_WORDS], scheme) for tags in tagged[:SAMPLE]]
        if marked
        else [],
    )


def _entities(tags: Sequence[str], scheme: Scheme) -> list[dict[str, Any]]:
    groups = groups_of(in_labels(tags, scheme), joined=True)
    return [
        {"label": label, "start_word": words.start, "end_word": words.stop}
        for label, words in groups
        if label != OUTSIDE
    ]


def _text_columns(source: Upload, reading: Reading) -> list[str]:
    """The columns, or fields of a task's data, that hold texts and may be meant; none if one of them has the
    usual name of a text, or if the file cannot be read."""
    try:
        file = TextFile(source, "the file", first=CHECKED_BYTES, encoding=reading.encoding)
        table = read_table(file, lambda _: False, conll="no", header=reading.header)
        head = [record.values for record in islice(table.records, FIRST_RECORDS)]
    except InvalidData:
        return []
    rows = [values if (data := data_of(values)) is None else data for values in head]
    found = dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, str))
    usual = {field: {field, *names} for field, names in SYNONYMS.items()}
    folded = {name.strip().casefold(): name for name in found}
    if usual["text"] & set(folded) and reading.text_column is None:
        return []
    answers = set().union(*(names for field, names in usual.items() if field != "text"))
    return [name for plain, name in folded.items() if plain not in answers][:SHOWN_COLUMNS]


def _with_guess(refused: Checked, source: Upload, task: Task | None, skip: int) -> Checked:
    """The check of a file whose columns do not fit, with options by which it could be read, if there are
    any."""
    try:
        guess = guess_reading(source, CHECKED_BYTES)
    except InvalidData:
        return refused
    if guess is not None and task == "pair":
        guess = guess.as_pair()
    if guess is None or task not in (None, guess.task):
        return refused
    found = _checked_rows(source, guess.task, skip, guess.reading)
    if found.error is not None:
        return refused
    options = guess.reading.model_dump(mode="json", exclude_defaults=True)
    return replace(refused, task=guess.task, guess=options)


def _row_sample(row: Row, task: Task) -> dict[str, Any]:
    """A row as JSON, with long texts cut."""
    if isinstance(row.text, list):
        tags = row.label if isinstance(row.label, tuple) else ()
        return {"tokens": row.text[:SAMPLE_WORDS], "tags": tags[:SAMPLE_WORDS]}
    texts = (row.text,) if isinstance(row.text, str) else row.text
    if isinstance(row.label, Completion):
        texts = (*texts, row.label.text)
    cut = [text if len(text) <= SAMPLE_CHARACTERS else f"{text[:SAMPLE_CHARACTERS]}…" for text in texts]
    if task == "generation":
        return dict(zip(("prompt", "completion"), cut, strict=True))
    answer = {"regression": "value", "multilabel": "labels"}.get(task, "label")
    return {**dict(zip(("text", "text_pair"), cut, strict=False)), answer: row.label}


def _checked_corpus(source: Upload, encoding: str | None = None) -> Checked:
    try:
        corpus = open_corpus(source, first=CHECKED_BYTES, encoding=encoding)
    except InvalidData as error:
        return _failed_check("corpus", None, error)
    try:
        count, why = count_documents(corpus), None
    except InvalidData as error:
        count, why = 0, error.message
    notes = [corpus.remark] if corpus.remark else []
    return Checked("corpus", None, corpus.read, count, corpus.file.whole, notes=notes, error=why)


def _failed_check(kind: str, task: Task | None, error: InvalidData) -> Checked:
    line = error.details.get("line")
    problems = [] if line is None else [BadRow(line, error.message)]
    return Checked(kind, task, None, 0, True, problems=problems, error=error.message)


def task_of_file(source: Upload, field: str = "the file", reading: Reading = AS_IT_IS) -> Task | None:
    """The task that the file's columns fit; None if they fit none. Raises InvalidData if the file
    is empty or is not text, or if the user has to name one of several answers."""
    file = TextFile(source, field, first=CHECKED_BYTES, encoding=reading.encoding)
    if file.empty:
        raise InvalidData(f"{field} is empty: give rows, or text")

    spans = Spans.of(reading)

    def task_of(names: Sequence[str]) -> Task | None:
        rest = spans.rest(reading)
        return task_of_columns(names) if rest == AS_IT_IS else task_as_named(names, rest)

    table = read_table(
        file, lambda names: task_of(names) is not None, conll="maybe", header=reading.header, spans=spans
    )
    found = task_of(table.columns)
    if found is None and len(table.choices) > 1 and not reading.label_column:
        raise InvalidData(f"{field} {several_choices(table.choices)}", field=field)
    return found


def _refuse_unlearnable(rows: RowFile, task: str, *, own_dev: bool, field: str = "data") -> None:
    """Raise InvalidData for rows that visibly have nothing to learn, such as a single label."""
    if task == "generation":
        pass  # each row teaches something
    elif task in ("classification", "pair", "tagging"):
        checked_labels((row.label for row in rows.rows), field)
    elif task == "multilabel":
        counts = Counter(label for row in rows.rows for label in label_counts([row]))
        if not any(0 < count < len(rows.rows) for count in counts.values()):
            raise InvalidData(
                f"every row of {field} has the same labels: give rows with a label and rows without it",
                field=field,
            )
    elif len({row.label for row in rows.rows}) == 1:
        raise InvalidData(f"every row of {field} has the same value: there is nothing to learn", field=field)
    if own_dev:
        hold_out(rows.rows)
