"""Reads users' tables: JSON lines, JSON lists, CSV with any usual delimiter, CoNLL."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from hmi.errors import InvalidData
from hmi.training.data.records import Fits, TextTable
from hmi.training.data.records import TableRecord as TableRecord
from hmi.training.data.text_files import TextFile
from hmi.training.data.tools.chats import FIELD as CHAT
from hmi.training.data.tools.chats import row_of_chat
from hmi.training.data.tools.export_rows import Export
from hmi.training.data.tools.exports import export_of
from hmi.training.data.tools.marked_lines import marked_table
from hmi.training.data.tools.span_forms import record_of_pair
from hmi.training.data.tools.spans import Spans


@dataclass(frozen=True)
class _Quotes:
    """The first line, by number, of each kind that tells how quotes are used."""

    unpaired: int | None = None
    """Has quotes that do not pair within the line."""
    other: tuple[int, int] | None = None
    """Split at each tab, it has another number of cells than the header: (line, its cells)."""
    doubled: int | None = None
    """Has a cell that is quoted as in CSV, with a quote inside it doubled."""

    @property
    def literal(self) -> bool:
        """True if the table can only be read with quotes as ordinary characters."""
        return self.unpaired is not None and self.other is None and self.doubled is None

    def against(self) -> str:
        """The evidence against literal quotes, for an error; "" if there is none."""
        if self.doubled is not None:
            return f"line {self.doubled} quotes a cell as CSV does"
        return (
            ""
            if self.other is None
            else f"line {self.other[0]} has {self.other[1]} cells when split at each tab"
        )


def _quotes_of(lines: Iterable[tuple[int, str]], width: int) -> _Quotes:
    """Examine numbered `lines`: those below the header, which has `width` cells."""
    unpaired = other = doubled = None
    for number, line in lines:
        cells = line.split("\t")
        if other is None and len(cells) != width and any(cells):
            other = number, len(cells)
        if '"' not in line:
            continue
        if unpaired is None and not _pairs(line):
            unpaired = number
        if doubled is None and any(map(_is_quoted, cells)):
            doubled = number
        if None not in (unpaired, other or doubled):
            break  # no later line can change `literal`
    return _Quotes(unpaired, other, doubled)


def _pairs(line: str) -> bool:
    try:
        return len(list(csv.reader([line], delimiter="\t", strict=True))) == 1
    except csv.Error:
        return False


def _is_quoted(cell: str) -> bool:
    inner = cell[1:-1]
    return (
        len(cell) > 3 and cell[0] == cell[-1] == '"' and '""' in inner and '"' not in inner.replace('""', "")
    )


DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LARGEST_RECORD = 16 << 20
"""Characters of one record: more than a row may have, but little enough to keep in memory."""
FIRST_RECORDS = 200
"""A table's format is recognised from this many lines or records."""
LEAST_ALIKE = 0.8
"""At least this share of CoNLL's lines have as many columns as the others."""
_TAG = re.compile(r"O|[BIESLUM]-\S+")
_REMARKS = ("-DOCSTART-", "# ")
"""CoNLL lines that begin so have no token, except a line such as "# O"."""
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_BLANKS = re.compile(r"[ \t\r]+")
_NAME = re.compile(r"[^\W\d][\w .#-]{0,39}")

csv.field_size_limit(LARGEST_RECORD)


def read_table(
    file: TextFile,
    fits: Fits,
    *,
    conll: Literal["no", "maybe", "likely"],
    header: bool = True,
    spans: Spans | None = None,
    answers: bool = True,
) -> TextTable:
    """Recognise a table's format and return its records. Raises InvalidData.

    fits: whether the given columns are the wanted ones; it decides the delimiter of a CSV file.
    conll: whether lines may be a token and its tag ("likely" if the task is tagging).
    header: False if the first line of a CSV file is a row; its columns are then named 1, 2, ….
    spans: reads spans as rows of tagging; None: they are left as they are.
    answers: whether a tool's records become rows with the answers of people; False: they stay as they are.
    """
    table = _table(file, fits, conll=conll, header=header)
    head = list(itertools.islice(table.records, FIRST_RECORDS))
    values = [record.values for record in head if not record.problem]
    export = export_of(values, fits, answers=answers)
    records = itertools.chain(head, table.records)
    tagged = None if spans is None else spans.table(replace(table, records=records), values, fits, export)
    if tagged is not None:
        return tagged
    if export is None:
        return replace(table, records=records)
    rows = _json(f"{table.form}, {export.said}", _exported(export.merged(records), export))
    return replace(rows, choices=export.choices, notes=export.notes)


def _exported(records: Iterator[TableRecord], export: Export) -> Iterator[TableRecord]:
    """The rows of each record of a tool's export."""
    for record in records:
        if record.problem:
            yield record
            continue
        try:
            for values, left_out in export.rows(record.values):
                yield replace(record, values=values, left_out=left_out)
        except ValueError as error:
            yield replace(record, values={}, problem=str(error))


def _table(file: TextFile, fits: Fits, *, conll: Literal["no", "maybe", "likely"], header: bool) -> TextTable:
    first = file.beginning()
    if first.startswith("["):
        return _json("a JSON list", _json_items(file))
    head = list(itertools.islice(_numbered(file), FIRST_RECORDS))
    if not head and first:
        raise InvalidData(
            f"{file.name} begins with a line that is too long: write one row a line", field=file.field
        )
    if not head:
        raise InvalidData(f"{file.name} holds only blank lines: give rows", field=file.field)
    if first == "{" or (first.startswith("{") and len(head) > 1 and _goes_on(first, head[1][1])):
        return _json("JSON objects of several lines", _json_items(file))
    if first.startswith("{"):
        return _json("JSON, one object a line", _json_lines(file))
    marked = marked_table(file, head, fits, LARGEST_RECORD)
    if marked is not None:
        return _json(*marked)
    width = (
        0 if conll == "no" else conll_width(list(file_lines(file, FIRST_RECORDS)), likely=conll == "likely")
    )
    if width:
        return TextTable("CoNLL, a token and its tag a line", ("tokens", "tags"), _conll(file, width))
    return _csv(file, head[0], fits) if header else _csv_without_header(file, head)


def file_lines(file: TextFile, count: int) -> Iterator[str]:
    return itertools.islice(file.lines(), count)


def conll_width(lines: Sequence[str], *, likely: bool = False) -> int:
    """The number of columns of these lines if they are CoNLL, else 0. The first column is the
    token, the last the tag.

    Tags must be such as B-PER or O. Any tag is accepted in two columns with blank lines between
    texts, if the columns are separated by tabs or CoNLL is `likely`. A few lines may have another number of
    columns, where all others have such a tag.
    """
    used = [line for line in lines if line.strip() and not line.startswith(_REMARKS)]
    rows = [_BLANKS.split(line.strip(" \t\r")) for line in used]
    (width, alike), *others = Counter(map(len, rows)).most_common() or [(0, 0)]
    if alike < LEAST_ALIKE * len(rows) or len(rows) < 2:
        return 0
    entities = all(_TAG.fullmatch(row[-1]) for row in rows if len(row) == width)
    if others and not entities:
        return 0
    blank = any(not line.strip() for line in lines[:-1])
    tabs = all("\t" in line for line in used)
    return width if width >= 2 and (entities or (width == 2 and blank and (tabs or likely))) else 0


def looks_like_csv(lines: Sequence[str], known: Fits) -> tuple[str, ...]:
    """The columns if these lines are CSV, else (). They are CSV if the header is `known`, or if it
    consists of names and all rows have as many cells; otherwise they are running text."""
    lines = [line for line in lines if line.strip()]
    for delimiter in DELIMITERS:
        columns = _cells(lines[0], delimiter) if lines else []
        if len(columns) > 1 and known(columns):
            return tuple(columns)
        # In running text a space follows a comma; in a header hardly ever.
        named = len(columns) > 1 and len(lines) > 4 and all(_NAME.fullmatch(c.rstrip()) for c in columns)
        widths = _widths(lines[1:], delimiter) if named else []
        # The last row may be cut off within a quoted cell.
        if len(widths) > 1 and {*widths[:-1]} == {len(columns)} and widths[-1] <= len(columns):
            return tuple(columns)
    return ()


def _widths(lines: Sequence[str], delimiter: str) -> list[int]:
    """The cells of each row, of which one may have several lines; none if they are no rows of CSV."""
    try:
        return [len(row) for row in csv.reader(lines, delimiter=delimiter)]
    except csv.Error:  # a quote that never closes makes a cell too large
        return []


def _json(form: str, records: Iterator[TableRecord]) -> TextTable:
    head = list(itertools.islice(records, FIRST_RECORDS))
    columns = dict.fromkeys(name for record in head for name in record.values)
    return TextTable(form, tuple(columns), itertools.chain(head, records))


def _goes_on(first: str, second: str) -> bool:
    """Return whether a JSON object that begins in the first line ends in a later one."""
    return bool(_record(1, first, None).problem) and not second.lstrip().startswith("{")


def _json_lines(file: TextFile) -> Iterator[TableRecord]:
    for number, line in _numbered(file):
        yield _record(number, line, None)


def _record(number: int, text: str, item: int | None) -> TableRecord:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return TableRecord(number, {}, f"is not JSON ({_json_problem(error)}): write one object a line", item)
    return _object(number, value, item)


def _object(line: int, value: Any, item: int | None) -> TableRecord:
    """The record of a JSON value that should be an object."""
    value = record_of_pair(value)
    if not isinstance(value, dict):
        return TableRecord(line, {}, f"is {kind_of(value)}, not a JSON object", item)
    if CHAT not in value:
        return TableRecord(line, value, item=item)
    try:
        row, chat = row_of_chat(value)
        return TableRecord(line, row, item=item, chat=chat)
    except ValueError as error:
        return TableRecord(line, {}, str(error), item)


def _json_items(file: TextFile) -> Iterator[TableRecord]:
    """Read the objects of a list, or objects one after another, in pieces. Raises InvalidData for
    bad JSON, since nothing after it can be read."""
    decoder, chunks = json.JSONDecoder(), file.chunks()
    buffer, at, line, item, listed, over = "", 0, 1, 0, False, False
    while True:
        between = _BETWEEN.match(buffer, at)
        start = between.end() if between else at
        line, at = line + buffer.count("\n", at, start), start
        if at < len(buffer) and buffer[at] == "[" and not (listed or item):
            listed, at = True, at + 1
            continue
        if at < len(buffer) and buffer[at] == "]" and listed:
            over, at = True, at + 1
            continue
        problem = "has more after the end of the list" if over else "ends within the list"
        if at < len(buffer) and not over:
            try:
                value, end = decoder.raw_decode(buffer, at)
                item += 1
                yield _object(line, value, item)
                line, at = line + buffer.count("\n", at, end), end
                continue
            except (ValueError, RecursionError) as error:
                problem = f"is not JSON ({_json_problem(error)})"
        more = next(chunks, None) if len(buffer) - at <= LARGEST_RECORD else None
        if more is not None:
            buffer, at = buffer[at:] + more, 0
            continue
        left = at < len(buffer) or (listed and not over)
        if left and (file.whole or len(buffer) - at > LARGEST_RECORD):
            what = f"line {line} of {file.name} {problem}"
            raise InvalidData(
                f"{what}: save the file again, or write one object a line", field=file.field, line=line
            )
        return


def _csv(file: TextFile, header: tuple[int, str], fits: Fits) -> TextTable:
    declared = re.fullmatch(r"sep=(.)", header[1].strip('\ufeff \r\n"')) if header[1] else None
    skipped, line = header
    if declared is not None:
        skipped, line = next(itertools.islice(_numbered(file), 1, None), (skipped, ""))
    ways = [(d, _cells(line, d)) for d in ([declared[1]] if declared else DELIMITERS)]
    fitting = [(d, columns) for d, columns in ways if fits(columns)]
    if len({tuple(columns) for _, columns in fitting}) > 1:
        names = " or ".join(DELIMITERS[d] for d, _ in fitting)
        raise InvalidData(
            f"the columns of {file.name} may be separated by {names}: put column names that contain "
            "one of these into double quotes",
            field=file.field,
            line=skipped,
        )
    delimiter, columns = fitting[0] if fitting else max(ways, key=lambda way: len(way[1]))
    name = DELIMITERS.get(delimiter, f"“{delimiter}”")
    form = f"CSV with {name}" if len(columns) > 1 else "CSV of one column"
    quotes = _Quotes()
    if delimiter == "\t":
        below = ((number, line) for number, line in _numbered(file) if number > skipped)
        quotes = _quotes_of(below, len(columns))
        form += ", double quotes taken literally" * quotes.literal
    return TextTable(form, tuple(columns), _csv_records(file, delimiter, columns, skipped, quotes))


def _csv_without_header(file: TextFile, head: list[tuple[int, str]]) -> TextTable:
    """Rows alone. The delimiter is the one by which most of the first lines have equally many cells, at
    least 2."""

    def most(delimiter: str) -> tuple[int, int]:
        widths = Counter(len(_cells(line, delimiter)) for _, line in head)
        return max(((count, width) for width, count in widths.items() if width > 1), default=(0, 1))

    delimiter = max(DELIMITERS, key=most)
    columns = [str(i + 1) for i in range(most(delimiter)[1])]
    form = f"CSV with {DELIMITERS[delimiter]}, without a header"
    quotes = _quotes_of(_numbered(file), len(columns)) if delimiter == "\t" else _Quotes()
    form += ", double quotes taken literally" * quotes.literal
    return TextTable(form, tuple(columns), _csv_records(file, delimiter, columns, 0, quotes))


def _csv_records(
    file: TextFile, delimiter: str, columns: list[str], header: int, quotes: _Quotes
) -> Iterator[TableRecord]:
    lines = (f"{line}\n" for line in itertools.islice(file.lines(), header, None))
    if quotes.literal:
        reader = csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    else:
        reader = csv.reader(lines, delimiter=delimiter, strict=True)
    before = 0
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            if not file.whole and "unexpected end" in str(error):
                return  # only the file's beginning was read
            raise _bad_csv(file, header + before + 1, str(error), quotes.against()) from error
        number, before = header + before + 1, reader.line_num
        if not any(cell.strip() for cell in cells):
            continue
        spare = [cell for cell in cells[len(columns) :] if cell.strip()]
        if spare or len(cells) < len(columns):
            cure = "put a text that contains the delimiter into double quotes"
            yield TableRecord(
                number,
                {},
                f"has {len(cells)} cells, {'the header' if header else 'others'} {len(columns)}: {cure}",
            )
        else:
            yield TableRecord(number, dict(zip(columns, cells, strict=False)))


def _bad_csv(file: TextFile, line: int, reason: str, against: str) -> InvalidData:
    """The error for what the csv module reported as `reason`."""
    if "unexpected end" in reason or "field limit" in reason:
        what = "opens a double quote that is never closed: close it, or double each quote within a text"
    elif "new-line" in reason:
        what = "has a carriage return within the line: remove it, or put the text into double quotes"
    else:
        reason = reason.replace("'\t'", "a tab")
        what = f"has text after a closing double quote ({reason}): double each quote within a text"
    if against and "new-line" not in reason:
        what += f". Quotes cannot be taken literally here, since {against}"
    return InvalidData(f"line {line} of {file.name} {what}", field=file.field, line=line)


def _conll(file: TextFile, width: int) -> Iterator[TableRecord]:
    words: list[list[str]] = []
    first = 0
    for number, line in enumerate(itertools.chain(file.lines(), [""]), 1):
        cells = _BLANKS.split(line.strip(" \t\r")) if line.strip() else []
        token = line.startswith("# ") and len(cells) == width and (words or _TAG.fullmatch(cells[-1]))
        if cells and (token or not line.startswith(_REMARKS)):
            first = first if words else number
            words.append(cells)
        elif words:
            yield _sentence(first, words, width)
            words = []


def _sentence(first: int, words: list[list[str]], width: int) -> TableRecord:
    """The record of the lines from `first` on. A line with too many columns may have a space in its token."""
    wrong = next((i for i, row in enumerate(words) if len(row) != width), None)
    if wrong is None:
        return TableRecord(first, {"tokens": [row[0] for row in words], "tags": [row[-1] for row in words]})
    found = len(words[wrong])
    what = f"has {found} columns instead of {width}"
    if found == 1:
        alone = "a tag without a token" if _TAG.fullmatch(words[wrong][0]) else "a token without a tag"
        what = f"has {alone}"
    return TableRecord(first, {}, f"{what} in line {first + wrong}: give a token without spaces and its tag")


def _numbered(file: TextFile) -> Iterator[tuple[int, str]]:
    """The lines that are not blank, with their numbers."""
    return ((number, line) for number, line in enumerate(file.lines(), 1) if line.strip())


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _json_problem(error: ValueError | RecursionError) -> str:
    """The error's message without the decoder's line number, which counts from where decoding began."""
    return (
        f"{error.msg} at character {error.colno}" if isinstance(error, json.JSONDecodeError) else str(error)
    )


def kind_of(value: Any) -> str:
    """The kind of a JSON value, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a truth value"
    if isinstance(value, int | float):
        return "a number"
    return "a text" if isinstance(value, str) else "a list" if isinstance(value, list) else "an object"
