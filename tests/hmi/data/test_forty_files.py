"""Forty files as people have them: each is accepted, or refused with the cause and the cure."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.core import Task
from hmi.errors import InvalidData
from hmi.jobs.checks import inspect_file
from hmi.training.data.rows import Row, read_labelled_file, read_labelled_rows, read_unlabelled_file
from tests.hmi.data.forty_files import File, files, page, verdict

PAGE = Path(__file__).resolve().parents[3] / "docs" / "benchmarks" / "2026-11-forty-files.md"


@pytest.mark.parametrize("file", list(files()), ids=lambda file: file.name)
def test_each_file_gets_what_it_should(file: File) -> None:
    said = verdict(file)
    assert file.expected in said
    assert "Traceback" not in said


def test_there_are_forty_and_the_page_has_them() -> None:
    assert len({file.name for file in files()}) == len(list(files())) >= 40
    assert PAGE.read_text(encoding="utf-8") == page(), "python -m tests.hmi.data.forty_files > that page"


TASKS: tuple[Task | None, ...] = (None, "classification", "pair", "multilabel", "regression", "tagging")
SIGNS = ["[", "]", "{", "}", '"', ",", ";", " ", "\t", "\n", "\r\n", "\0", "\ufeff", "\ud7ff", "é"]
VALUES = ['{"text": "a", "label": "b"}', "text,label", "a,b", "O", "B-X", "[1]", "null", "1e999"]
PIECES = st.sampled_from([*SIGNS, *VALUES, "sep=;", "-DOCSTART-"])


@settings(max_examples=300, deadline=None)
@given(
    st.lists(PIECES, max_size=30).map("".join), st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"])
)
def test_whatever_a_file_holds_gets_an_answer(text: str, encoding: str) -> None:
    data = text.encode(encoding, "replace")
    for task in TASKS:
        found = inspect_file(data, task)
        assert found.error or found.count >= (2 if found.kind == "corpus" else 4)
    inspect_file(data, None, corpus=True)
    inspect_file(gzip.compress(data)[: len(text)], None)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_whatever_bytes_a_file_has_it_gets_an_answer(data: bytes) -> None:
    for task in TASKS:
        inspect_file(data, task)
    inspect_file(data, None, corpus=True)


@given(
    st.lists(st.tuples(st.text(min_size=1).filter(str.strip), st.sampled_from("ab")), min_size=4, max_size=9)
)
@settings(max_examples=100, deadline=None)
def test_rows_come_back_from_every_form_as_they_went(rows: list[tuple[str, str]]) -> None:
    rows = [(text.replace("\0", "0").replace("\r", " ").strip() or "x", label) for text, label in rows]
    objects = [{"text": text, "label": label} for text, label in rows]
    forms = {
        "lines": "\n".join(map(json.dumps, objects)),
        "list": json.dumps(objects),
        "pretty": json.dumps(objects, indent=1),
    }
    # A quoted cell with a tab and a line break can look like two rows, each with a quote of its own.
    for delimiter in ",;" if any("\t" in text and "\n" in text for text, _ in rows) else ",;\t":
        out = io.StringIO()
        writer = csv.writer(out, delimiter=delimiter)
        writer.writerows([("text", "label"), *rows])
        forms[f"csv {delimiter}"] = out.getvalue()
    for form, text in forms.items():
        for encoding in ("utf-8", "utf-8-sig", "utf-16"):
            found = read_labelled_rows(text.encode(encoding), "classification")
            assert [(row.text, row.label) for row in found] == rows, (form, encoding)


def test_no_token_of_conll_is_lost() -> None:
    """`#` may be a token. A token with a space in it is refused: it would be a token and another column."""
    text = "-DOCSTART- O\n\n" + "EU B-ORG\n# O\n1 O\n\n" * 100 + "New York B-LOC\nx O\n"
    with pytest.raises(
        InvalidData, match=r"has 3 columns instead of 2 in line 403: give a token without spaces"
    ):
        read_labelled_rows(text.encode(), "tagging")
    rows = read_labelled_file(text.encode(), "tagging", skip=1).rows
    assert [row.text for row in rows] == [["EU", "#", "1"]] * 100


def test_what_excel_writes_above_the_header_is_no_header() -> None:
    rows = "".join(f"one {i};{'ab'[i % 2]}\n" for i in range(4))
    for head in ("sep=;\ntext;label\n", "sep=;\n\ntext;label\n", "\nsep=;\n\n\ntext;label\n"):
        read = read_labelled_rows((head + rows).encode(), "classification")
        assert [row.label for row in read] == ["a", "b", "a", "b"]


def test_lone_quotes_in_a_table_with_tabs_are_a_part_of_the_text() -> None:
    by_name = {file.name: file.data for file in files()}
    texts = [row.text for row in read_labelled_rows(by_name["glue-two.tsv"], "classification")]
    assert texts[3:] == ['"Gern wieder', "Zu spät", 'Très bien"']
    assert read_labelled_rows(by_name["excel-quotes.tsv"], "classification")[3].text == 'Gern\n"wieder"'
    assert read_labelled_rows(by_name["stsb.tsv"], "regression")[3] == Row(
        ('"Gern wieder', "redeiw nreG"), 3.5
    )
    text = "text\tlabel\n" + "".join(f'"{i} it is\t{"ab"[i % 2]}\n' for i in range(90_000))
    begun = read_labelled_file(text.encode(), "classification", first=1 << 16)
    assert (begun.whole, begun.rows[0].text) == (False, '"0 it is')
    unlabelled = b'sentence1\tsentence2\n"a b\tc\nd\te\n'
    assert read_unlabelled_file(unlabelled, "regression", paired=True).rows[0].text == ('"a b', "c")


def test_a_carriage_return_within_a_line_is_named() -> None:
    rows = "text,label\r\n" + "one,a\r\ntwo,b\r\n" * 2 + "thr\ree,a\r\n"
    with pytest.raises(InvalidData, match="line 6 of data has a carriage return"):
        read_labelled_rows(rows.encode(), "classification")
