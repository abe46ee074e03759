"""Files as people have them, and what each gets; `python -m tests.hmi.forty_files` prints the table for the
docs."""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass

from hmi.core import Task
from hmi.jobs.checks import inspect_file

TEXTS = ("Das Gerät fällt aus", "Alles läuft", "Café zu, schade", "Gern wieder", "Zu spät", "Très bien")
LABELS = ("bad", "good")
ROWS = [(text, LABELS[i % 2]) for i, text in enumerate(TEXTS)]
WORDS = (("EU", "B-ORG"), ("rejects", "O"), ("German", "B-MISC"), ("call", "O"))


@dataclass(frozen=True)
class File:
    """One file: its name, what somebody did to get it, its bytes, and what it is given for (None: as it
    tells)."""

    name: str
    made: str
    data: bytes
    use: Task | None
    expected: str
    """A part of the result; "accepted" if a job accepts the file."""
    corpus: bool = False


def table(delimiter: str = ",", header: str = "text,label", rows: list[tuple[str, ...]] | None = None) -> str:
    lines = [header.replace(",", delimiter)]
    for row in rows if rows is not None else ROWS:
        lines.append(delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row))
    return "\r\n".join(lines) + "\r\n"


def jsonl(rows: list[dict[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def objects(text: str = "text", label: str = "label") -> list[dict[str, object]]:
    return [{text: t, label: l} for t, l in ROWS]  # noqa: E741


def xlsx() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
        book.writestr("xl/workbook.xml", "<workbook/>")
    return out.getvalue()


def conll(between: str = " ", columns: int = 2) -> str:
    middle = ["NN", "I-NP"][: columns - 2]
    sentence = "".join(between.join([word, *middle, tag]) + "\n" for word, tag in WORDS)
    return "-DOCSTART- -X- O O\n\n" * (columns == 4) + f"{sentence}\n" * 5


def pairs(first: str = "text", second: str = "text_pair") -> str:
    return jsonl([{first: t, second: t[::-1], "label": l} for t, l in ROWS])  # noqa: E741


def with_row(row: str) -> bytes:
    return (jsonl(objects()) + row + "\n").encode()


def files() -> Iterator[File]:
    yield from _encodings()
    yield from _tables()
    yield from _quotes()
    yield from _json()
    yield from _labels()
    yield from _others()
    yield from _corpora()


def _encodings() -> Iterator[File]:
    c: Task = "classification"
    yield File("utf8.csv", "CSV in UTF-8", table().encode(), c, "accepted")
    yield File("excel-utf8.csv", "Excel: CSV UTF-8", table().encode("utf-8-sig"), c, "accepted")
    yield File(
        "excel-utf8-de.csv", "the same in German", table(";").encode("utf-8-sig"), c, "CSV with semicolons"
    )
    yield File(
        "excel-ansi.csv",
        "Excel: CSV (Windows-1252)",
        table(";").encode("cp1252"),
        c,
        "0xE4, which looks like",
    )
    yield File(
        "excel-unicode.txt", "Excel: Unicode text", table("\t").encode("utf-16"), c, "CSV with tabs, UTF-16"
    )
    yield File(
        "utf16-bare.csv", "UTF-16 without a mark", table().encode("utf-16-le"), c, "UTF-16 without a mark"
    )
    yield File("mac.csv", "Excel: CSV (Macintosh)", table().replace("\r\n", "\r").encode(), c, "accepted")
    yield File("packed.csv.gz", "CSV, gzip", gzip.compress(table().encode()), c, "accepted")
    yield File(
        "cut.csv.gz",
        "the same, half uploaded",
        gzip.compress(table().encode() * 99)[:-9],
        c,
        "cannot be decompressed",
    )
    yield File(
        "marked.jsonl",
        "JSON lines with a byte-order mark",
        jsonl(objects()).encode("utf-8-sig"),
        c,
        "accepted",
    )


def _tables() -> Iterator[File]:
    c: Task = "classification"
    yield File("tabs.tsv", "tabs", table("\t").encode(), c, "CSV with tabs")
    yield File("sep.csv", "Excel's line sep=;", f"sep=;\r\n{table(';')}".encode(), c, "CSV with semicolons")
    yield File(
        "names.csv",
        "columns review, sentiment",
        table(header="review,sentiment").encode(),
        c,
        "`review` is the text; `sentiment` is the label",
    )
    yield File(
        "capitals.csv", "columns Text, LABEL", table(header="Text,LABEL").encode(), c, "`Text` is the text"
    )
    more = [(str(i), text, label) for i, (text, label) in enumerate(ROWS)]
    yield File(
        "pandas.csv", "pandas, with its index", table(header=",text,label", rows=more).encode(), c, "accepted"
    )
    yield File(
        "id.csv", "a column id", table(header="id,text,label", rows=more).encode(), c, "not used: `id`"
    )
    yield File(
        "strange.csv",
        "columns foo, bar",
        table(header="foo,bar").encode(),
        c,
        "Rename the one that is the text",
    )
    yield File(
        "strange-too.csv",
        "the same, with no task given",
        table(header="foo,bar").encode(),
        None,
        "Rename the one",
    )
    both = [(text, text, label) for text, label in ROWS]
    yield File(
        "two-texts.csv",
        "columns review, comment, label",
        table(header="review,comment,label", rows=both).encode(),
        c,
        "could be the `text`",
    )
    yield File("headless.csv", "no header", table(header=",".join(ROWS[1])).encode(), c, "`text` is missing")
    yield File(
        "twice.csv",
        "two columns label",
        table(header="text,label,label", rows=both).encode(),
        c,
        "2 columns are named `label`",
    )
    yield File(
        "unquoted.csv",
        "commas in texts, not quoted",
        table().replace('"', "").encode(),
        c,
        "line 4: has 3 cells, the header 2",
    )
    yield File(
        "open-quote.csv",
        "a double quote that stays open",
        table().replace("Gern", '"Gern').encode(),
        c,
        "line 5 of the file opens a double quote that is never closed",
    )
    wide = table(rows=[*ROWS, ("x" * 200_000, "bad")])
    yield File("wide.csv", "a cell of 200,000 characters", wide.encode(), c, "accepted")
    yield File(
        "blank-rows.csv", "blank rows, as Excel leaves them", (table() + ",\r\n" * 9).encode(), c, "accepted"
    )
    yield File("header.csv", "a header alone", b"text,label\n", c, "no rows: give at least 4")
    yield File(
        "lists.csv",
        "tags in a cell",
        b'tokens,tags\n"[""a""]","[""O""]"\n' * 5,
        "tagging",
        "a CSV cell cannot hold a list",
    )


def _quotes() -> Iterator[File]:
    c: Task = "classification"
    lone = table("\t").replace("Gern", '"Gern')
    yield File(
        "glue.tsv", "tabs, a lone double quote in a text", lone.encode(), c, "double quotes taken literally"
    )
    swallowed = lone.replace("Très bien", 'Très bien"')
    yield File(
        "glue-two.tsv",
        "the same, with another one lines below",
        swallowed.encode(),
        c,
        "6 rows of the task classification, 2 labels; CSV with tabs, double quotes taken literally",
    )
    excel = table("\t").replace("Gern wieder", '"Gern\n""wieder"""')
    yield File(
        "excel-quotes.tsv",
        "Excel: quotes, and a text of two lines",
        excel.encode(),
        c,
        "6 rows of the task classification, 2 labels; CSV with tabs, UTF-8",
    )
    mixed = lone.replace("Zu spät", '"Zu ""spät"""')
    yield File(
        "quotes-mixed.tsv",
        "a lone quote, and cells quoted as CSV does",
        mixed.encode(),
        c,
        "Quotes cannot be taken literally here, since line 6 quotes a cell as CSV does",
    )
    wide = lone.replace("Zu spät", "Zu\tspät")
    yield File(
        "quotes-tabs.tsv",
        "a lone quote, and a tab in a text",
        wide.encode(),
        c,
        "since line 6 has 3 cells when split at each tab",
    )
    both = [(str(i), t, t[::-1], f"{i}.5") for i, t in enumerate(TEXTS)]
    stsb = table("\t", "index,sentence1,sentence2,score", both).replace("Gern", '"Gern')
    yield File(
        "stsb.tsv",
        "STS-B, with no task given",
        stsb.encode(),
        None,
        "rows of the task regression; CSV with tabs, double quotes taken literally",
    )
    yield File(
        "stsb-pairs.tsv", "the same, as pairs with labels", stsb.encode(), "pair", "Give --task regression"
    )
    three = table("\t", "sentence,sentence1,sentence2,score", both)
    yield File(
        "three-texts.tsv",
        "columns sentence, sentence1, sentence2, score",
        three.encode(),
        "regression",
        "2 columns could be the `text` (`sentence1`, `sentence`)",
    )


def _json() -> Iterator[File]:
    c: Task = "classification"
    yield File("list.json", "a JSON list", json.dumps(objects()).encode(), c, "a JSON list")
    yield File(
        "pretty.json", "a pretty JSON list", json.dumps(objects(), indent=2).encode(), c, "a JSON list"
    )
    pretty = "\n".join(json.dumps(row, indent=2) for row in objects())
    yield File(
        "pretty.jsonl",
        "pretty objects, one after the other",
        pretty.encode(),
        c,
        "JSON objects of several lines",
    )
    columns = {"text": [t for t, _ in ROWS], "label": [label for _, label in ROWS]}
    yield File("columns.json", "pandas: to_json", json.dumps(columns).encode(), c, "give one object a row")
    yield File(
        "cut.json", "a JSON list, cut off", json.dumps(objects()).encode()[:-9], c, "save the file again"
    )
    yield File(
        "broken.jsonl",
        "one line that is no JSON",
        with_row('{"text": "a", "label": '),
        c,
        "line 7: is not JSON",
    )
    yield File("pairs.jsonl", "pairs, without --task pair", pairs().encode(), c, "give --task pair")
    yield File(
        "nli.jsonl",
        "premise and hypothesis",
        pairs("premise", "hypothesis").encode(),
        "pair",
        "`hypothesis` is the text_pair",
    )
    yield File(
        "pairs-as-told.jsonl", "the same, with no task given", pairs().encode(), None, "rows of the task pair"
    )
    tags = jsonl([{"tokens": [w for w, _ in WORDS], "tags": [t for _, t in WORDS]}] * 6)
    yield File("tags.jsonl", "tokens and tags, without --task", tags.encode(), c, "Give --task tagging")


def _labels() -> Iterator[File]:
    c: Task = "classification"
    yield File("empty.csv", "nothing", b"", c, "is empty")
    yield File("blank.csv", "blank lines", b"\n \n\n", c, "only blank lines")
    yield File(
        "one-label.csv", "one label", table(rows=[(t, "bad") for t in TEXTS]).encode(), c, "same label 'bad'"
    )
    yield File(
        "no-label.csv",
        "a label of spaces",
        (table() + "Na ja,  \r\n").encode(),
        c,
        "line 8: `label` is missing",
    )
    numbers = [{"text": t, "label": v} for t, v in zip(TEXTS, (1, "1", 1.0, 0, "0", 0.0), strict=True)]
    yield File("numbers.jsonl", '1, "1" and 1.0', jsonl(numbers).encode(), c, "2 labels")
    yield File(
        "nan.jsonl", "a label NaN", with_row('{"text": "a", "label": NaN}'), c, "line 7: `label` is NaN"
    )
    yield File(
        "nan.csv",
        "a label nan",
        (table() + "Na ja,nan\r\nNa so,nan\r\n").encode(),
        c,
        "`nan` was read as a label",
    )
    yield File(
        "alike.csv",
        "labels bad and Bad",
        (table() + "Na ja,Bad\r\nNa so,Bad\r\n").encode(),
        c,
        "count as different",
    )
    yield File(
        "truth.jsonl",
        "labels true and false",
        jsonl([{"text": t, "label": i > 2} for i, t in enumerate(TEXTS)]).encode(),
        c,
        "accepted",
    )
    values = table(header="text;value", rows=[(f"{t}", f"{i},5") for i, t in enumerate(TEXTS)], delimiter=";")
    yield File(
        "commas.csv", "decimal commas", values.encode(), "regression", "write the decimal point as a point"
    )
    ids = table(rows=[(text, str(i)) for i, text in enumerate(TEXTS)])
    yield File("ids.csv", "a label for each row", ids.encode(), c, "at least two rows of a label")


def _others() -> Iterator[File]:
    yield File("conll.txt", "CoNLL, two columns", conll().encode(), "tagging", "CoNLL")
    yield File("conll.tsv", "CoNLL, tabs", conll("\t").encode(), None, "rows of the task tagging")
    yield File("conll2003.txt", "CoNLL 2003, four columns", conll(columns=4).encode(), "tagging", "CoNLL")
    words = "".join(f"{w} {t}\n" for w, t in (("It", "PRP"), ("rains", "VBZ"), ("now", "RB"))) + "\n"
    yield File("words.txt", "CoNLL, parts of speech", (words * 5).encode(), "tagging", "CoNLL")
    yield File("book.xlsx", "Excel: a workbook", xlsx(), "classification", "save the sheet as “CSV UTF-8”")
    yield File(
        "book.xls",
        "Excel: an old workbook",
        b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99),
        "classification",
        "an old Office file",
    )
    yield File("rows.parquet", "Parquet", b"PAR1" + bytes(99) + b"PAR1", "classification", "a Parquet file")
    yield File(
        "zero.csv",
        "a zero byte",
        table().replace("Gern", "Ge\0rn").encode(),
        "classification",
        "line 5 of the file holds a zero byte",
    )
    yield File(
        "prose.txt", "plain text as rows", "\n".join(TEXTS).encode(), "classification", "`text` is missing"
    )


def _corpora() -> Iterator[File]:
    yield File(
        "corpus.txt", "text", "\n".join(TEXTS).encode(), None, "text, one document a line", corpus=True
    )
    yield File(
        "corpus.jsonl",
        "JSON with a text",
        jsonl(objects()).encode(),
        None,
        "documents are its `text`",
        corpus=True,
    )
    other = jsonl([{"body": text} for text in TEXTS])
    yield File("bodies.jsonl", "JSON without a text", other.encode(), None, "has no `text`", corpus=True)
    yield File(
        "corpus.csv",
        "CSV",
        table().encode(),
        None,
        "looks like CSV with the columns `text`, `label`",
        corpus=True,
    )
    yield File("corpus.conll", "CoNLL", conll().encode(), None, "give sentences", corpus=True)
    yield File("corpus.parquet", "Parquet", b"PAR1" + bytes(99), None, "a Parquet file", corpus=True)
    yield File(
        "word.docx", "Word", xlsx().replace(b"xl/", b"word/"), None, "save it as plain text", corpus=True
    )
    yield File(
        "one-line.txt", "all in one line", " ".join(TEXTS).encode(), None, "one line only", corpus=True
    )


def told(file: File) -> str:
    """What a user gets to read of it."""
    found = inspect_file(file.data, file.use, corpus=file.corpus)
    if found.error is not None:
        return f"refused: {found.error}"
    what = (
        f"{found.count} documents"
        if found.kind == "corpus"
        else f"{found.count} rows of the task {found.task}"
    )
    labels = f", {len(found.labels)} labels" if found.labels else ""
    notes = "".join(f". Note: {note}" for note in found.notes)
    return f"accepted: {what}{labels}; {found.read}{notes}"


def page() -> str:
    """The table as a page of the docs."""
    lines = [f"| `{f.name}` | {f.made} | {_as(f)} | {told(f).replace('|', '&#124;')} |" for f in files()]
    return "\n".join([HEAD, *lines, ""])


def _as(file: File) -> str:
    return "a corpus" if file.corpus else file.use or "none given"


HEAD = """# Files as users have them

What `hmi check` prints for each file. A call that starts a job makes the same check first. \
`python -m tests.hmi.forty_files` generates this page, and `tests/hmi/test_forty_files.py` compares it.

| file | origin | checked as | result |
|---|---|---|---|"""

if __name__ == "__main__":
    sys.stdout.write(page())
