"""Files as people have them, and what `hmi check` says of each.

`python -m tests.hmi.data.forty_files` prints the page docs/benchmarks/2026-11-forty-files.md.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from hmi.cli.framework.reading import as_arguments
from hmi.core import Task
from hmi.jobs.checks import inspect_file
from tests.hmi.labs.span_files import FORMS, LISTS, TEXT, lines
from tests.hmi.labs.span_files import objects as spans_of
from tests.hmi.labs.tool_files import EXPORTS, FLAGS, HEADLESS, SEVERAL
from tests.hmi.labs.tool_files import ROWS as TOLD

TEXTS = ("Das Gerät fällt aus", "Alles läuft", "Café zu, schade", "Gern wieder", "Zu spät", "Très bien")
LABELS = ("bad", "good")
ROWS = [(text, LABELS[i % 2]) for i, text in enumerate(TEXTS)]
WORDS = (("EU", "B-ORG"), ("rejects", "O"), ("German", "B-MISC"), ("call", "O"))


@dataclass(frozen=True)
class File:
    name: str
    made: str
    """How the file came about."""
    data: bytes
    expected: str
    """A part of what `hmi check` says; "accepted" where the file is accepted."""
    use: Task | None
    """The task that the rows are given for; None where the file itself must show it."""
    corpus: bool = False


def rows(
    name: str, made: str, data: str | bytes, expected: str = "accepted", use: Task | None = "classification"
) -> File:
    """A file of rows; text is written as UTF-8."""
    return File(name, made, data.encode() if isinstance(data, str) else data, expected, use)


def corpus(name: str, made: str, data: str | bytes, expected: str) -> File:
    """A file of documents; text is written as UTF-8."""
    return File(name, made, data.encode() if isinstance(data, str) else data, expected, None, corpus=True)


def table(
    delimiter: str = ",", header: str = "text,label", cells: list[tuple[str, ...]] | None = None
) -> str:
    """CSV as Excel writes it: lines end in CR LF, and only cells that hold the delimiter are quoted."""
    lines = [header.replace(",", delimiter)]
    for row in cells if cells is not None else ROWS:
        lines.append(delimiter.join(f'"{cell}"' if delimiter in cell else cell for cell in row))
    return "\r\n".join(lines) + "\r\n"


def jsonl(rows: Sequence[Mapping[str, object]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def objects() -> list[dict[str, object]]:
    return [{"text": text, "label": label} for text, label in ROWS]


def xlsx() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as book:
        book.writestr("[Content_Types].xml", "<Types/>")
        book.writestr("xl/workbook.xml", "<workbook/>")
    return out.getvalue()


def conll(between: str = " ", columns: int = 2) -> str:
    """Five times the sentence WORDS; with four columns, as CoNLL 2003 has them."""
    middle = ["NN", "I-NP"][: columns - 2]
    sentence = "".join(between.join([word, *middle, tag]) + "\n" for word, tag in WORDS)
    return "-DOCSTART- -X- O O\n\n" * (columns == 4) + f"{sentence}\n" * 5


def pairs(first: str = "text", second: str = "text_pair") -> str:
    return jsonl([{first: text, second: text[::-1], "label": label} for text, label in ROWS])


def with_row(row: str) -> str:
    return jsonl(objects()) + row + "\n"


def files() -> Iterator[File]:
    yield from _encodings()
    yield from _tables()
    yield from _quotes()
    yield from _json()
    yield from _labels()
    yield from _others()
    yield from _corpora()
    yield from _tools()


def _encodings() -> Iterator[File]:
    semicolons = table(";")
    yield rows("utf8.csv", "CSV in UTF-8", table())
    yield rows("excel-utf8.csv", "Excel: CSV UTF-8", table().encode("utf-8-sig"))
    marked = semicolons.encode("utf-8-sig")
    yield rows("excel-utf8-de.csv", "the same in German", marked, "CSV with semicolons")
    ansi = semicolons.encode("cp1252")
    yield rows(
        "excel-ansi.csv", "Excel: CSV (Windows-1252)", ansi, "CSV with semicolons, Windows-1252, by its bytes"
    )
    few = table(cells=[("Er ist né", "a"), ("one", "b"), ("two", "a"), ("three", "b")]).encode("cp1252")
    yield rows("ansi-doubt.csv", "the same, of one word that tells", few, "--encoding windows-1252")
    russian = [("Заказ пришёл вовремя", "да"), ("Очень долго ждал ответа поддержки", "нет")]
    bare16 = table(cells=russian * 3).encode("utf-16-be")
    yield rows("utf16-russian.csv", "UTF-16 without a mark, in Russian", bare16, "UTF-16 without a mark")
    bare16 = table(cells=[("这个产品非常好，一直都很喜欢", "好"), ("物流太慢了", "不好")] * 3).encode(
        "utf-16-le"
    )
    yield rows("utf16-chinese.csv", "the same, in Chinese", bare16, "UTF-16 without a mark")
    unicode = table("\t").encode("utf-16")
    yield rows("excel-unicode.txt", "Excel: Unicode text", unicode, "CSV with tabs, UTF-16")
    bare = table().encode("utf-16-le")
    yield rows("utf16-bare.csv", "UTF-16 without a mark", bare, "UTF-16 without a mark")
    yield rows("mac.csv", "Excel: CSV (Macintosh)", table().replace("\r\n", "\r"))
    yield rows("packed.csv.gz", "CSV, gzip", gzip.compress(table().encode()))
    cut = gzip.compress(table().encode() * 99)[:-9]
    yield rows("cut.csv.gz", "the same, half uploaded", cut, "cannot be decompressed")
    yield rows("marked.jsonl", "JSON lines with a byte-order mark", jsonl(objects()).encode("utf-8-sig"))


def _tables() -> Iterator[File]:
    yield rows("tabs.tsv", "tabs", table("\t"), "CSV with tabs")
    yield rows("sep.csv", "Excel's line sep=;", f"sep=;\r\n{table(';')}", "CSV with semicolons")
    read_as = "`review` is the text; `sentiment` is the label"
    yield rows("names.csv", "columns review, sentiment", table(header="review,sentiment"), read_as)
    yield rows("capitals.csv", "columns Text, LABEL", table(header="Text,LABEL"), "`Text` is the text")
    more = [(str(i), text, label) for i, (text, label) in enumerate(ROWS)]
    yield rows("pandas.csv", "pandas, with its index", table(header=",text,label", cells=more))
    yield rows("id.csv", "a column id", table(header="id,text,label", cells=more), "not used: `id`")
    strange = table(header="foo,bar")
    yield rows("strange.csv", "columns foo, bar", strange, "Rename the one that is the text")
    yield rows("strange-too.csv", "the same, with no task given", strange, "Rename the one", None)
    both = [(text, text, label) for text, label in ROWS]
    texts = table(header="review,comment,label", cells=both)
    yield rows("two-texts.csv", "columns review, comment, label", texts, "could be the `text`")
    yield rows("headless.csv", "no header", table(header=",".join(ROWS[1])), "`text` is missing")
    twice = table(header="text,label,label", cells=both)
    yield rows("twice.csv", "two columns label", twice, "2 columns are named `label`")
    unquoted = table().replace('"', "")
    yield rows("unquoted.csv", "commas in texts, not quoted", unquoted, "line 4: has 3 cells, the header 2")
    never = "line 5 of the file opens a double quote that is never closed"
    yield rows("open-quote.csv", "a double quote that stays open", table().replace("Gern", '"Gern'), never)
    yield rows("wide.csv", "a cell of 200,000 characters", table(cells=[*ROWS, ("x" * 200_000, "bad")]))
    yield rows("blank-rows.csv", "blank rows, as Excel leaves them", table() + ",\r\n" * 9)
    yield rows("header.csv", "a header alone", "text,label\n", "no rows: give at least 4")
    lists = 'tokens,tags\n"[""a""]","[""O""]"\n' * 5
    yield rows("lists.csv", "tags in a cell", lists, "a CSV cell cannot hold a list", "tagging")


def _quotes() -> Iterator[File]:
    lone = table("\t").replace("Gern", '"Gern')
    yield rows("glue.tsv", "tabs, a lone double quote in a text", lone, "double quotes taken literally")
    read_as = "6 rows of the task classification, 2 labels; CSV with tabs, "
    swallowed = lone.replace("Très bien", 'Très bien"')
    literally = f"{read_as}double quotes taken literally"
    yield rows("glue-two.tsv", "the same, with another one lines below", swallowed, literally)
    excel = table("\t").replace("Gern wieder", '"Gern\n""wieder"""')
    yield rows("excel-quotes.tsv", "Excel: quotes, and a text of two lines", excel, f"{read_as}UTF-8")
    mixed = lone.replace("Zu spät", '"Zu ""spät"""')
    line_6 = "Quotes cannot be taken literally here, since line 6 quotes a cell as CSV does"
    yield rows("quotes-mixed.tsv", "a lone quote, and cells quoted as CSV does", mixed, line_6)
    wide = lone.replace("Zu spät", "Zu\tspät")
    line_6 = "since line 6 has 3 cells when split at each tab"
    yield rows("quotes-tabs.tsv", "a lone quote, and a tab in a text", wide, line_6)
    both = [(str(i), t, t[::-1], f"{i}.5") for i, t in enumerate(TEXTS)]
    stsb = table("\t", "index,sentence1,sentence2,score", both).replace("Gern", '"Gern')
    read_as = "rows of the task regression; CSV with tabs, double quotes taken literally"
    yield rows("stsb.tsv", "STS-B, with no task given", stsb, read_as, None)
    yield rows("stsb-pairs.tsv", "the same, as pairs with labels", stsb, "Give --task regression", "pair")
    three = table("\t", "sentence,sentence1,sentence2,score", both)
    two = "2 columns could be the `text` (`sentence1`, `sentence`)"
    yield rows("three-texts.tsv", "columns sentence, sentence1, sentence2, score", three, two, "regression")


def _json() -> Iterator[File]:
    yield rows("list.json", "a JSON list", json.dumps(objects()), "a JSON list")
    yield rows("pretty.json", "a pretty JSON list", json.dumps(objects(), indent=2), "a JSON list")
    pretty = "\n".join(json.dumps(row, indent=2) for row in objects())
    lines = "JSON objects of several lines"
    yield rows("pretty.jsonl", "pretty objects, one after the other", pretty, lines)
    columns = {"text": [text for text, _ in ROWS], "label": [label for _, label in ROWS]}
    yield rows("columns.json", "pandas: to_json", json.dumps(columns), "give one object a row")
    yield rows("cut.json", "a JSON list, cut off", json.dumps(objects())[:-9], "save the file again")
    broken = with_row('{"text": "a", "label": ')
    yield rows("broken.jsonl", "one line that is no JSON", broken, "line 7: is not JSON")
    yield rows("pairs.jsonl", "pairs, without --task pair", pairs(), "give --task pair")
    nli = pairs("premise", "hypothesis")
    yield rows("nli.jsonl", "premise and hypothesis", nli, "`hypothesis` is the text_pair", "pair")
    yield rows("pairs-as-told.jsonl", "the same, with no task given", pairs(), "rows of the task pair", None)
    tags = jsonl([{"tokens": [w for w, _ in WORDS], "tags": [t for _, t in WORDS]}] * 6)
    yield rows("tags.jsonl", "tokens and tags, without --task", tags, "Give --task tagging")


def _labels() -> Iterator[File]:
    yield rows("empty.csv", "nothing", "", "is empty")
    yield rows("blank.csv", "blank lines", "\n \n\n", "only blank lines")
    same = table(cells=[(text, "bad") for text in TEXTS])
    yield rows("one-label.csv", "one label", same, "same label 'bad'")
    spaces = table() + "Na ja,  \r\n"
    yield rows("no-label.csv", "a label of spaces", spaces, "line 8: `label` is missing")
    values = (1, "1", 1.0, 0, "0", 0.0)
    numbers = jsonl([{"text": text, "label": v} for text, v in zip(TEXTS, values, strict=True)])
    yield rows("numbers.jsonl", '1, "1" and 1.0', numbers, "2 labels")
    nan = with_row('{"text": "a", "label": NaN}')
    yield rows("nan.jsonl", "a label NaN", nan, "line 7: `label` is NaN")
    nan = table() + "Na ja,nan\r\nNa so,nan\r\n"
    yield rows("nan.csv", "a label nan", nan, "`nan` was read as a label")
    alike = table() + "Na ja,Bad\r\nNa so,Bad\r\n"
    yield rows("alike.csv", "labels bad and Bad", alike, "count as different")
    truth = jsonl([{"text": text, "label": i > 2} for i, text in enumerate(TEXTS)])
    yield rows("truth.jsonl", "labels true and false", truth)
    decimals = table(";", "text,value", [(text, f"{i},5") for i, text in enumerate(TEXTS)])
    point = "write the decimal point as a point"
    yield rows("commas.csv", "decimal commas", decimals, point, "regression")
    ids = table(cells=[(text, str(i)) for i, text in enumerate(TEXTS)])
    yield rows("ids.csv", "a label for each row", ids, "at least two rows of a label")


def _others() -> Iterator[File]:
    yield rows("conll.txt", "CoNLL, two columns", conll(), "CoNLL", "tagging")
    yield rows("conll.tsv", "CoNLL, tabs", conll("\t"), "rows of the task tagging", None)
    yield rows("conll2003.txt", "CoNLL 2003, four columns", conll(columns=4), "CoNLL", "tagging")
    words = "It PRP\nrains VBZ\nnow RB\n\n" * 5
    yield rows("words.txt", "CoNLL, parts of speech", words, "CoNLL", "tagging")
    yield rows("book.xlsx", "Excel: a workbook", xlsx(), "save the sheet as “CSV UTF-8”")
    old = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(99)
    yield rows("book.xls", "Excel: an old workbook", old, "an old Office file")
    yield rows("rows.parquet", "Parquet", b"PAR1" + bytes(99) + b"PAR1", "a Parquet file")
    zero = table().replace("Gern", "Ge\0rn")
    yield rows("zero.csv", "a zero byte", zero, "line 5 of the file holds a zero byte")
    yield rows("prose.txt", "plain text as rows", "\n".join(TEXTS), "`text` is missing")


def _corpora() -> Iterator[File]:
    yield corpus("corpus.txt", "text", "\n".join(TEXTS), "text, one document a line")
    yield corpus("corpus.jsonl", "JSON with a text", jsonl(objects()), "documents are its `text`")
    bodies = jsonl([{"body": text} for text in TEXTS])
    yield corpus("bodies.jsonl", "JSON without a text", bodies, "has no `text`")
    yield corpus("corpus.csv", "CSV", table(), "looks like CSV with the columns `text`, `label`")
    yield corpus("corpus.conll", "CoNLL", conll(), "give sentences")
    yield corpus("corpus.parquet", "Parquet", b"PAR1" + bytes(99), "a Parquet file")
    yield corpus("word.docx", "Word", xlsx().replace(b"xl/", b"word/"), "save it as plain text")
    yield corpus("one-line.txt", "all in one line", " ".join(TEXTS), "one line only")


def _tools() -> Iterator[File]:
    for tool, (data, expected) in EXPORTS.items():
        yield rows(_named(tool), f"{tool}: one label a text", data, expected, None)
    for tool, data in SEVERAL.items():
        said = "rows of the task multilabel, 4 labels"
        yield rows(_named(tool, "-several"), f"{tool}: several labels a text", data, said, None)
    yield rows("flags.csv", "a column a label, with 1 and 0", FLAGS, "--labels-columns toxic,threat", None)
    yield rows(
        "ag-news.csv",
        "label, title, body without a header",
        HEADLESS,
        "--text-column 2 --text-column 3 --label-column 1 --no-header",
        None,
    )
    numbers = jsonl([{"tokens": ["to", "Rome"], "ner_tags": [0, 1]}] * 5)
    yield rows("ner-numbers.jsonl", "datasets: tags as integers", numbers, "--labels O,B-PER", None)
    decided = [{"text": t, "label": a, "answer": "reject"} for t, a in TOLD]
    prodigy = jsonl([{"text": t, "label": a, "answer": "accept"} for t, a in TOLD] + decided)
    yield rows(
        "prodigy.jsonl", "Prodigy: accepted and rejected", prodigy, "accepted 6 rows, rejected 6", None
    )
    twice = table(cells=[*TOLD, *((t, "other") for t, _ in TOLD)])
    yield rows("two-ways.csv", "each text under two labels", twice, "could answer at most 50%", None)
    yield corpus("fasttext-corpus.txt", "fastText", EXPORTS["fastText"][0], "looks like rows of fastText")
    yield corpus("nlu-corpus.yml", "Rasa", EXPORTS["Rasa"][0], "looks like rows of Rasa")
    yield corpus(
        "ag-news-corpus.csv", "CSV without a header", HEADLESS, "looks like rows of CSV without a header"
    )
    yield from _spans()
    spans = jsonl([{"text": t, "spans": []} for t, _ in TOLD])
    yield corpus("spans-corpus.jsonl", "texts with spans", spans, "Note: this looks like rows (`spans`)")


def _spans() -> Iterator[File]:
    for tool, (row, expected) in FORMS.items():
        name = tool.replace(", ", "-").replace(" ", "-").replace("'", "")
        yield rows(f"spans-{name}.jsonl", f"{tool}: spans", lines(*[row] * 4), expected, None)
    pairs = json.dumps([[TEXT, {"entities": LISTS}]] * 4)
    yield rows("spacy-pairs.json", "spaCy: pairs of text and spans", pairs, "as spaCy writes them", None)
    emoji = jsonl([{"text": f"😀 {TEXT}", "label": [[3, 7, "PER"]]}] * 4)
    yield rows("doccano-utf16.jsonl", "doccano, old: an emoji before spans", emoji, "UTF-16 units", None)
    doubt = jsonl([{"text": "😀 +++", "label": [[3, 4, "X"]]}] * 4)
    yield rows("doccano-doubt.jsonl", "the same, where nothing tells", doubt, "it cannot be told", None)
    nested = jsonl([{"text": "New York Times", "spans": spans_of([(0, 14, "ORG"), (0, 8, "LOC")])}] * 4)
    yield rows(
        "nested.jsonl", "Prodigy: a span within another", nested, "since they overlap another one", None
    )
    cut = jsonl([{"text": "Hausboot da", "spans": spans_of([(0, 4, "X")])}] * 4)
    yield rows("cut-words.jsonl", "Prodigy: spans that cut a word", cut, "spans that cut a word", None)
    past = jsonl([{"text": "Anna", "spans": spans_of([(0, 9, "PER")])}] * 4)
    yield rows("past.jsonl", "Prodigy: spans past the end", past, "lies outside the text", None)
    for scheme, marks in (("IOBES", "SBIE"), ("BILOU", "UBIL"), ("BMES", "SBME")):
        town = [f"{word} {mark}-LOC" for word, mark in zip(("The", "Old", "Town"), marks[1:], strict=True)]
        data = "\n".join([f"Anna {marks[0]}-PER", "of O", *town, "", ""]) * 4
        said = f"tags in {scheme}: 8 entities"
        yield rows(f"{scheme.lower()}.conll", f"CoNLL, tags in {scheme}", data, said, None)


def _named(tool: str, more: str = "") -> str:
    form = {"fastText": "txt", "Rasa": "yml", "Rasa, Markdown": "md", "doccano": "jsonl", "spaCy": "jsonl"}
    stem = tool.lower().replace(", ", "-").replace(" ", "-")
    prodigy = "jsonl" if tool.startswith("Prodigy") else "csv" if "CSV" in tool else "json"
    return f"{stem}{more}.{form.get(tool, prodigy)}"


def verdict(file: File) -> str:
    """The verdict as a user reads it."""
    found = inspect_file(file.data, file.use, corpus=file.corpus)
    if found.error is not None:
        meant = f". It may be meant so: --task {found.task}{as_arguments(found.guess)}" if found.guess else ""
        return f"refused: {found.error}{meant}"
    what = (
        f"{found.count} documents"
        if found.kind == "corpus"
        else f"{found.count} rows of the task {found.task}"
    )
    labels = f", {len(found.labels)} labels" if found.labels else ""
    notes = "".join(f". Note: {note}" for note in found.notes)
    return f"accepted: {what}{labels}; {found.read}{notes}"


def page() -> str:
    """The page of the docs."""
    lines = [f"| `{f.name}` | {f.made} | {_as(f)} | {verdict(f).replace('|', '&#124;')} |" for f in files()]
    return "\n".join([HEAD, *lines, ""])


def _as(file: File) -> str:
    return "a corpus" if file.corpus else file.use or "none given"


HEAD = """# Files as users have them

What `hmi check` prints for each file. A call that starts a job makes the same check first. \
`python -m tests.hmi.data.forty_files` generates this page, and `tests/hmi/data/test_forty_files.py` \
compares it.

| file | origin | checked as | result |
|---|---|---|---|"""

if __name__ == "__main__":
    sys.stdout.write(page())
