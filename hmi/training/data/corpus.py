"""Reads and checks corpora: text with one document a line, or JSON objects with a `text`,
plain or compressed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hmi.errors import InvalidData
from hmi.training.data.meaning.columns import NEEDED, listed
from hmi.training.data.meaning.fields import writable
from hmi.training.data.meaning.guessing import lacks_header
from hmi.training.data.records import TableRecord
from hmi.training.data.tables import (
    FIRST_RECORDS,
    conll_width,
    file_lines,
    kind_of,
    looks_like_csv,
    read_table,
)
from hmi.training.data.text_files import MAX_EXPANDED_BYTES, TextFile, Upload
from hmi.training.data.tools.label_studio import ANNOTATION_ID
from hmi.training.data.tools.marked_lines import is_fasttext, is_rasa

MIN_DOCUMENTS = 2
NAMES = frozenset(name for task, names in NEEDED.items() if task != "generation" for name in names)

_JSON = re.compile(r'\{\s*"|\[\s*(?:\{|\[\s*")|[\[{]$')
"""The beginning of a first line that is JSON, not text."""

ROWS = (NAMES - {"text"}) | {"spans", "entities", "answer", "annotations", "intent", "cats"} | {ANNOTATION_ID}
"""Columns beside `text` that show rows, made to train a model."""
_TRAIN = "to train a model of them, give them to `hmi model create`, as `hmi check FILE` shows"


@dataclass(frozen=True)
class Corpus:
    """A corpus: the format that it was read as (in words), and its documents."""

    read: str
    documents: Iterator[str]
    file: TextFile
    remark: str = ""
    """For the user: that the documents look like rows."""


def open_corpus(
    source: Upload,
    *,
    first: int | None = None,
    limit: int = MAX_EXPANDED_BYTES,
    field: str = "corpus",
    encoding: str | None = None,
) -> Corpus:
    """Open a corpus, or about its `first` bytes. encoding: None if its bytes tell it.

    Raises InvalidData if it is not one (a table, a binary file, empty).
    """
    file = TextFile(source, field, first=first, limit=limit, name=f"the {field}", encoding=encoding)
    if file.empty:
        raise InvalidData(f"the {field} is empty: give text, one document a line", field=field)
    head = list(file_lines(file, FIRST_RECORDS))
    begin = file.beginning()
    if _JSON.match(begin) or _is_list_of_texts(begin):
        return _json(file)
    width = conll_width(head)
    if width:
        raise _corpus_error(
            file,
            f"looks like CoNLL ({width} columns, a token and its tag a line): give sentences, one a line",
        )
    rows = _rows_of(head)
    if rows:
        raise _corpus_error(file, f"looks like {rows}: {_TRAIN}. A corpus is text, one document a line")
    columns = looks_like_csv(
        head, lambda names: {n.strip().casefold() for n in names} <= NAMES | {"id", "", "idx"}
    )
    if columns:
        found = f"looks like CSV with the columns {listed(columns)}"
        raise _corpus_error(
            file,
            f"{found}: a corpus is text, one document a line. Save the column of texts alone, or as "
            'JSON, one object a line: {"text": "…"}',
        )
    return Corpus(f"text, one document a line, {file.encoding}", _documents(file), file)


def read_documents(source: Upload, *, limit: int = MAX_EXPANDED_BYTES) -> Iterator[str]:
    """Yield the documents that are not blank. gzip and zstd are recognised by their first bytes.

    Raises InvalidData (binary, not UTF-8, a table, damaged compression) naming the line, or
    TooLarge past `limit`.
    """
    yield from open_corpus(source, limit=limit).documents


def corpus_as_utf8(source: Path, encoding: str | None, target: Path) -> Path:
    """The corpus itself if its bytes tell its encoding; else a copy at `target` that is UTF-8, which whatever
    reads it needs no encoding for. Raises as `read_documents`."""
    if encoding is None:
        return source
    file = TextFile(source, "corpus", name="the corpus", encoding=encoding)
    with target.open("w", encoding="utf-8", newline="") as out:
        out.writelines(file.chunks())
    return target


def check_corpus(source: Upload, *, first: int | None = None, field: str = "corpus") -> int:
    """Read a corpus once and return its number of documents. Raises as `read_documents`;
    InvalidData also for too few."""
    return count_documents(open_corpus(source, first=first, field=field), field)


def count_documents(corpus: Corpus, field: str = "corpus") -> int:
    """Read a corpus to its end and return its number of documents. Raises as `check_corpus`."""
    documents = sum(1 for _ in corpus.documents)
    if documents < MIN_DOCUMENTS and corpus.file.whole:
        found = "only blank lines" if documents == 0 else "one line only"
        raise InvalidData(
            f"the {field} has {found}: n-grams are counted over documents, so give one document a line "
            f"(at least {MIN_DOCUMENTS})",
            field=field,
        )
    return documents


def _rows_of(lines: list[str]) -> str:
    """What rows these lines are, in words; "" if they are text."""
    used = [line for line in lines if line.strip()]
    if is_fasttext(used):
        return "rows of fastText (labels marked by `__label__`)"
    if is_rasa(used):
        return "rows of Rasa (examples of intents)"
    return "rows of CSV without a header (texts, and labels that recur)" if lacks_header(used) else ""


def _is_list_of_texts(line: str) -> bool:
    if not line.startswith("["):
        return False
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, list) and any(isinstance(item, str) for item in found)


def _documents(file: TextFile) -> Iterator[str]:
    return (text for text in (line.strip() for line in file.lines()) if text)


def _json(file: TextFile) -> Corpus:
    table = read_table(file, lambda _: True, conll="no")
    if "text" not in table.columns:
        found = listed(table.columns) or "none"
        raise _corpus_error(
            file,
            f"was read as {table.form}, and has no `text`: the columns are {found}. Rename the one "
            "that holds the texts, or give text, one document a line",
        )
    unused = [name for name in table.columns if name != "text"]
    left = f"; not used: {listed(unused)}" if unused else ""
    marks = [name for name in unused if name in ROWS]
    remark = f"this looks like rows ({listed(marks)}): {_TRAIN}. As a corpus, only their texts are read"
    read = f"{table.form}, {file.encoding}; documents are its `text`{left}"
    return Corpus(read, _texts(file, table.records), file, remark if marks else "")


def _texts(file: TextFile, records: Iterator[TableRecord]) -> Iterator[str]:
    for record in records:
        text = record.values.get("text")
        if record.problem or not isinstance(text, str):
            problem = record.problem or f"has {kind_of(text)} as `text`, not a text"
            raise InvalidData(
                f"line {record.line} of {file.name} {problem}", field=file.field, line=record.line
            )
        try:
            writable(text, "`text`")
        except ValueError as error:
            raise InvalidData(
                f"line {record.line} of {file.name}: {error}", field=file.field, line=record.line
            ) from error
        if text.strip():
            yield text.strip()


def _corpus_error(file: TextFile, why: str) -> InvalidData:
    return InvalidData(f"{file.name} {why}", field=file.field)
