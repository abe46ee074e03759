"""Reading users' tables: JSON lines, JSON lists, CSV with any usual separator, CoNLL."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hmi.errors import InvalidData
from hmi.training.data.quotes import Quotes, quotes_of
from hmi.training.data.text_files import TextFile

DELIMITERS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
LARGEST_RECORD = 16 << 20
"""Characters of one row, whatever it holds: far beyond what a row may have, and little enough to hold."""
FIRST_RECORDS = 200
"""Lines, or records, by which a table is told."""
_TAG = re.compile(r"O|[BIESLU]-\S+")
_REMARKS = ("-DOCSTART-", "# ")
"""Beginnings of CoNLL lines without a token; "# O", however, is a token."""
_BETWEEN = re.compile(r"[ \t\r\n,]*")
_NAME = re.compile(r"[^\W\d][\w .#-]{0,39}")

csv.field_size_limit(LARGEST_RECORD)


@dataclass(frozen=True)
class TableRecord:
    """One row and where it stands; `problem` where it cannot be read."""

    line: int
    values: dict[str, Any]
    problem: str = ""
    item: int | None = None
    """The row's number in a JSON list, whose line numbers say little."""

    @property
    def place(self) -> str:
        return f"line {self.line}" if self.item is None else f"item {self.item} (line {self.line})"


@dataclass(frozen=True)
class TextTable:
    """A table's form in words, its columns as far as its beginning shows them, and its records."""

    form: str
    columns: tuple[str, ...]
    records: Iterator[TableRecord]


Fits = Callable[[Sequence[str]], bool]


def read_table(file: TextFile, fits: Fits, *, conll: Literal["no", "maybe", "likely"]) -> TextTable:
    """`fits`: whether these columns are what is looked for, by which the delimiter of a CSV file is chosen.

    conll: whether lines may be a token and its tag; "likely" where tags are asked for. Raises InvalidData.
    """
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
    width = (
        0 if conll == "no" else conll_width(list(file_lines(file, FIRST_RECORDS)), likely=conll == "likely")
    )
    if width:
        return TextTable("CoNLL, a token and its tag a line", ("tokens", "tags"), _conll(file, width))
    return _csv(file, head[0], fits)


def file_lines(file: TextFile, count: int) -> Iterator[str]:
    return itertools.islice(file.lines(), count)


def conll_width(lines: Sequence[str], *, likely: bool = False) -> int:
    """How many columns these lines of a CoNLL file have; 0 where they are of none.

    The first is the token and the last the tag: one such as B-PER or O, of two columns with blank
    lines between texts whatever it is, if tabs are between them or such a file is `likely`.
    """
    told = [line for line in lines if line.strip() and not line.startswith(_REMARKS)]
    rows = [line.split() for line in told]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or len(rows) < 2:
        return 0
    width = widths.pop()
    entities = all(_TAG.fullmatch(row[-1]) for row in rows)
    blank = any(not line.strip() for line in lines[:-1])
    tabs = all("\t" in line for line in told)
    return width if width >= 2 and (entities or (width == 2 and blank and (tabs or likely))) else 0


def looks_like_csv(lines: Sequence[str], known: Fits) -> tuple[str, ...]:
    """The columns of what is CSV and no running text: a header that is `known`, or of names, above
    rows as wide."""
    lines = [line for line in lines if line.strip()]
    for delimiter in DELIMITERS:
        columns = _cells(lines[0], delimiter) if lines else []
        if len(columns) > 1 and known(columns):
            return tuple(columns)
        # Behind a comma of running text there is a space, and hardly ever in a header.
        named = len(columns) > 1 and len(lines) > 4 and all(_NAME.fullmatch(c.rstrip()) for c in columns)
        if named and all(len(_cells(line, delimiter)) == len(columns) for line in lines[1:]):
            return tuple(columns)
    return ()


def _json(form: str, records: Iterator[TableRecord]) -> TextTable:
    head = list(itertools.islice(records, FIRST_RECORDS))
    columns = dict.fromkeys(name for record in head for name in record.values)
    return TextTable(form, tuple(columns), itertools.chain(head, records))


def _goes_on(first: str, second: str) -> bool:
    """Whether an object that begins in the first line ends in a later one."""
    return bool(_record(1, first, None).problem) and not second.lstrip().startswith("{")


def _json_lines(file: TextFile) -> Iterator[TableRecord]:
    for number, line in _numbered(file):
        yield _record(number, line, None)


def _record(number: int, text: str, item: int | None) -> TableRecord:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return TableRecord(number, {}, f"is not JSON ({_told(error)}): write one object a line", item)
    if not isinstance(value, dict):
        return TableRecord(number, {}, f"is {kind_of(value)}, not a JSON object", item)
    return TableRecord(number, value, item=item)


def _json_items(file: TextFile) -> Iterator[TableRecord]:
    """The objects of a list, or one after the other, read piece by piece. What follows bad JSON
    cannot be read."""
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
        problem = "has more behind the end of the list" if over else "ends within the list"
        if at < len(buffer) and not over:
            try:
                value, end = decoder.raw_decode(buffer, at)
                item += 1
                wrong = "" if isinstance(value, dict) else f"is {kind_of(value)}, not a JSON object"
                yield TableRecord(line, {} if wrong else value, wrong, item)
                line, at = line + buffer.count("\n", at, end), end
                continue
            except (ValueError, RecursionError) as error:
                problem = f"is not JSON ({_told(error)})"
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
    told = re.fullmatch(r"sep=(.)", header[1].strip('\ufeff \r\n"')) if header[1] else None
    skipped, line = header
    if told is not None:
        skipped, line = next(itertools.islice(_numbered(file), 1, None), (skipped, ""))
    ways = [(d, _cells(line, d)) for d in ([told[1]] if told else DELIMITERS)]
    fitting = [(d, columns) for d, columns in ways if fits(columns)]
    if len({tuple(columns) for _, columns in fitting}) > 1:
        names = " or ".join(DELIMITERS[d] for d, _ in fitting)
        raise InvalidData(
            f"{file.name} may be split at {names}: put names with such a sign into double quotes",
            field=file.field,
            line=skipped,
        )
    delimiter, columns = fitting[0] if fitting else max(ways, key=lambda way: len(way[1]))
    name = DELIMITERS.get(delimiter, f"“{delimiter}”")
    form = f"CSV with {name}" if len(columns) > 1 else "CSV of one column"
    quotes = Quotes()
    if delimiter == "\t":
        below = ((number, line) for number, line in _numbered(file) if number > skipped)
        quotes = quotes_of(below, len(columns))
        form += ", double quotes as they stand" * quotes.as_they_stand
    return TextTable(form, tuple(columns), _csv_records(file, delimiter, columns, skipped, quotes))


def _csv_records(
    file: TextFile, delimiter: str, columns: list[str], header: int, quotes: Quotes
) -> Iterator[TableRecord]:
    lines = (f"{line}\n" for line in itertools.islice(file.lines(), header, None))
    if quotes.as_they_stand:
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
                return  # the rest was not asked for
            raise _bad_csv(file, header + before + 1, str(error), quotes.against()) from error
        number, before = header + before + 1, reader.line_num
        if not any(cell.strip() for cell in cells):
            continue
        spare = [cell for cell in cells[len(columns) :] if cell.strip()]
        if spare or len(cells) < len(columns):
            cure = "put a text that holds the sign between cells into double quotes"
            yield TableRecord(number, {}, f"has {len(cells)} cells, the header {len(columns)}: {cure}")
        else:
            yield TableRecord(number, dict(zip(columns, cells, strict=False)))


def _bad_csv(file: TextFile, line: int, told: str, against: str) -> InvalidData:
    if "unexpected end" in told or "field limit" in told:
        what = (
            "opens a double quote that is never closed: close it, or write a double quote within a "
            "text as two"
        )
    elif "new-line" in told:
        what = "has a carriage return that ends no line: put the text into double quotes, or take it out"
    else:
        told = told.replace("'\t'", "a tab")
        what = f"has text behind a closing double quote ({told}): write a double quote within a text as two"
    if against and "new-line" not in told:
        what += f". It cannot be taken as it stands, since {against}"
    return InvalidData(f"line {line} of {file.name} {what}", field=file.field, line=line)


def _conll(file: TextFile, width: int) -> Iterator[TableRecord]:
    words: list[list[str]] = []
    first = 0
    for number, line in enumerate(itertools.chain(file.lines(), [""]), 1):
        cells = line.split()
        token = line.startswith("# ") and len(cells) == width and _TAG.fullmatch(cells[-1])
        if cells and (token or not line.startswith(_REMARKS)):
            first = first if words else number
            words.append(cells)
        elif words:
            yield _sentence(first, words, width)
            words = []


def _sentence(first: int, words: list[list[str]], width: int) -> TableRecord:
    """The record of the lines from `first` on; what has other columns may be a token with a space in it."""
    wrong = next((i for i, row in enumerate(words) if len(row) != width), None)
    if wrong is None:
        return TableRecord(first, {"tokens": [row[0] for row in words], "tags": [row[-1] for row in words]})
    found = len(words[wrong])
    what = "has a token without a tag" if found < 2 else f"has {found} columns instead of {width}"
    return TableRecord(first, {}, f"{what} in line {first + wrong}: give a token without spaces and its tag")


def _numbered(file: TextFile) -> Iterator[tuple[int, str]]:
    """Lines that are not blank, by number."""
    return ((number, line) for number, line in enumerate(file.lines(), 1) if line.strip())


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []


def _told(error: ValueError | RecursionError) -> str:
    """The message without the decoder's line number, which counts from where the decoder began."""
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
