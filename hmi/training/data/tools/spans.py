"""Spans on raw texts as rows of tagging: one tag a word, in BIO.

Words are split as the model will split raw texts (`hmi.model.text.splitting`). A mark at which some span
begins or ends separates words in the whole file, so that only a span that ends between two letters or digits
can cut a word. These patterns become the model's.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hmi.model.text.splitting import (
    ALIKE,
    IDEOGRAPH,
    Splitter,
    SplitText,
    clusters_of,
    context,
    default_pattern,
)
from hmi.sizes import counted
from hmi.training.data.meaning.columns import listed
from hmi.training.data.reading import Reading
from hmi.training.data.records import Fits, TableRecord, TextTable
from hmi.training.data.tools.decisions import FIELD as DECISION
from hmi.training.data.tools.export_rows import Export
from hmi.training.data.tools.label_studio import is_least, task_of
from hmi.training.data.tools.span_forms import Given, GivenText, NoText, SpanForm, form_of, text_form
from hmi.training.data.tools.span_offsets import SpanRow, located, outside_problem, quoted, settled

SHOWN = 3
"""A remark quotes at most this many spans."""
MAX_PATTERNS = 256
"""The most patterns that spans teach, the commonest ones."""
NEAR = 64
"""The characters before and after a place that tell the marks there."""
COLUMNS = ("tokens", "tags")
_LEFT_OUT = "spans are left out, since they overlap"
_NAMED = "(--label-column, over HTTP options.label_column)"


@dataclass
class Spans:
    """Reads the spans of one file as tags. What became of them is known once all records were read."""

    texts: bool = False
    """Whether to read texts alone, those without spans too."""
    patterns: tuple[str, ...] | None = None
    """The patterns by which texts are split into words; None before the file was read: as its spans need it,
    and after: the file gives words."""
    overlapping: list[str] = field(default_factory=list)
    cutting: list[str] = field(default_factory=list)
    """The spans that overlap another one, and those that end within a word, with their places."""
    by_units: list[str] = field(default_factory=list)
    """The rows whose offsets were read as UTF-16 units."""
    several: list[str] = field(default_factory=list)
    truths: list[str] = field(default_factory=list)
    """The rows with several annotations, and those of which one is marked as the ground truth."""
    text_columns: tuple[str, ...] = ()
    """The columns of the text, if the user names them. Spans are on one text."""
    label_column: str | None = None
    """The column or control of the spans, if the user names it."""
    form: SpanForm | None = None
    """How the file's records hold spans, whether these are read or not."""
    choices: tuple[str, ...] = ()
    """The names of choices that an annotator made beside spans."""
    problem: str = ""
    """Why no record can be read, or ""."""
    used: bool = False
    """Whether the file was read as spans, so that its text needs no other name any more."""

    @classmethod
    def of(cls, reading: Reading, *, texts: bool = False, patterns: tuple[str, ...] | None = None) -> Spans:
        """Spans on the text that a reading names."""
        label = None if texts else reading.label_column
        return cls(texts=texts, patterns=patterns, text_columns=reading.text_column or (), label_column=label)

    def rest(self, reading: Reading) -> Reading:
        """What a reading still says of the table, once it was read."""
        return (
            reading.model_copy(update={"text_column": None, "label_column": None}) if self.used else reading
        )

    def table(
        self, table: TextTable, head: Sequence[Mapping[str, Any]], fits: Fits, export: Export | None = None
    ) -> TextTable | None:
        """The table as one of `tokens` and `tags`; None if it holds no spans, or has the wanted columns
        without them.

        head: its first records. fits: whether columns are the wanted ones. export: the classes that the table
        also has.
        """
        given, self.patterns = self.patterns, None
        column = self.text_columns[0] if len(self.text_columns) == 1 else None
        form = self.form = form_of(head, column, self.label_column)
        held = set() if form is None else {*form.fields, *_of_objects(head)}
        others = fits([name for name in table.columns if name not in held])
        # Of Label Studio's controls those with spans come first, whatever the others are called.
        if others and not (form is not None and export is not None and is_least(table.columns)):
            return None
        form = text_form(form, head, column) if self.texts else form
        if form is None or len(self.text_columns) > 1:
            return None
        self.used = True
        if export is not None and not fits(COLUMNS):
            self.used = False
            return None
        self.choices = export.choices if export is not None else ()
        self.problem = _without_text(form, head)
        records = (
            _worded(table.records, form, self) if form.of_words else _split(table.records, form, self, given)
        )
        return TextTable(f"{table.form}: {form.name}", COLUMNS, records)

    def notes(self) -> list[str]:
        """Remarks for the user, one for each kind of finding."""
        kinds = (
            (self.cutting, "spans that cut a word, read as the whole word"),
            (self.by_units, "rows whose offsets count UTF-16 units, in which an emoji is two, read so"),
            (self.several, "rows with several annotations, of which the first is read"),
            (self.truths, "rows with several annotations, of which the ground truth is read"),
        )
        found = [f"{what}: {len(places)} ({_listed(places)})" for places, what in kinds if places]
        return [*self._of_columns(), *self._of_overlaps(), *found]

    def _of_columns(self) -> list[str]:
        """Remarks on what else the file holds, unless the user chose."""
        if self.form is None or self.label_column is not None or self.texts:
            return []
        if not self.used:
            return [
                f"there are {self.form.name}, which are left out: --task tagging reads them instead "
                '(over HTTP "task": "tagging")'
            ]
        told = []
        if self.form.controls:
            both = listed(self.form.controls)
            told.append(f"the spans of {both} are read together: name one to read it alone {_NAMED}")
        if self.form.unread:
            told.append(f"spans in {listed(self.form.unread)} are left out: name the ones to read {_NAMED}")
        if self.choices:
            also = listed(self.choices)
            told.append(
                f"beside the spans there are choices, which are left out: name {also} to read it {_NAMED}"
            )
        return told

    def _of_overlaps(self) -> list[str]:
        if not self.overlapping:
            return []
        left = counted(len(self.overlapping), "span is left out, since it overlaps", _LEFT_OUT)
        why = "a word has one tag, so the longest is kept, of equally long ones the first"
        return [f"{left} another one: {why}: {_listed(self.overlapping)}"]


def _without_text(form: SpanForm, head: Sequence[Mapping[str, Any]]) -> str:
    """What to do if no record has a text that is surely it; "" if one has."""
    said = ""
    for record in head:
        try:
            form.read(record)
        except NoText as error:
            said = said or f"it {error}"
        except ValueError:
            continue
        else:
            return ""
    return said


def _of_objects(values: Sequence[Mapping[str, Any]]) -> set[str]:
    """The fields that hold lists of objects, such as Prodigy's `tokens`."""
    return {
        name
        for record in values
        for name, value in record.items()
        if isinstance(value, list) and value and isinstance(value[0], dict)
    }


def _worded(records: Iterator[TableRecord], form: SpanForm, reading: Spans) -> Iterator[TableRecord]:
    """The records of a file that gives words."""
    for record, given in _records_and_texts(records, form, reading):
        words, wrong = (
            list(given.text),
            record.problem or outside_problem(given.spans, len(given.text), "words"),
        )
        if wrong:
            yield replace(record, values={}, problem=wrong)
        else:
            yield _tagged(record, words, _places(record, words, given.spans, reading))


def _split(
    records: Iterator[TableRecord], form: SpanForm, reading: Spans, patterns: tuple[str, ...] | None
) -> Iterator[TableRecord]:
    """The records of a file of raw texts. All are read before the first is returned, since the spans of all
    decide how words are split and what offsets count."""
    rows = list(
        settled(
            [
                SpanRow(record, "", [], record.problem)
                if record.problem
                else located(record, str(given.text), given.spans, code_points=form.code_points)
                for record, given in _one_a_task(_records_and_texts(records, form, reading), reading)
            ]
        )
    )
    reading.patterns = _patterns(rows) if patterns is None else patterns
    splitter = Splitter(reading.patterns)
    for row in rows:
        if row.problem:
            yield replace(row.record, values={}, problem=row.problem)
            continue
        split = splitter.split(row.text)
        if not split.words:
            wrong = "" if row.record.left_out else "has an empty text"
            yield replace(row.record, values={}, problem=wrong)
            continue
        if row.by_units:
            reading.by_units.append(row.record.place)
        spans = _over_words(row, split, reading)
        yield _tagged(row.record, split.words, _places(row.record, split.words, spans, reading))


def _records_and_texts(
    records: Iterator[TableRecord], form: SpanForm, reading: Spans
) -> Iterator[tuple[TableRecord, GivenText]]:
    """Each record, or one with a problem, and what it gives."""
    for record in records:
        try:
            given = GivenText("", []) if record.problem else form.read(record.values)
        except ValueError as error:
            why = error.left_out if isinstance(error, NoText) and not reading.texts else ""
            given = GivenText("", [], left_out=why)
            record = replace(record, problem="" if why else str(error))
        if given.several > 1:
            (reading.truths if given.truth else reading.several).append(record.place)
        yield replace(record, left_out=given.left_out), given


def _one_a_task(
    found: Iterable[tuple[TableRecord, GivenText]], reading: Spans
) -> list[tuple[TableRecord, GivenText]]:
    """What is read of each task with a row for each annotation: the first row, or of a named control the
    first with its spans, since annotators may each use another one."""
    kept: list[tuple[TableRecord, GivenText]] = []
    numbers: dict[Hashable, int] = {}
    places: dict[int, str] = {}
    for record, given in found:
        task = None if record.problem else task_of(record.values, str(given.text))
        number = len(kept) if task is None else numbers.setdefault(task, len(kept))
        if number == len(kept):
            kept.append((record, given))
            continue
        first, read = kept[number]
        places.setdefault(number, first.place)
        if reading.label_column is not None and given.spans and not read.spans:
            kept[number] = record, given
    reading.several += places.values()
    return kept


def _over_words(row: SpanRow, split: SplitText, reading: Spans) -> list[Given]:
    """The row's spans, counted in words. A span that cuts a word has it whole."""
    starts, ends = [a for a, _ in split.spans], [b for _, b in split.spans]
    spans = []
    for span in row.spans:
        first, last = bisect_right(ends, span.start), bisect_left(starts, span.end)
        if starts[first] != span.start or ends[last - 1] != span.end:
            held, whole = row.text[span.start : span.end], row.text[starts[first] : ends[last - 1]]
            reading.cutting.append(f"{row.record.place} {quoted(held)} in {quoted(whole)}")
        spans.append(replace(span, start=first, end=last))
    return spans


def _patterns(rows: Sequence[SpanRow]) -> tuple[str, ...]:
    """The patterns that let words end where spans do, the commonest first."""
    counts: Counter[tuple[str, bool]] = Counter()
    for row in rows:
        for offset in {at for span in row.spans for at in (span.start, span.end)}:
            found = _mark_at(row.text, offset)
            if found is not None:
                counts[found] += 1
    names = dict.fromkeys(name for (name, _), _ in counts.most_common())
    written = {name: _mark_pattern(name, before_only=not counts[name, False]) for name in names}
    return tuple(p for name, p in written.items() if p != default_pattern(name))[:MAX_PATTERNS]


def _mark_at(text: str, offset: int) -> tuple[str, bool] | None:
    """The pattern without spaces of the mark at which a word has to end, and whether it ends before the mark;
    None where a chunk ends anyway, or where no mark is."""
    left, right = text[max(0, offset - NEAR) : offset], text[offset : offset + NEAR]
    if left[-1:].isspace() or right[:1].isspace():
        return None
    left = "".join(left.split()[-1:])
    clusters = clusters_of(left + "".join(right.split()[:1]))
    at = next((i for i, cluster in enumerate(clusters) if i and cluster.start == len(left)), None)
    if at is None:
        return None
    before, after = clusters[at - 1], clusters[at]
    if IDEOGRAPH in (before.kind, after.kind):
        return None
    if before.mark and after.mark:
        return before.kind + after.kind, False
    if after.mark:
        return context(clusters, at), True
    return (context(clusters, at - 1), False) if before.mark else None


def _mark_pattern(name: str, *, before_only: bool) -> str:
    """The pattern that splits a mark from its neighbours, an apostrophe only from what is before it."""
    clitic = len(name) == 3 and ALIKE.get(name[1], name[1]) == "'" and before_only
    return f"{name[0]} {name[1:]}" if clitic else " ".join(name)


def _places(record: TableRecord, words: Sequence[str], spans: Sequence[Given], reading: Spans) -> list[Given]:
    """The spans over words that can all be tagged: of those that overlap, the longest."""
    kept: list[Given] = []
    taken: dict[int, Given] = {}
    for span in sorted(spans, key=lambda each: (each.start - each.end, each.start)):
        other = next((taken[word] for word in range(span.start, span.end) if word in taken), None)
        if other is None:
            kept.append(span)
            taken |= dict.fromkeys(range(span.start, span.end), span)
        elif (other.start, other.end, other.label) != (span.start, span.end, span.label):
            left, stays = (f"{quoted(' '.join(words[s.start : s.end]))} ({s.label})" for s in (span, other))
            reading.overlapping.append(f"{record.place}, {stays} is kept, {left} is not")
    return kept


def _tagged(record: TableRecord, words: Sequence[str], spans: Sequence[Given]) -> TableRecord:
    """The row. Of a record's other values only the annotator's decision is kept."""
    tags = ["O"] * len(words)
    for span in spans:
        rest = [f"I-{span.label}"] * (span.end - span.start - 1)
        tags[span.start : span.end] = [f"B-{span.label}", *rest]
    kept = {name: value for name, value in record.values.items() if name == DECISION}
    return replace(record, values={**kept, "tokens": list(words), "tags": tags})


def _listed(found: Sequence[str]) -> str:
    more = f"; and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return "; ".join(found[:SHOWN]) + more
