"""Files that annotation tools write and that were once read as something else. The tools' own packages showed
most of them (tests/tools)."""

from __future__ import annotations

import json
import zlib
from typing import Any

import pytest

from hmi.jobs.checks import inspect_file
from hmi.training.data.reading import Reading
from hmi.training.data.rows import parse_rows, read_labelled_rows
from hmi.training.data.tools.span_forms import NOT_ANNOTATED
from tests.hmi.data.test_misread_files import both, lines
from tests.hmi.labs.tool_files import LABELS, ROWS, TEXTS, chosen, task_of_label_studio

GROUP = {"start": 0, "end": 4, "label": "LOC"}


def labelled(data: bytes | str, **reading: Any) -> list[tuple[Any, Any]]:
    """The rows of a file whose task its columns show."""
    raw = data.encode() if isinstance(data, str) else data
    found = inspect_file(raw, None, reading=Reading(**reading))
    assert found.error is None
    assert found.task is not None
    read = parse_rows(raw, found.task, "data", reading=Reading(**reading))
    return [(row.text, row.label) for row in read.rows]


@pytest.mark.parametrize("kind", [int, str])
def test_options_with_numbers_as_ids_give_their_texts(kind: type) -> None:
    options = [{"id": kind(i), "text": name} for i, name in enumerate(sorted(set(LABELS)))]
    ids = {option["text"]: option["id"] for option in options}
    rows = [{"text": t, "options": options, "accept": [ids[a]], "answer": "accept"} for t, a in ROWS]
    assert labelled(lines(*rows)) == ROWS


def test_options_with_names_as_ids_keep_them() -> None:
    rows = [{"text": t, "options": [{"id": a, "text": "Long " + a}], "accept": [a]} for t, a in ROWS]
    assert labelled(lines(*rows)) == ROWS


@pytest.mark.parametrize("header", ["id,text,label,Comments", "id,text,label"])
def test_labels_that_doccano_joins_are_several(header: str) -> None:
    given = ["parcel#refund", "refund", "parcel", "parcel", "refund#parcel", "refund"]
    end = "," * header.endswith("Comments")
    data = f"{header}\n" + "".join(f'{i},"{TEXTS[i]}",{a}{end}\n' for i, a in enumerate(given))
    assert labelled(data) == [(t, tuple(a.split("#"))) for t, a in zip(TEXTS, given, strict=True)]


def test_a_hash_in_a_name_does_not_part_it() -> None:
    given = ["C#", "C#", "F#", "F#", "C#", "F#"]
    data = "id,text,label,Comments\n" + "".join(f'{i},"{TEXTS[i]}",{a},\n' for i, a in enumerate(given))
    assert labelled(data) == list(zip(TEXTS, given, strict=True))
    other = "text,label\n" + "".join(f'"{t}",{a}\n' for t, a in zip(TEXTS, ["a#b", "c"] * 3, strict=True))
    assert {label for _, label in labelled(other)} == {"a#b", "c"}


def test_fasttext_as_doccano_quotes_it() -> None:
    data = '"__label__a Yes, no ""so"" "\n__label__b plain \n"__label__a two\nlines, one text "\n'
    data += '"__label__b with, remarks __comment__is this right, or not?"\n'
    assert labelled(data) == [
        ('Yes, no "so"', "a"),
        ("plain", "b"),
        ("two lines, one text", "a"),
        ("with, remarks", "b"),
    ]


def test_a_quote_of_fasttext_that_is_never_closed_costs_no_more_than_its_lines() -> None:
    data = '"__label__a closed"\n' + "".join(f"__label__{'ab'[i % 2]} text {i}\n" for i in range(9))
    found = inspect_file((data + '"__label__a open\n' + "rest of the file\n" * 100_000).encode(), None)
    assert found.count >= 10
    assert "in double quotes" in str(found.read)


@pytest.mark.parametrize("more", ["", "__label__a __label__b both are here\n"])
def test_lines_of_fasttext_without_a_label_are_counted(more: str) -> None:
    data = more + "".join(f"__label__{'ab'[i % 2]} text {i}\n" for i in range(9)) + "no mark at all\n"
    found = inspect_file(data.encode(), None)
    assert (found.error, found.count) == (None, 9 + bool(more))
    assert "1 record is left out: without a label (__label__)" in found.notes


def test_examples_of_rasa_may_go_on_in_the_next_line() -> None:
    yaml = 'version: "3.1"\nnlu:\n- intent: a\n  examples: |\n    - one\n      more\n    - two\n'
    yaml += "- intent: b\n  examples: |\n    - three\n\n    - four\n      and\n      five\n"
    wanted = [("one more", "a"), ("two", "a"), ("three", "b"), ("four and five", "b")]
    assert labelled(yaml) == wanted
    assert (
        labelled("## intent:a\n- one\n  more\n- two\n## intent:b\n- three\n- four\n  and\n  five\n") == wanted
    )


@pytest.mark.parametrize("indent", [None, 1])
def test_pairs_of_spacy_with_classes(indent: int | None) -> None:
    pairs = [[t, {"cats": {name: float(name == a) for name in LABELS}}] for t, a in ROWS]
    assert labelled(json.dumps(pairs, indent=indent)) == ROWS
    with_spans = [[t, {"entities": [[0, 5, "X"]], **about}] for t, about in pairs]
    data = json.dumps(with_spans, indent=indent).encode()
    assert inspect_file(data, None).task == "tagging"
    assert [row.label for row in read_labelled_rows(data, "classification")] == list(LABELS)


def test_two_choices_are_told_and_one_can_be_named() -> None:
    def tone(number: int) -> dict[str, Any]:
        value = {"choices": ["loud" if number % 2 else "calm"]}
        return {"value": value, "from_name": "tone", "to_name": "text", "type": "choices"}

    tasks = []
    for i, (text, label) in enumerate(ROWS):
        annotation = chosen(label)
        annotation["result"][0]["from_name"] = "label"
        annotation["result"].append(tone(i))
        tasks.append(task_of_label_studio(text, annotation))
    found = inspect_file(json.dumps(tasks).encode(), None)
    assert found.labels == {"parcel": 2, "refund": 2, "login": 2}
    assert any("`label` is read, `tone` not" in note and "--label-column" in note for note in found.notes)
    assert labelled(json.dumps(tasks), label_column="tone")[0] == (TEXTS[0], "calm")
    rows = "".join(f'1,1,{i},2.5,"{t}",{a},{"ab"[i % 2]}\n' for i, (t, a) in enumerate(ROWS))
    told = inspect_file(f"annotation_id,annotator,id,lead_time,text,label,tone\n{rows}".encode(), None)
    assert any("`tone` not" in note for note in told.notes)


def test_texts_that_nobody_annotated_are_no_texts_without_entities() -> None:
    label = [{"start": 0, "end": 4, "text": "Oslo", "labels": ["LOC"]}]
    rows = [{"text": f"Oslo {i}", "label": label, "annotation_id": i} for i in range(4)]
    empty, open_ = {"text": "none", "annotation_id": 9}, {"text": "Oslo too", "annotation_id": None}
    found = inspect_file(lines(*rows, empty, open_), None)
    assert (found.count, found.error) == (5, None)
    assert f"1 record is left out: {NOT_ANNOTATED}" in found.notes


def test_slots_of_doccano_count_units() -> None:
    rows = [{"text": "🙂 Oslo is cold", "cats": ["a"], "entities": [[3, 7, "LOC"]]}] * 2
    rows += [{"text": "Rome is not", "cats": ["b"], "entities": [[0, 4, "LOC"]]}] * 2
    found = inspect_file(lines(*rows), None)
    assert "as doccano writes them" in str(found.read)
    assert labelled(lines(*rows))[0] == (["🙂", "Oslo", "is", "cold"], ("O", "B-LOC", "O", "O"))
    assert [row.label for row in read_labelled_rows(lines(*rows), "classification")] == ["a", "a", "b", "b"]


def test_a_group_of_spans_holds_them() -> None:
    rows = [{"text": "Oslo is cold", "spans": {"sc": [{"start": 0, "end": 4, "label": "LOC"}]}}] * 4
    assert labelled(lines(*rows))[0] == (["Oslo", "is", "cold"], ("B-LOC", "O", "O"))
    rows = [row | {"ents": [{"start": 8, "end": 12, "label": "ADJ"}]} for row in rows]
    assert labelled(lines(*rows))[0][1] == ("O", "O", "B-ADJ")


def test_a_text_among_several_can_be_named_for_spans() -> None:
    rows = [{"title": "t", "note": "Oslo is cold", "label": [[0, 4, "LOC"]]} for _ in range(4)]
    refused = inspect_file(lines(*rows), None)
    assert "--text-column" in str(refused.error)
    wanted = (["Oslo", "is", "cold"], ("B-LOC", "O", "O"))
    assert labelled(lines(*rows), text_column="note")[0] == wanted
    assert labelled(lines(*[row | {"text": "Rome"} for row in rows]), text_column="note")[0] == wanted
    value = {"start": 0, "end": 4, "text": "Oslo", "labels": ["LOC"]}
    result = [{"result": [{"type": "labels", "value": value}]}]
    tasks = [{"data": {"title": "t", "note": "Oslo is cold"}, "annotations": result}] * 4
    assert labelled(lines(*tasks), text_column="note")[0] == wanted
    assert "no text in `body`" in str(
        inspect_file(lines(*rows), None, reading=Reading(text_column="body")).error
    )
    unlabelled = parse_rows(
        lines(*rows), "tagging", "data", answers=False, reading=Reading(text_column="note")
    )
    assert [row.text for row in unlabelled.rows] == [["Oslo", "is", "cold"]] * 4


def test_a_word_of_white_space_makes_no_corpus() -> None:
    sentence = "Oslo\tU-LOC\nis\tO\nfar\tO\n\tO\naway\tO\nfrom\tO\nRome\tU-LOC\n\n"
    found, as_corpus = both((sentence * 4).encode())
    assert (found.kind, found.task) == ("rows", "tagging")
    assert "has a tag without a token in line 4" in str(found.error)
    assert "looks like CoNLL" in str(as_corpus.error)


@pytest.mark.parametrize(
    ("data", "cure"),
    [
        (lines({"doc_annotation": {}, "token_annotation": {}}), "doc.to_json()"),
        (lines({"id": 0, "paragraphs": []}), "doc.to_json()"),
        (zlib.compress(b"documents"), "doc.to_json()"),
        (lines({"text": "Oslo", "spans": {"a": [GROUP], "b": [GROUP]}}), "doc.set_ents(doc.spans[NAME])"),
        (lines({"columns": ["text"], "data": [["a"]]}), "orient='records'"),
        (lines({"tokens": {"0": ["a"]}, "tags": {"0": ["O"]}}), "orient='records'"),
        (lines({"tokens": [["a"]], "tags": [["O"]]}), "orient='records'"),
    ],
)
def test_forms_that_are_not_read_name_one_that_is(data: bytes, cure: str) -> None:
    assert cure in str(inspect_file(data, None).error)


@pytest.mark.parametrize(("first", "cure"), [(0, "--labels A,B,…"), (1, "--labels 1=A,2=B,…"), (2, "")])
def test_numbers_of_classes_are_told(first: int, cure: str) -> None:
    rows = [{"text": text, "label": first + i % 3} for i, text in enumerate(TEXTS)]
    told = [note for note in inspect_file(lines(*rows), None).notes if "labels are numbers" in note]
    assert len(told) == bool(cure)
    assert cure in " ".join(told)
