"""Files that were once read as something else than they are, found by a review of the readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hmi.jobs.checks import Checked, inspect_file
from tests.hmi.labs.api_world import hmi


def lines(*rows: Any) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def both(data: bytes) -> tuple[Checked, Checked]:
    """The file as one of no given task, and as a corpus."""
    return inspect_file(data, None), inspect_file(data, None, corpus=True)


def test_spans_in_a_cell_of_csv_are_spans() -> None:
    cell = '"[{""start"": 0, ""end"": 4, ""text"": ""Oslo"", ""labels"": [""LOC""]}]"'
    data = "text,id,label,annotator\n" + "".join(f"Oslo is {i},{i},{cell},1\n" for i in range(4))
    found = inspect_file(data.encode(), None)
    assert (found.task, found.count) == ("tagging", 4)
    assert "4 entities of 1 type" in str(found.read)


@pytest.mark.parametrize("header", ["Ticket Body,Topic\n", ""])
def test_rows_with_line_breaks_in_their_cells_are_no_corpus(header: str) -> None:
    rows = "".join(f'"Hello, my box {i} is late\nand broken",{"ab"[i % 2]}\n' for i in range(6))
    found, as_corpus = both((header + rows).encode())
    assert found.kind != "corpus"
    assert found.guess is not None
    assert as_corpus.error is not None


def test_a_quote_that_never_closes_makes_no_csv() -> None:
    text = "Yes,no\n" + '"so it began\n' + "and went on and on\n" * 9
    found = inspect_file(text.encode(), None, corpus=True)
    assert (found.error, found.count) == (None, 11)


def test_the_choice_of_a_region_is_no_label_of_the_text() -> None:
    region = {"type": "choices", "value": {"start": 0, "end": 4, "text": "Anna", "choices": ["pos"]}}
    span = {"type": "labels", "value": {"start": 0, "end": 4, "text": "Anna", "labels": ["PER"]}}
    tasks = [{"data": {"text": f"Anna {i}"}, "annotations": [{"result": [span, region]}]} for i in range(4)]
    assert inspect_file(json.dumps(tasks).encode(), "classification").error is not None
    assert inspect_file(json.dumps(tasks).encode(), None).task == "tagging"


def test_a_first_row_without_entities_does_not_make_another_field_theirs() -> None:
    section = [{"start": 0, "end": 4, "label": "intro"}]
    row = {"text": "Oslo is cold", "sections": section}
    rows = [row | {"entities": [[0, 4, "LOC"]] * (i > 0)} for i in range(5)]
    assert "4 entities of 1 type" in str(inspect_file(lines(*rows), None).read)


@pytest.mark.parametrize("tags", ["PER-B PER-I", "B_PER I_PER", "b-per i-per"])
def test_tags_with_marks_of_another_form_are_labels_and_a_note_says_so(tags: str) -> None:
    first, second = tags.split()
    found = inspect_file((f"Anna {first}\nBerg {second}\nwent O\n\n" * 5).encode(), "tagging")
    assert "entities" not in str(found.read)
    assert any("mark entities in another form" in note for note in found.notes)


def test_marks_of_two_schemes_are_told() -> None:
    tags = b"Anna B-PER\nBerg L-PER\nwent O\n\nOslo S-LOC\nis O\n\nRome U-LOC\n\n"
    found = inspect_file(tags * 3, "tagging")
    assert any("no scheme has the marks" in note for note in found.notes)


def test_a_token_of_conll_may_be_a_hash_or_hold_a_space_that_does_not_break() -> None:
    found = inspect_file(b"the DT\nhouse NN\n# SYM\nfour CD\n\n" * 4, "tagging")
    assert (found.count, found.labels) == (4, {"CD": 4, "DT": 4, "NN": 4, "SYM": 4})
    found = inspect_file("10\u00a0000\tB-NUM\nis\tO\n\nOslo\tB-LOC\n\n".encode() * 3, None)
    assert (found.task, found.count) == ("tagging", 6)


def test_rows_without_a_class_and_texts_that_were_cut_are_left_out() -> None:
    features = [
        {"name": "text", "type": {"dtype": "string", "_type": "Value"}},
        {"name": "label", "type": {"names": ["neg", "pos"], "_type": "ClassLabel"}},
    ]
    rows = [{"row": {"text": f"text {i}", "label": i % 2}, "truncated_cells": []} for i in range(4)]
    rows += [{"row": {"text": "unlabelled", "label": -1}, "truncated_cells": []}]
    rows += [{"row": {"text": "cut", "label": 1}, "truncated_cells": ["text"]}]
    found = inspect_file(json.dumps({"features": features, "rows": rows}).encode(), None)
    assert (found.count, found.labels) == (4, {"neg": 2, "pos": 2})
    assert sum("left out" in note for note in found.notes) > 0


def test_a_column_with_a_comma_in_its_name_can_be_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "com mas.csv"
    rows = "".join(f"{i},text {i},{i % 2},0\n" for i in range(6))
    file.write_text('id,comment,"rude, hateful",spam\n' + rows)
    told = hmi(capsys, "check", file, "--task", "multilabel", "--labels-columns", '"rude, hateful",spam')
    assert "6 rows of the task multilabel" in told
    assert """--labels-columns '"rude, hateful",spam'""" in told


def test_the_only_string_of_a_row_with_spans_is_its_text() -> None:
    rows = [{"id": i, "data": "Oslo is cold", "label": [[0, 4, "LOC"]]} for i in range(4)]
    assert inspect_file(lines(*rows), None).task == "tagging"
