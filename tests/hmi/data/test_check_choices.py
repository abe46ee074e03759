"""What a check shows for people to choose from and to look at: columns that may be the text, and entities."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hmi.jobs.checks import inspect_file
from hmi.training.data.reading import Reading

TEXTS = ("Oslo is cold", "Rome is warm", "I like Oslo", "Rome it is", "Oslo, then", "to Rome")


def task(text: str, number: int) -> dict[str, Any]:
    """A task of Label Studio with two texts and an entity in the second."""
    at = text.index("Oslo" if "Oslo" in text else "Rome")
    span = {"start": at, "end": at + 4, "labels": ["LOC"]}  # its own text would tell the field
    result = [{"type": "labels", "from_name": "x", "to_name": "note", "value": span}]
    return {"data": {"title": f"n{number}", "note": text}, "annotations": [{"result": result}]}


EXPORTED = json.dumps([task(text, i) for i, text in enumerate(TEXTS)]).encode()
SPANS = json.dumps([{"title": "t", "note": "Oslo is cold", "label": [[0, 4, "LOC"]]}] * 4).encode()


@pytest.mark.parametrize("file", [EXPORTED, SPANS])
def test_fields_of_which_none_is_surely_the_text_are_offered(file: bytes) -> None:
    refused = inspect_file(file, None)
    assert refused.error is not None
    assert refused.text_columns == ["title", "note"]
    read = inspect_file(file, None, reading=Reading(text_column="note"))
    assert (read.error, read.text_columns) == (None, [])
    assert read.entities == {"LOC": read.count}


def test_columns_of_a_table_are_offered_beside_a_guess() -> None:
    rows = "".join(f"n{i},where is my parcel no. {i},{'ab'[i % 2]}\n" for i in range(8))
    refused = inspect_file(f"title,note,label\n{rows}".encode(), None)
    assert refused.guess == {"text_column": "note"}
    assert refused.text_columns == ["title", "note"]


@pytest.mark.parametrize(
    "file",
    [
        b"text,label\nx,y\nz,y\n",  # refused for its labels; the text has its usual name
        b'{"note": "Oslo", "label": [[0, 9, "LOC"]]}\n' * 4,  # one text only, refused for its offsets
        b"1,a text of words\n2,another text here\n1,a third text too\n2,and a fourth one\n",  # has no names
        b'{"text": "a"}\n{"text": \n',
    ],
)
def test_a_file_whose_text_is_no_question_offers_none(file: bytes) -> None:
    refused = inspect_file(file, None)
    assert refused.error is not None
    assert refused.text_columns == []


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        (("B-PER", "I-PER", "B-PER"), [("PER", 0, 2), ("PER", 2, 3)]),
        (("B-PER", "E-PER", "S-PER"), [("PER", 0, 2), ("PER", 2, 3)]),
        (("O", "I-PER", "B-PER"), [("PER", 1, 2), ("PER", 2, 3)]),
        (("NN", "VB", "NN"), []),
    ],
)
def test_entities_are_counted_and_shown_in_any_scheme(
    tags: tuple[str, ...], entities: list[tuple[str, int, int]]
) -> None:
    row = {"tokens": ["Anna", "Lee", "Ben"], "tags": tags}
    found = inspect_file(b"\n".join([json.dumps(row).encode()] * 4), "tagging")
    shown = [{"label": name, "start_word": a, "end_word": b} for name, a, b in entities]
    assert found.sample_entities == ([shown] * len(found.sample) if entities else [])
    assert found.entities == ({"PER": 4 * len(entities)} if entities else None)
