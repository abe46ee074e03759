"""Bad corpora and bad rows: each error names the place and the cure."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import zstandard

from hmi.core import Task
from hmi.errors import HmiError, InvalidData, TooLarge
from hmi.training.data.corpus import check_corpus, read_documents
from hmi.training.data.golds import checked_labels
from hmi.training.data.rows import read_labelled_rows
from hmi.training.tasks.objectives import learn_task


def put(tmp_path: Path, data: bytes | str) -> Path:
    path = tmp_path / "file"
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty"),
        (b"\n \n\n", "only blank lines"),
        (b"one line only\n", "one line only"),
        (b"text\nbin\x00ary\n", "line 2 .* zero byte"),
        ("gr\xfcn\nblau\n".encode("latin-1"), "line 1 .* not UTF-8"),
        (gzip.compress(b"some text\n" * 1000, mtime=0)[:-20], "cannot be decompressed"),
        (b"\x28\xb5\x2f\xfdnot really zstd", "cannot be decompressed"),
        (b"\x1f\x8bnot really gzip at all", "cannot be decompressed"),
        (b'["one text", "two texts"]\n', "JSON list, and has no `text`: the columns are none"),
        (b'{"text": "a"}\n{"text": "b \\ud800"}\n', "line 2 .* half a surrogate pair at character 3"),
        (b'["one", "two"]\n["three", "four"]\n', "line 2 .* after the end of the list"),
    ],
)
def test_a_bad_corpus_is_refused(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        check_corpus(put(tmp_path, data))


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zstandard.ZstdCompressor().compress])
def test_documents_are_read_plain_and_compressed(tmp_path: Path, pack: object) -> None:
    data = "first line\n\nzweite Zeile ü\n".encode()
    path = put(tmp_path, pack(data))  # type: ignore[operator]
    assert list(read_documents(path)) == ["first line", "zweite Zeile ü"]
    assert check_corpus(path) == 2


@pytest.mark.parametrize(
    "first", ['{"text": "a b"}', '{ "text": "a b" }', '[{"text": "a b"},', '[ {"text": "a b"},']
)
def test_no_json_is_read_as_text(tmp_path: Path, first: str) -> None:
    rest = '{"text": "c"}]' if first.startswith("[") else '{"text": "c"}'
    assert list(read_documents(put(tmp_path, f"{first}\n{rest}\n"))) == ["a b", "c"]
    for text in ('["Well", he said.\nNo.', "[1]\nA note.", "{name} is here.\nAnd there."):
        assert list(read_documents(put(tmp_path, text))) == text.split("\n")


def test_lines_of_one_comma_each_are_text(tmp_path: Path) -> None:
    text = "Roses, red\nViolets, blue\nSugar, sweet\nAnd, you\nAlso, me"
    assert list(read_documents(put(tmp_path, text))) == text.split("\n")
    with pytest.raises(InvalidData, match="looks like CSV"):
        check_corpus(put(tmp_path, text.replace(", ", ",")))


def test_a_corpus_that_expands_too_far_is_refused(tmp_path: Path) -> None:
    bomb = gzip.compress(b"x" * 99 + b"\n" + b"y\n" * 100_000)
    with pytest.raises(TooLarge):
        list(read_documents(put(tmp_path, bomb), limit=10_000))


def jsonl(*rows: object) -> str:
    return "".join(json.dumps(r) + "\n" for r in rows)


@pytest.mark.parametrize(
    ("task", "rows", "message"),
    [
        ("classification", [{"text": "a", "label": "x"}] * 5 + [{"text": "b"}], "line 6: `label` is missing"),
        ("classification", [{"text": "", "label": "x"}] * 5, "line 1: `text` is missing or empty"),
        ("classification", [{"text": 3, "label": "x"}] * 5, "line 1: `text` is a number"),
        ("classification", [{"text": "a", "label": [1, 2]}] * 5, "`label` is a list"),
        ("pair", [{"text": "a", "label": "x"}] * 5, "`text_pair` is missing"),
        ("tagging", [{"tokens": ["a", "b"], "tags": ["O"]}] * 5, "2 tokens but 1 tag"),
        ("tagging", [{"tokens": "a b", "tags": ["O"]}] * 5, "`tokens` is not a list"),
        ("classification", [["text", "label"]] * 5, "more after the end of the list"),
        ("classification", [{"text": "a", "label": "x"}] * 3, "3 rows"),
    ],
)
def test_bad_rows_are_named(tmp_path: Path, task: str, rows: list[object], message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        read_labelled_rows(put(tmp_path, jsonl(*rows)), task)  # type: ignore[arg-type]


def test_a_row_that_is_not_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidData, match=r"line 2: is not JSON"):
        read_labelled_rows(put(tmp_path, '{"text": "a", "label": "b"}\n{"text": \n'), "classification")


def test_deeply_nested_json_is_refused_not_crashed(tmp_path: Path) -> None:
    with pytest.raises(HmiError):
        read_labelled_rows(put(tmp_path, '{"text": ' + "[" * 100_000), "classification")


def test_one_class_only_and_ten_thousand_classes(tmp_path: Path) -> None:
    same = read_labelled_rows(put(tmp_path, jsonl(*[{"text": "t", "label": "x"}] * 9)), "classification")
    with pytest.raises(InvalidData, match="at least two classes"):
        checked_labels((row.label for row in same), "data")
    many = read_labelled_rows(
        put(tmp_path, jsonl(*({"text": "t", "label": i} for i in range(10_000)))), "classification"
    )
    with pytest.raises(InvalidData, match="10000 different labels"):
        checked_labels((row.label for row in many), "data")


def test_csv_rows_are_read(tmp_path: Path) -> None:
    rows = read_labelled_rows(put(tmp_path, 'text,label\n"a, b",x\nc,y\nd,x\ne,y\n'), "classification")
    assert [(r.text, r.label) for r in rows][:2] == [("a, b", "x"), ("c", "y")]
    assert checked_labels((row.label for row in rows), "data") == {"x": 2, "y": 2}


def test_pairs_and_tags_are_read(tmp_path: Path) -> None:
    pairs = read_labelled_rows(
        put(tmp_path, jsonl(*[{"text": "a", "text_pair": "b", "label": 1}] * 4)), "pair"
    )
    assert pairs[0].text == ("a", "b")
    assert pairs[0].label == "1"
    tags = read_labelled_rows(
        put(tmp_path, jsonl(*[{"tokens": ["a", "b"], "tags": ["O", "B-x"]}] * 4)), "tagging"
    )
    assert tags[0].label == ("O", "B-x")


@pytest.mark.parametrize(
    ("task", "row", "message"),
    [
        (
            "classification",
            '{"text": "a \\ud800 b", "label": "x"}',
            "`text` has half a surrogate pair at character 3",
        ),
        ("classification", '{"text": "a", "label": "\\udc00"}', "`label` has half a surrogate"),
        ("tagging", '{"tokens": ["a", "\\ud800"], "tags": ["O", "O"]}', "`tokens` has half a surrogate"),
        ("pair", '{"text": "a", "text_pair": "\\ud800", "label": "x"}', "`text_pair` has half"),
    ],
)
def test_half_a_surrogate_pair_is_named(tmp_path: Path, task: Task, row: str, message: str) -> None:
    with pytest.raises(InvalidData, match=message):
        read_labelled_rows(put(tmp_path, row + "\n"), task)


def test_values_that_are_all_alike_are_refused_whatever_rounding_does() -> None:
    with pytest.raises(InvalidData, match="nothing to learn"):
        learn_task("regression", [0.7] * 60)
